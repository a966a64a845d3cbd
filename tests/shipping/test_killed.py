"""Real processes on a real bucket, killed or stopped at every request that they make.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.agent import Agent
from store.errors import LeaseHeld
from store.records import ACTION
from store.shipping.syncing import push
from tests.shipping import faults
from tests.shipping.machines import AGENT, attach, resumed
from tests.shipping.proxy import Fault
from tests.shipping.real import World, left, store_of
from tests.shipping.workers import Worker, Workers

on_seaweedfs = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
on_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Processes that work for an agent."""
    workers = Workers(tmp_path)
    yield workers
    workers.close()


def killed_at(world: World, workers: Workers, what: str, agent: str, number: int, *, answered: bool) -> Worker | None:
    """A process that was killed at its request ``number``: before the server saw it, or when it had done it.

    None when it ended without making so many.
    """
    world.proxy.seen.clear()
    gate: Fault = faults.Pause(answered=True) if answered else faults.Hang()
    world.proxy.inject(gate, skip=number)
    attach(world.directory / agent, world.location)
    worker = workers.start(what, world.directory / agent, agent)
    if not worker.stopped_at(world.proxy, number):
        world.proxy.heal()
        return None
    if isinstance(gate, faults.Pause):
        gate.wait_for_waiting()
    else:
        gate.wait()
    worker.kill()
    world.proxy.heal()
    for _, lsn, link in worker.said("durable"):
        world.told(agent, int(lsn), bytes.fromhex(link))
    return worker


def check_settled(world: World, worker: Worker, other: Agent) -> None:
    """Each tool that ran has its intent in the log, with its key; an external call of unknown fate is unknown."""
    logged = [json.loads(line) for _, line, _ in world.log(other.id)]
    intents = {each["key"]: json.loads(each["body"]) for each in logged if each["kind"] == ACTION}
    for _, seq, key in worker.said("ran"):
        assert intents[f"act:{seq}"]["key"] == key
    assert {each.status for each in other.pending_actions() if each.tool == "email"} <= {"unknown"}


@pytest.mark.parametrize("answered", [False, True], ids=["before it arrived", "when it was done"])
@on_seaweedfs
def test_13_killed_at_any_request_and_resumed_on_another_machine(
    world: World, workers: Workers, answered: bool
) -> None:
    """Rows 13, 14 and 17, the directory gone: what was durable goes on elsewhere; the old one adds nothing."""
    points = 0
    for number in itertools.count():
        agent = f"agent-{number}"
        worker = killed_at(world, workers, "life", agent, number, answered=answered)
        if worker is None:
            break
        points += 1
        shutil.move(world.directory / agent, world.directory / f"kept-{number}")
        other = world.successor("b", agent)
        check_settled(world, worker, other)
        other.begin_action("charge", "idempotent", "by the successor")
        world.promise(store_of(other), agent=agent)
        other.release()
        shutil.move(world.directory / f"kept-{number}", world.directory / agent)
        back = world.machine(agent, bucket=world.direct)
        again = resumed(back, agent)
        assert again.epoch >= 4 or not worker.said("epoch")
        again.release()
        world.check(agent)
        world.forget()
    assert points >= 8, "resume, begin, end, spill and release are as many requests at least"


@pytest.mark.parametrize("answered", [False, True], ids=["before it arrived", "when it was done"])
@on_moto
def test_13_killed_at_any_request_and_resumed_in_its_directory(world: World, workers: Workers, answered: bool) -> None:
    """Rows 13, 14 and 17, the directory kept: all that was written is carried, nothing is set aside or there twice."""
    points = 0
    for number in itertools.count():
        agent = f"agent-{number}"
        worker = killed_at(world, workers, "life", agent, number, answered=answered)
        if worker is None:
            break
        points += 1
        store = world.machine(agent, bucket=world.direct)
        written = [record.hash for record in store.log(agent)]
        again = resumed(store, agent)  # at once: the process is provably dead
        assert left(store, agent) == []
        check_settled(world, worker, again)
        again.release()
        assert [link for _, _, link in world.log(agent)][: len(written)] == written
        world.check(agent)
        world.forget()
    assert points >= 8


@on_seaweedfs
@pytest.mark.parametrize("answered", [False, True], ids=["before it arrived", "when it was done"])
def test_13_a_takeover_killed_at_any_request_is_taken_over_again(
    world: World, workers: Workers, answered: bool
) -> None:
    """Rows 13 and 14, of a takeover: each attempt is an epoch of its own or none, and the log stays whole."""
    agent = AGENT
    store = world.machine("first", bucket=world.direct)
    first = resumed(store)
    for number in range(12):
        first.record_turn("user", f"{number} " + "x" * 7000)
    first.begin_action("email", "external", "1")
    world.promise(store)
    for number in itertools.count():
        if killed_at(world, workers, "takeover", agent, number, answered=answered) is None:
            break
        shutil.rmtree(world.directory / agent)
    assert number >= 6
    last = world.successor("last")
    assert [each.status for each in last.pending_actions() if each.tool == "email"] == ["unknown"]
    assert len(last.recent_turns(99)) == 12
    last.release()
    world.check()


@on_moto
@pytest.mark.parametrize("zombie", [False, True], ids=["an empty machine", "one that was overtaken"])
def test_26_killed_in_the_middle_of_a_restore_the_directory_goes_on(
    world: World, workers: Workers, zombie: bool
) -> None:
    """Rows 17 and 26: with some of the segments taken in, and set aside what contradicts them, the rest comes later."""
    directory = world.directory / AGENT
    attach(directory, world.location)
    if zombie:
        overtaken = resumed(world.machine(AGENT, bucket=world.direct))
        overtaken.begin_action("charge", "idempotent", "1")
        world.promise(store_of(overtaken))
        overtaken.record_turn("user", "never shipped")
    other = world.successor("b")
    for number in range(3):
        for _ in range(10):
            other.record_turn("user", str(number) * 7000)
        other.begin_action("lookup", "idempotent", str(number))
    world.promise(store_of(other))
    other.release()
    assert len(world.head().segs) == 3
    world.forget()
    gate = world.proxy.inject(faults.Hang(), "get", key=".jsonl.gz", skip=1)
    worker = workers.start("takeover", directory, AGENT)
    gate.wait()
    worker.kill()
    world.proxy.heal()
    store = world.machine(AGENT, bucket=world.direct)
    assert 10 < store.counters(AGENT).lsn < world.head().last, "it was in the middle"
    again = resumed(store)
    assert len(again.recent_turns(99)) == 30
    assert left(store) == ([["turn:1"]] if zombie else [])
    again.release()
    world.check()


@on_seaweedfs
def test_25_evidence_that_a_kill_kept_from_the_bucket_is_filed_by_the_next_push(world: World, workers: Workers) -> None:
    """Row 25: killed between setting aside and filing, the records are listed here, and sync push brings them there."""
    directory = world.directory / AGENT
    zombie = resumed(world.machine(AGENT, bucket=world.direct))
    zombie.record_turn("user", "never shipped")
    other = world.successor("b")
    other.begin_action("lookup", "idempotent", "1")
    world.promise(store_of(other))
    other.release()
    world.forget()
    gate = world.proxy.inject(faults.Hang(), "put", when=lambda request: "/aside/" in request.target)
    worker = workers.start("takeover", directory, AGENT)
    gate.wait()
    worker.kill()
    world.proxy.heal()
    store = world.machine(AGENT, bucket=world.direct)
    assert left(store) == [["lease:1", "turn:1"]] and world.filed() == []
    push(store, AGENT)
    assert any("never shipped" in json.dumps(each) for each in world.filed())
    resumed(store).release()
    world.check()


# -- SIGSTOP -----------------------------------------------------------------------------------------


def patiently_resumed(world: World, name: str) -> Agent:
    """The agent on another machine, as soon as the ttl of its holder is over."""
    store = world.machine(name, bucket=world.direct)
    end = time.monotonic() + 20
    while True:
        try:
            return resumed(store)
        except LeaseHeld:
            assert time.monotonic() < end
            time.sleep(0.1)


@on_moto
def test_5_stopped_past_its_ttl_a_process_writes_nothing_more(world: World, workers: Workers) -> None:
    """Rows 5 and 12, SIGSTOP past the ttl, takeover, SIGCONT: every late write is refused, before it is made."""
    attach(world.directory / "a", world.location)
    worker = workers.start("sleeper", world.directory / "a", AGENT)
    worker.wait_for("stopped")
    other = patiently_resumed(world, "b")
    assert [(each.tool, each.status) for each in other.pending_actions()] == [("email", "unknown")]
    worker.signal(signal.SIGCONT)
    worker.wait_for("end")
    assert worker.said()[-5:-1] == [["lease_lost"], ["lease_lost"], ["lease_lost"], ["done"]]
    (told,) = worker.said("durable")
    world.told(AGENT, int(told[1]), bytes.fromhex(told[2]))
    other.release()
    back = resumed(world.machine("a", bucket=world.direct))
    assert left(store_of(back)) == []  # it was refused before it wrote anything
    back.release()
    world.check()


@on_seaweedfs
def test_2_stopped_in_the_middle_of_a_barrier_its_write_comes_too_late(world: World, workers: Workers) -> None:
    """Rows 2 and 5: stopped while its PUT is on the way, which lands after the takeover: 412, lost, and set aside."""
    attach(world.directory / "a", world.location)
    gate = world.proxy.inject(faults.Pause(), "put", key="head.json", skip=1)
    worker = workers.start("barrier", world.directory / "a", AGENT)
    gate.wait_for_waiting()
    worker.signal(signal.SIGSTOP)
    other = patiently_resumed(world, "b")
    assert other.pending_actions() == []
    gate.release()
    gate.wait()
    worker.signal(signal.SIGCONT)
    worker.wait_for("end")
    assert [each.reply.status for each in world.puts() if each.fault is gate and each.reply] == [412]
    assert worker.said()[1:3] == [["lease_lost"], ["lease_lost"]]
    other.release()
    back = resumed(world.machine("a", bucket=world.direct))
    assert left(store_of(back)) == [["lease:1", "tool:email", "act:1"]]
    back.release()
    world.check()


# -- several processes in one directory ---------------------------------------------------------------


def test_18_the_writes_of_two_processes_never_cross(world: World, workers: Workers) -> None:
    """Row 18, two processes in one directory: each version is made from the one before it, without a single 412."""
    store = world.machine("a", bucket=world.direct)
    agent = resumed(store)
    both = [workers.start("session", world.directory / "a", AGENT, agent.token, name, 12) for name in ("x", "y")]
    for worker in both:
        worker.wait_for("end")
        for _, lsn, link in worker.said("durable"):
            world.told(AGENT, int(lsn), bytes.fromhex(link))
    puts = world.puts()
    assert {each.reply.status for each in puts if each.reply} == {200}
    etags = [each.reply.headers["etag"] for each in puts if each.reply]
    assert [each.request.headers["if-match"] for each in puts][1:] == etags[:-1]
    assert sum(name.startswith("act:") for name in world.names()) == 24
    assert agent.release()
    world.check()


@on_moto
def test_18_a_forked_child_writes_nothing_and_gives_nothing_back(world: World, workers: Workers) -> None:
    """Row 18, a fork: the child is refused, the lease stays the parent's, and the parent ships on."""
    attach(world.directory / "a", world.location)
    worker = workers.start("forking", world.directory / "a", AGENT)
    worker.wait_for("end")
    assert worker.said()[0] == ["lease_not_held", "lease_not_held"]
    (told,) = worker.said("durable")
    world.told(AGENT, int(told[1]), bytes.fromhex(told[2]))
    assert world.head().state == "released" and world.head().epoch == 1
    assert [name for name in world.names() if name.startswith("act:")] == ["act:1", "act:2"]
    world.machine("a")
    world.check()


@on_seaweedfs
def test_18_a_child_forked_in_the_middle_of_a_write_keeps_no_lock(world: World, workers: Workers) -> None:
    """Row 18, a fork while another thread's PUT is under way: the child lives on, and the parent ships on at once."""
    attach(world.directory / "a", world.location)
    gate = world.proxy.inject(faults.Pause(), "put", key="head.json", skip=1)
    worker = workers.start("forking_midway", world.directory / "a", AGENT)
    gate.wait_for_waiting()
    (world.directory / "a" / "go").touch()
    worker.wait_for("child")
    gate.release()
    assert " ".join(worker.wait_for("released")) == "released and the child lives"
    for _, lsn, link in worker.said("durable"):
        world.told(AGENT, int(lsn), bytes.fromhex(link))
    world.machine("a")
    world.check()


@on_seaweedfs
def test_17_a_crash_between_segment_and_head_leaves_an_orphan_and_no_gap(world: World, workers: Workers) -> None:
    """Row 17, crash between segment and head: nothing names the segment; the next process goes on."""
    attach(world.directory / "a", world.location)

    def segments() -> list[str]:
        return [each.request.key for each in world.proxy.of("put") if each.request.key.endswith(".jsonl.gz")]

    gate = world.proxy.inject(faults.Hang(), "put", key="head.json", when=lambda request: bool(segments()))
    worker = workers.start("life", world.directory / "a", AGENT)
    gate.wait()
    worker.kill()
    world.proxy.heal()
    orphans = {each.rpartition("/")[2] for each in segments()}
    assert orphans and world.head().segs == ()
    back = resumed(world.machine("a"))
    assert world.head().last > 5 and left(store_of(back)) == []
    named = {f"agents/{AGENT}/{each.k}" for each in world.head().segs}
    there = {each.key for each in world.direct.list(f"agents/{AGENT}/seg/")}
    assert named <= there and orphans <= {each.rpartition("/")[2] for each in there}
    back.release()
    world.check()
