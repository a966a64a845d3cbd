"""One record that this version cannot read does not keep the others out of the bucket."""

from __future__ import annotations

from pathlib import Path

from store.errors import BadRecord
from store.records import ACTION, Draft
from tests.shipping.machines import AGENT, head_in, machine, resumed
from tests.shipping.memory import MemoryBucket


def test_an_open_action_of_a_newer_version_ships_as_it_is(tmp_path: Path) -> None:
    """A class that is not known here bricks neither barrier, nor release, nor the next machine."""
    bucket, told = MemoryBucket(), list[BadRecord]()
    store = machine(tmp_path / "a", bucket=bucket, on_bad_record=told.append)
    agent = resumed(store)
    newer = {"tool": "t", "class": "transactional", "status": "started", "key": "0" * 32}
    store.append(agent._keeper.fence, [Draft(ACTION, newer, seq=1)])
    begun = agent.begin_action("email", "external", "1")
    head = head_in(bucket, AGENT)
    assert (begun.seq, [each.key for each in head.open]) == (2, [begun.key])
    assert any('"class\\":\\"transactional' in line.decode() for line in head.tail)
    agent.end_action(begun.seq, "done")
    assert agent.release()
    other = resumed(machine(tmp_path / "b", bucket=bucket, on_bad_record=told.append))
    assert other.view.action(2).status == "done"
    assert other.pending_actions() == []
    assert {each.details["key"] for each in told} == {"act:1"}
    other.release()
