"""Resuming: the seed's program, leases held, deferred, lapsed and lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from recall_cli import Client
from store.agent import Agent
from store.errors import (
    InvalidInput,
    LeaseExpired,
    LeaseHeld,
    LeaseLost,
    LeaseNotHeld,
    StoreBusy,
)
from store.values import Action
from tests.agent.conftest import adopted
from tests.engine import AGENT, SetClock, run_python, verified

SEEDS_BRIEFING = """\
You are agent billing-migrator, resuming after your previous process stopped. Continue from your notes and last turns \
below; check only what you have reason to doubt.

## Working state (version 2, step 0, written 2026-11-03T18:54:43Z)
Goal: Move billing to the v2 API
Plan:
1. find call sites
2. migrate them
3. run the tests
Progress: 1 of 12 files migrated
Last milestone: call sites found

## Where your work lives
- wip (git_ref): repo=github.com/acme/billing branch=agent/wip

## Your most recent turns, verbatim
[assistant #1] 12 call sites found; migrating api/checkout.py first."""


def test_the_seeds_program_prints_its_briefing_to_the_letter(tmp_path: Path) -> None:
    """The program of the design runs as written, and what it prints is what the design shows."""
    local_dir, clock = str(tmp_path / "recall-data"), SetClock()
    with Client(local_dir=local_dir, agent=True, clock=clock) as client, client.resume("billing-migrator") as agent:
        assert agent.context.fresh is True
        agent.update_working_state(
            goal="Move billing to the v2 API", plan=["find call sites", "migrate them", "run the tests"]
        )
        agent.set_pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "agent/wip"})
        agent.record_turn("assistant", "12 call sites found; migrating api/checkout.py first.")
        agent.milestone("call sites found", progress="1 of 12 files migrated")
    with Client(local_dir=local_dir, agent=True, clock=clock) as client, client.resume("billing-migrator") as agent:
        assert agent.context.fresh is False
        assert agent.context.briefing.rstrip("\n") == SEEDS_BRIEFING
    verified(local_dir)


def test_a_second_resume_is_refused_with_lease_held(client: Client, agent: Agent) -> None:
    """While one holds the lease, another resume names the holder and the time, and takes nothing."""
    with pytest.raises(LeaseHeld) as refused:
        client.resume(AGENT, holder=client.backend.lease(AGENT).holder)  # type: ignore[union-attr]
    assert refused.value.code == "lease_held"
    assert refused.value.details["until"] == "2026-11-03T18:55:43Z"
    agent.record_turn("user", "still mine")


def test_a_deferred_resume_reads_everything_and_writes_nothing(client: Client, agent: Agent) -> None:
    """Without the lease the whole context is there, reads work, and writes say lease_not_held; acquire tries once."""
    agent.record_turn("user", "hello")
    second = client.resume(AGENT, defer_lease=True)
    assert (second.lease_held, second.epoch, second.context.lease_held) == (False, 0, False)
    assert "hello" in second.context.briefing
    assert [each.content for each in second.recent_turns()] == ["hello"]
    for work in (lambda: second.record_turn("user", "x"), lambda: second.begin_action("t", "pure")):
        with pytest.raises(LeaseNotHeld) as refused:
            work()
        assert refused.value.code == "lease_not_held"
    assert second.acquire() is False
    agent.record_turn("user", "meanwhile")
    agent.release()
    assert second.acquire() is True
    assert second.context.epoch == 2
    assert second.record_turn("assistant", "after").seq == 3
    assert second.acquire() is True


def test_a_lease_that_was_lost_is_lost_for_good(client: Client, agent: Agent, clock: SetClock) -> None:
    """After another epoch every write says lease_lost, also when that one has ended."""
    clock.move(61)
    other = client.resume(AGENT)
    other.release()
    for _ in range(2):
        with pytest.raises(LeaseLost) as refused:
            agent.record_turn("user", "late")
        assert refused.value.code == "lease_lost"
    assert not agent.lease_held
    assert agent.recent_turns() == []


def test_a_lapsed_lease_is_acquired_again_and_told(client: Client, clock: SetClock) -> None:
    """Where nobody acted in between, a write goes on under a new epoch; on_lease and the log say so."""
    told: list[tuple[str, int]] = []
    agent = client.resume(AGENT, on_lease=lambda event, epoch: told.append((event, epoch)))
    running = agent.begin_action("send_email", "external", "to: a@example.com")
    clock.move(3600)
    agent.record_turn("user", "late")
    assert told == [("acquired", 1), ("again", 2)]
    assert [(each.seq, each.status) for each in agent.pending_actions()] == [(running.seq, "started")]
    assert agent.end_action(running.seq, "done").status == "done"


def test_an_adopted_lease_is_not_acquired_again(client: Client, agent: Agent, clock: SetClock) -> None:
    """A shell's token under an expired lease is refused, though nobody took over."""
    shell = adopted(client, renew=True)
    clock.move(50)
    shell.record_turn("user", "renews")
    clock.move(50)
    shell.record_turn("user", "in time")
    clock.move(60)
    with pytest.raises(LeaseExpired) as refused:
        shell.record_turn("user", "late")
    assert refused.value.code == "lease_expired"
    assert len(agent.recent_turns()) == 2


def test_after_a_release_the_same_process_is_another_actor(client: Client, agent: Agent) -> None:
    """Acquired anew after a release or a loss, it has a new incarnation, so that an old token stays dead."""
    running = agent.begin_action("send_email", "external")
    before = client.backend.lease(AGENT)
    agent.release()
    client.resume(AGENT).release()
    assert agent.acquire()
    after = client.backend.lease(AGENT)
    assert before is not None
    assert after is not None
    assert after.incarnation != before.incarnation
    assert agent.epoch == 3
    assert agent.view.action(running.seq).status == "unknown"
    agent.record_turn("user", "goes on")


def test_a_background_thread_renews_the_lease(tmp_path: Path) -> None:
    """A lease of one second outlives two without a write, by renewals that leave no record."""
    with Client(local_dir=tmp_path / "store") as client:
        agent = client.resume(AGENT, lease_ttl=1)
        deadline = time.monotonic() + 2.2
        while time.monotonic() < deadline:
            lease = client.backend.lease(AGENT)
            assert lease is not None
            time.sleep(0.1)
        with pytest.raises(LeaseHeld):
            client.resume(AGENT)
        agent.record_turn("user", "x")
        agent.release()
    assert verified(tmp_path / "store")[AGENT][-1]["kind"] == "turn"


def test_waiting_for_the_lease(tmp_path: Path) -> None:
    """resume(wait=) gets the lease when the holder releases within that time."""
    with Client(local_dir=tmp_path / "store") as client:
        holder = client.resume(AGENT)
        threading.Timer(0.3, holder.release).start()
        assert client.resume(AGENT, wait=20).epoch == 2


def test_a_resume_that_fails_keeps_no_lease(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """If settling cannot be written, the lease is given back: the caller has nothing to release it with."""
    agent = client.resume(AGENT)
    agent.begin_action("send_email", "external")
    agent.release()

    def full(self: Agent) -> list[Action]:
        raise StoreBusy(path="x", holder="y", waited="0")

    with monkeypatch.context() as patched:
        patched.setattr(Agent, "settle", full)
        with pytest.raises(StoreBusy):
            client.resume(AGENT)
    assert client.resume(AGENT).epoch == 3


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ttl": 0},
        {"lease_ttl": float("nan")},
        {"lease_ttl": float("inf")},
        {"lease_ttl": "60"},
        {"token_budget": 511},
        {"token_budget": 1.5},
        {"output_threshold": "many"},
        {"wait": float("nan")},
        {"wait": "x"},
        {"wait": -1},
        {"wait": None},
        {"wait": True},
        {"holder": ""},
        {"holder": "x" * 201},
        {"holder": "a\x00b"},
    ],
)
def test_a_bad_option_takes_no_lease(client: Client, options: dict[str, Any]) -> None:
    """Options are checked before anything is written."""
    with pytest.raises(InvalidInput):
        client.resume(AGENT, **options)
    assert client.backend.lease(AGENT) is None


@pytest.mark.parametrize(
    "options",
    [
        {"local_dir": ""},
        {"local_dir": 5},
        {"local_dir": b"store"},
        {"local_dir": "a\0b"},
        {"lock_timeout": "x"},
        {"lock_timeout": float("nan")},
        {"lock_timeout": -1},
    ],
)
def test_a_bad_option_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """An empty path is not the current directory, and no other mistake leaves a file."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput):
        Client(**{"local_dir": tmp_path / "store", **options})
    assert list(tmp_path.iterdir()) == []


def test_to_wait_for_ever_is_a_time_to_wait(client: Client) -> None:
    """Infinity is accepted; a path object too."""
    assert client.resume(AGENT, wait=float("inf")).epoch == 1
    with Client(local_dir=Path(client.backend.directory), lock_timeout=float("inf")) as other:
        assert other.backend.lease(AGENT) is not None


def test_too_many_open_files_are_named(tmp_path: Path) -> None:
    """A process at its limit is told of the limit, not that the store is read-only."""
    script = """
        import os, resource, sys
        from recall_cli import Client
        from store.errors import StoreUnreadable
        Client(local_dir=sys.argv[1]).close()
        used = len(os.listdir("/proc/self/fd"))
        for room in range(3):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1 + room, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            try:
                Client(local_dir=sys.argv[1])
            except StoreUnreadable as problem:
                print(problem.message, problem.hint)
        """
    said = run_python(script, tmp_path / "store")
    assert "too many open files" in said
    assert "ulimit -n" in said


@pytest.mark.parametrize("name", ["", "..", "-rf", ".hidden", "a b", "a/b", "ä", "x" * 129, "a\n", "a:b", None, 7])
def test_a_bad_agent_id_is_refused(client: Client, name: Any) -> None:
    """Ids are 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit."""
    with pytest.raises(InvalidInput) as refused:
        client.resume(name)
    assert "\n" not in refused.value.message


def test_ids_that_differ_only_in_case_are_two_agents(client: Client) -> None:
    """Nothing of one shows in the other; the longest id works."""
    for name in ("Case", "case", "x" * 128):
        client.resume(name).record_turn("user", name)
    for name in ("Case", "case", "x" * 128):
        assert [each.content for each in client.resume(name, defer_lease=True).recent_turns()] == [name]


def test_a_held_lease_is_waited_for_with_wait(client: Client) -> None:
    """Python is told of Python's way to wait."""
    client.resume("held")
    with pytest.raises(LeaseHeld) as refused:
        client.resume("held")
    assert refused.value.hint == "wait for it with wait=SECONDS; who it is: recall lease show held"
