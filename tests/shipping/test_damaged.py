"""A damaged record here: the bucket's copy stands, the agent goes on, and what is damaged never gets there."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.agent import Agent
from store.keeper import Keeper
from store.lease import LeaseRequest
from store.process import this_process
from store.remote_errors import NotShipped
from store.shipping import evidence
from store.shipping.backend import ShippingBackend
from store.shipping.local import Local
from store.shipping.place import agents_in
from tests.keeping import problems, tampering
from tests.shipping.machines import AGENT, head_in, machine, resumed
from tests.shipping.memory import DOWN, MemoryBucket
from tests.shipping.world import World


def damage(directory: Path, lsn: int) -> None:
    """Change a word in a record's line."""
    with tampering(directory) as connection:
        connection.execute("UPDATE records SET line = replace(line, 'number', 'numb') WHERE lsn = ?", (lsn,))
        assert connection.execute("SELECT count(*) FROM records WHERE line LIKE '%numb %'").fetchone() == (1,)


def worked(directory: Path, bucket: MemoryBucket, turns: int = 4) -> None:
    """A machine on which an agent has recorded some turns and given its lease back."""
    store = machine(directory, bucket=bucket)
    agent = resumed(store)
    for number in range(turns):
        agent.record_turn("user", f"number {number}")
    agent.release()
    store.close()


def test_a_record_that_the_bucket_has_bricks_nothing(tmp_path: Path) -> None:
    """Damaged here, sound there: the agent is resumed, works and ships, and the bucket keeps the true line."""
    bucket = MemoryBucket()
    worked(tmp_path / "a", bucket)
    line = head_in(bucket).tail[2]
    damage(tmp_path / "a", 3)
    store = machine(tmp_path / "a", bucket=bucket)
    agent = resumed(store)
    begun = agent.begin_action("email", "external", "1")
    agent.end_action(begun.seq, "done")
    assert agent.release()
    assert head_in(bucket).tail[2] == line
    assert b"number" in line
    other = resumed(machine(tmp_path / "b", bucket=bucket))
    assert [each.content for each in other.recent_turns(9)] == [f"number {number}" for number in range(4)]
    assert other.view.action(1).status == "done"
    other.release()
    assert problems(tmp_path / "a", AGENT) != []
    assert problems(tmp_path / "b", AGENT) == []


def test_a_write_in_another_process_of_the_same_lease_ships_too(tmp_path: Path) -> None:
    """A lease that is carried on by a process which looks at no bucket first: its barrier asks for the head."""
    bucket = MemoryBucket()
    worked(tmp_path / "a", bucket)
    first = machine(tmp_path / "a", bucket=bucket)
    fence = resumed(first)._keeper.fence
    damage(tmp_path / "a", 3)
    second = machine(tmp_path / "a", bucket=bucket)
    agent = Agent(second, AGENT, Keeper.adopt(second, fence, renew=True))
    begun = agent.begin_action("email", "external", "1")
    assert head_in(bucket).open[0].key == begun.key
    assert b"number 1" in head_in(bucket).tail[2]


def test_the_head_is_asked_for_as_patiently_as_it_is_written(tmp_path: Path) -> None:
    """Where a barrier has to read the head first, one answer that does not come does not end it."""
    bucket = MemoryBucket()
    worked(tmp_path / "a", bucket)
    fence = resumed(machine(tmp_path / "a", bucket=bucket))._keeper.fence
    damage(tmp_path / "a", 3)
    store = machine(tmp_path / "a", bucket=bucket, patience=5.0)
    failed: list[str] = []

    def fail_once(verb: str, key: str) -> str:
        if failed or verb != "get":
            return ""
        failed.append(key)
        return DOWN

    bucket.before = fail_once
    begun = Agent(store, AGENT, Keeper.adopt(store, fence, renew=True)).begin_action("email", "external", "1")
    assert failed and head_in(bucket).open[0].key == begun.key


def test_a_record_that_the_bucket_does_not_have_is_not_shipped_damaged(tmp_path: Path) -> None:
    """It would be another log there: the push is refused and names it, again and again, and the bucket stays sound."""
    bucket = MemoryBucket()
    store = machine(tmp_path / "a", bucket=bucket, ship="lazy")
    agent = resumed(store)
    for number in range(4):
        agent.record_turn("user", f"number {number}")
    before = head_in(bucket)
    damage(tmp_path / "a", before.last + 2)
    for _ in range(2):
        with pytest.raises(NotShipped, match=rf"its log from lsn {before.last + 2} on .* is damaged here"):
            store.shipper.push(agent._keeper.fence)
    assert head_in(bucket) == before


@pytest.mark.parametrize("part", ["form", "key"])
def test_a_damaged_intent_proves_nothing_never_executed(tmp_path: Path, part: str) -> None:
    """A call whose intent is in the log, and cannot be read here any more, does not pass for one that is not there."""
    bucket = MemoryBucket()
    first = machine(tmp_path / "a", bucket=bucket)
    agent = resumed(first)
    begun = agent.begin_action("email", "external", "1")
    intent, _ = Local(first, AGENT).last()
    agent.amend_action(begun.seq, "a note that is not shipped")
    with machine(tmp_path / "b", bucket=bucket) as other:
        process = this_process()
        taken = other.acquire(LeaseRequest(AGENT, "b" * 32, "other", process, 60_000, breaking=True))
        other.shipper.push(taken.lease.fence)
    first.shipper.pull(AGENT)
    (one,) = evidence.here(first, AGENT)
    assert (one.verdict, one.in_log) == ("", True)
    with tampering(tmp_path / "a") as connection:
        connection.execute(
            "UPDATE records SET line = replace(line, ?, '0') WHERE lsn = ? AND branch = 1",
            ({"form": "{", "key": begun.key}[part], intent),
        )
    (one,) = evidence.here(first, AGENT)
    assert (one.verdict, one.in_log) == ("may have run", False)


def test_a_damaged_log_does_not_keep_the_others_out_of_the_bucket(tmp_path: Path) -> None:
    """Attaching says which it is and goes on; that agent alone gets no lease, and the bucket nothing of it."""
    world = World(tmp_path)
    for agent in ("ant", AGENT, "cat"):
        world.write("a", "number 1", agent)
    with tampering(tmp_path / "a") as connection:
        connection.execute(
            "UPDATE records SET line = replace(line, 'number', 'numb') WHERE lsn = 2 AND agent = ?", (AGENT,)
        )
    reports = world.attach("a").reports
    assert [(each.agent, each.outcome) for each in reports] == [
        ("ant", "shipped"),
        (AGENT, "damaged"),
        ("cat", "shipped"),
    ]
    assert "its log from lsn 2 on" in reports[1].detail
    world.write("a", "number 2", "cat")
    with pytest.raises(NotShipped, match="that record is damaged here"):
        world.write("a", "number 2")
    assert list(agents_in(world.bucket)) == ["ant", "cat"]


def test_a_damaged_record_before_a_new_lineage_is_not_shipped(tmp_path: Path) -> None:
    """The hash of the last record, of another lineage, says nothing of it; the bucket keeps the true line."""
    world = World(tmp_path)
    world.write("a", "number 1")
    world.attach("a")
    line = world.head().tail[1]
    world.detach("a", "fork")
    world.write("a", "on its own")
    world.attach("a")
    damage(tmp_path / "a", 2)
    world.write("a", "after")
    assert world.head().tail[1] == line
    world.attach("b")
    with world.opened("b") as store:
        assert isinstance(store, ShippingBackend)
        store.shipper.pull(AGENT)
    assert world.texts("b") == ["number 1", "on its own", "after"]
    assert world.sound("b")
