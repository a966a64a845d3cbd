"""The whole way: a machine is lost, another one goes on, and the old one, back again, can write nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store import asides
from store.actions import ActionEnd
from store.errors import LeaseHeld, LeaseLost
from store.remote_errors import Forked
from tests.engine import SetClock
from tests.keeping import problems
from tests.shipping.machines import AGENT, machine, resumed
from tests.shipping.servers import Server


def test_an_agent_goes_on_from_nothing_but_the_bucket(server: Server, tmp_path: Path) -> None:
    """B has the log and the call that was cut off; A, restored from a copy, is refused."""
    place, clock = server.location(), SetClock()
    a = machine(tmp_path / "a", place)
    agent = resumed(a)
    agent.update_working_state(goal="Move billing to the v2 API")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    email = agent.begin_action("email", "external", {"to": "customer"})
    a.close()  # without a release, as a kill would
    shutil.rmtree(tmp_path / "a")

    b = machine(tmp_path / "b", place, clock=clock)
    with pytest.raises(LeaseHeld):
        resumed(b)  # its holder may be alive, for all that B can know
    clock.move(61)
    other = resumed(b)
    assert other.context.working_state.goal == "Move billing to the v2 API"
    assert [(each.seq, each.status, each.key) for each in other.pending_actions()] == [
        (email.seq, "unknown", email.key)
    ]
    other.resolve_action(email.seq, ActionEnd("done", "sent", resolution="the customer has it"), by="operator")
    assert other.release()

    copy = machine(tmp_path / "copy", place)
    lease = copy.lease(AGENT)
    assert lease is not None
    with pytest.raises(LeaseLost):
        copy.shipper.push(lease.fence)
    back = resumed(copy)
    assert [each.status for each in (back.view.action(email.seq),)] == ["done"]
    assert back.context.working_state.goal == "Move billing to the v2 API"
    back.release()
    for store in (b, copy):
        store.close()
        assert problems(Path(store.directory)) == []


def test_what_an_overtaken_machine_wrote_is_set_aside(server: Server, tmp_path: Path) -> None:
    """Records under an epoch that was fenced are never merged and never lost."""
    place, clock = server.location(), SetClock()
    a, b = machine(tmp_path / "a", place), machine(tmp_path / "b", place, clock=clock)
    zombie = resumed(a)
    zombie.record_turn("assistant", "shipped")
    zombie.begin_action("lookup", "idempotent", "1")
    zombie.record_turn("assistant", "written here, and not shipped")
    with pytest.raises(LeaseHeld):
        resumed(b)
    clock.move(61)
    successor = resumed(b)
    successor.record_turn("user", "from the successor")
    with pytest.raises(LeaseLost):
        zombie.begin_action("email", "external", "1")
    with pytest.raises(LeaseLost):
        zombie.record_turn("assistant", "too late")
    assert successor.release()
    back = resumed(a)
    assert [each.content for each in back.recent_turns(9)] == ["shipped", "from the successor"]
    (left,) = asides.asides(a, AGENT)
    said = [each.key for each in asides.records(a, left)]
    assert said == ["turn:2", "tool:email", "act:2"]
    back.release()
    assert [each.key.rpartition("/")[0] for each in a.shipper.bucket.list(f"agents/{AGENT}/aside/")] == [
        f"agents/{AGENT}/aside"
    ]
    for store in (a, b):
        store.close()
        assert problems(Path(store.directory)) == []


def test_the_same_directory_takes_its_unshipped_records_along(server: Server, tmp_path: Path) -> None:
    """A process that was killed left records here; the next one in this directory carries them into the bucket."""
    place = server.location()
    a = machine(tmp_path / "a", place)
    agent = resumed(a)
    agent.record_turn("assistant", "not shipped when it died")
    a.close()
    b = machine(tmp_path / "a", place)
    # The holder is this very process, so it is not dead; but the same store may break it.
    from store.access import break_lease

    break_lease(b, AGENT, by="tester", why="the test's process lives on")
    again = resumed(b)
    assert [each.content for each in again.recent_turns(9)] == ["not shipped when it died"]
    again.release()
    assert asides.asides(b, AGENT) == []
    b.close()
    c = machine(tmp_path / "c", place)
    other = resumed(c)
    assert [each.content for each in other.recent_turns(9)] == ["not shipped when it died"]
    other.release()
    c.close()
    assert problems(tmp_path / "c") == []


def test_a_head_that_is_gone_is_not_made_anew(server: Server, tmp_path: Path) -> None:
    """A deleted head is named, and nothing is written until somebody has looked."""
    place = server.location()
    a = machine(tmp_path / "a", place)
    resumed(a).release()
    a.shipper.bucket.delete(f"agents/{AGENT}/head.json")
    for _ in range(2):
        with pytest.raises(Forked) as caught:
            resumed(a)
        assert caught.value.details["trouble"] == "head missing"
    assert a.shipper.bucket.get(f"agents/{AGENT}/head.json") is None
    a.close()
