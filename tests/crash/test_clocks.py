"""Clocks that are set, and holders that are gone: takeovers may be late, the fence holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import LeaseExpired, LeaseHeld, LeaseLost
from store.process import Process
from store.records import TURN, Draft
from tests.engine import SetClock, ShiftedClock, hold, line_of, python, request, verified

TURNS = [Draft(TURN, {"role": "user"}, seq=-1)]
FAR = Process("elsewhere", "", "", 1, "")


@pytest.mark.parametrize("jump", [600, -600])
def test_within_one_boot_a_set_wall_clock_changes_nothing(tmp_path: Path, jump: float) -> None:
    """Ten minutes forward or back: the holder writes on, nobody takes over early, and after the ttl somebody does."""
    clock = SetClock()
    backend = SqliteBackend(tmp_path / "store", clock=clock)
    fence = backend.acquire(request(process=FAR)).lease.fence
    clock.move(10)
    clock.set_wall(jump)
    backend.append(fence, TURNS)
    with pytest.raises(LeaseHeld):
        backend.acquire(request(incarnation="b" * 32))
    clock.move(50)
    with pytest.raises(LeaseExpired):
        backend.append(fence, TURNS)
    assert backend.acquire(request(incarnation="b" * 32)).reason == "expired"
    with pytest.raises(LeaseLost):
        backend.append(fence, TURNS)
    backend.close()
    verified(tmp_path / "store")


def test_across_boots_a_clock_set_forward_ends_a_lease_early_for_both(tmp_path: Path) -> None:
    """After a reboot only the wall clock is left; forward, the old holder is expired, taken over and fenced."""
    clock = SetClock()
    backend = SqliteBackend(tmp_path / "store", clock=clock)
    fence = backend.acquire(request(process=FAR)).lease.fence
    clock.reboot()
    clock.set_wall(600)
    with pytest.raises(LeaseExpired):
        backend.append(fence, TURNS)
    assert backend.acquire(request(incarnation="b" * 32)).reason == "expired"
    with pytest.raises(LeaseLost):
        backend.append(fence, TURNS)
    backend.close()


def test_across_boots_a_clock_set_back_delays_a_takeover_and_no_more(tmp_path: Path) -> None:
    """Ten minutes back, the lease seems to last ten minutes longer; the fence still lets in one epoch only."""
    clock = SetClock()
    backend = SqliteBackend(tmp_path / "store", clock=clock)
    fence = backend.acquire(request(process=FAR)).lease.fence
    clock.reboot()
    clock.set_wall(-600)
    clock.move(659)
    with pytest.raises(LeaseHeld) as refused:
        backend.acquire(request(incarnation="b" * 32))
    assert refused.value.details["until"] == "2026-11-03T18:55:43Z"
    backend.append(fence, TURNS)
    clock.move(1)
    assert backend.acquire(request(incarnation="b" * 32)).reason == "expired"
    with pytest.raises(LeaseLost):
        backend.append(fence, TURNS)
    backend.close()


@pytest.mark.parametrize("skew", [600, -600])
def test_two_processes_whose_wall_clocks_differ_keep_the_fence(tmp_path: Path, skew: float) -> None:
    """On one boot the contender's own wall clock does not let it in early; after a real expiry it gets in."""
    here = SqliteBackend(tmp_path / "store")
    there = SqliteBackend(tmp_path / "store", clock=ShiftedClock(skew))
    fence = here.acquire(request(ttl_ms=60_000)).lease.fence
    with pytest.raises(LeaseHeld):
        there.acquire(request(incarnation="b" * 32))
    here.append(fence, TURNS)
    there.append(fence, TURNS)
    assert there.acquire(request(incarnation="b" * 32, breaking=True)).lease.epoch == 2
    with pytest.raises(LeaseLost):
        here.append(fence, TURNS)
    here.close()
    there.close()
    verified(tmp_path / "store")


@pytest.mark.parametrize("jump", [600, -600])
def test_records_keep_their_order_when_the_clock_is_set(tmp_path: Path, jump: float) -> None:
    """Times in the log may run backwards with the clock; lsn and the chain do not."""
    clock = SetClock()
    with Client(local_dir=tmp_path / "store", clock=clock) as client, client.resume("a") as agent:
        agent.record_turn("user", "one")
        clock.set_wall(jump)
        agent.record_turn("user", "two")
        assert [each.content for each in agent.recent_turns()] == ["one", "two"]
        assert "[user #2] two" in agent.refresh().briefing
    lines = verified(tmp_path / "store")["a"]
    assert (lines[1]["at"] < lines[2]["at"]) is (jump > 0)


# -- holders that are gone ------------------------------------------------------------

HOLDER = """
import sys, time
from store.client import Client
agent = Client(local_dir=sys.argv[1]).resume("held", lease_ttl=3600)
agent.begin_action("send_email", "external", "to: a@example.com")
print(agent.epoch, flush=True)
time.sleep(600)
"""


def test_a_killed_holder_is_resumed_at_once(tmp_path: Path) -> None:
    """After kill -9 the next process takes over without waiting out the ttl, and sees the interrupted call first."""
    holder = python(HOLDER, tmp_path / "store")
    assert line_of(holder) == "1"
    with Client(local_dir=tmp_path / "store") as client:
        with pytest.raises(LeaseHeld):
            client.resume("held")
        holder.kill()
        holder.communicate()
        agent = client.resume("held")
        assert agent.epoch == 2
        assert [(each.tool, each.status) for each in agent.context.pending_actions] == [("send_email", "unknown")]
        assert "send_email" in agent.context.briefing.split("##")[1]
    leases = [each for each in verified(tmp_path / "store")["held"] if each["kind"] == "lease"]
    assert [json.loads(each["body"])["reason"] for each in leases] == ["first", "dead"]


def test_a_breaking_takeover_fences_a_live_holder(tmp_path: Path) -> None:
    """An operator who breaks a lease gets a new epoch, and the old holder's writes are refused for good."""
    backend = SqliteBackend(tmp_path / "store")
    old = hold(backend, "held")
    assert backend.acquire(request("held", incarnation="b" * 32, breaking=True)).reason == "broken"
    with pytest.raises(LeaseLost):
        backend.append(old, TURNS)
    backend.close()
