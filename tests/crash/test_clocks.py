"""Clocks that are set, and holders that are gone: takeovers may be late, the fence holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import LeaseExpired, LeaseHeld, LeaseLost
from store.process import Process, describe, provably_dead, this_process
from store.records import TURN, Draft
from tests.engine import SetClock, ShiftedClock, hold, line_of, python, request, run_python, verified

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


# -- provably dead ----------------------------------------------------------------------------


def ended_process() -> Process:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    found = describe(child.pid)
    child.kill()
    child.communicate()
    return found


def test_a_process_that_is_gone_is_dead() -> None:
    """Same host, boot, namespace, and no such pid: that is proof."""
    assert provably_dead(ended_process())


def test_a_running_or_stopped_process_is_not_dead() -> None:
    """This process, a child, and a child stopped by SIGSTOP are alive."""
    assert not provably_dead(this_process())
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = describe(child.pid)
        assert not provably_dead(found)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert not provably_dead(found)
    finally:
        child.kill()
        child.communicate()


def test_a_zombie_is_dead() -> None:
    """A killed process that its parent has not waited for cannot act any more."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    found = describe(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert provably_dead(found)
    child.communicate()


def test_a_pid_that_was_reused_is_not_the_holder() -> None:
    """The pid runs, but started at another time: the holder is dead."""
    assert provably_dead(replace(this_process(), start="1"))


@pytest.mark.parametrize("field", ["host", "boot", "pidns"])
def test_what_another_host_boot_or_container_says_is_no_proof(field: str) -> None:
    """Absence proves nothing about a pid of elsewhere."""
    assert not provably_dead(replace(ended_process(), **{field: "another"}))  # type: ignore[arg-type]


def test_without_a_boot_id_or_a_start_time_nothing_is_proved() -> None:
    """An unknown boot means alive; an unknown start time means that a running pid may be the holder."""
    assert not provably_dead(replace(ended_process(), boot=""))
    assert not provably_dead(replace(this_process(), start=""))
    assert provably_dead(replace(ended_process(), start=""))


@pytest.mark.parametrize("pid", [0, -1, 2**31, 10**30])
def test_a_number_that_is_no_pid_is_neither_alive_nor_dead(pid: int) -> None:
    """Numbers that kill(2) takes for groups, or not at all, prove nothing and describe nobody."""
    assert not provably_dead(replace(this_process(), pid=pid))
    with pytest.raises(ProcessLookupError):
        describe(pid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not signal root's processes")
def test_a_process_that_may_not_be_signalled_is_alive() -> None:
    """EPERM says that the pid exists; with the right start time it is the holder, alive."""
    script = """
import json, os, sys
from store.process import Process, describe, provably_dead, this_process
provably_dead(this_process())  # what that imports may not be readable for the other user
os.setgroups([]); os.setgid(65534); os.setuid(65534)
given = Process(*json.loads(sys.argv[1]))
print(provably_dead(given), describe(given.pid).pid == given.pid)
"""
    found = this_process()
    fields = json.dumps([found.host, found.boot, found.pidns, found.pid, found.start])
    assert run_python(script, fields) == "False True\n"


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
    body = json.loads(verified(tmp_path / "store")["held"][2]["body"])
    assert body["reason"] == "dead"


def test_a_breaking_takeover_fences_a_live_holder(tmp_path: Path) -> None:
    """An operator who breaks a lease gets a new epoch, and the old holder's writes are refused for good."""
    backend = SqliteBackend(tmp_path / "store")
    old = hold(backend, "held")
    assert backend.acquire(request("held", incarnation="b" * 32, breaking=True)).reason == "broken"
    with pytest.raises(LeaseLost):
        backend.append(old, TURNS)
    backend.close()
