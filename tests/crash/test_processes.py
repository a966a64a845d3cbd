"""Many processes, and what signals do to them: storms of SIGKILL, SIGSTOP past the lease, fairness."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.errors import LeaseHeld, StoreBusy
from store.records import NEXT, TURN, Draft
from tests.engine import finished, line_of, python, request, verified

OPEN = "import os, signal, sys, time\nfrom store.client import Client\n"


@pytest.fixture
def killing() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that must not outlive the test, stopped ones included."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for each in processes:
        each.kill()
        each.communicate()


STORM = (
    OPEN
    + """
place, name = sys.argv[1:]
client = Client(local_dir=place)
own = client.resume(name, lease_ttl=1)
while True:
    turn = own.record_turn("assistant", f"{name} says " + "x" * 200)
    print("own", turn.seq, flush=True)
    try:
        with client.resume("shared", lease_ttl=1, wait=0.05) as shared:
            print("shared", shared.record_turn("user", name).seq, flush=True)
    except Exception as problem:
        if getattr(problem, "code", "") not in ("lease_held", "lease_lost"):
            raise
"""
)


def test_a_storm_of_kills_loses_and_duplicates_nothing(memory: Path) -> None:
    """Six processes append under short leases while others of them are killed at random; every log stays dense."""
    place, chance = memory / "store", random.Random(20261103)
    SqliteBackend(place).close()
    told: dict[str, set[int]] = {}
    logs = []
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    until = time.monotonic() + 5
    number = 0
    while time.monotonic() < until:
        while len(running) < 6:
            log = memory / f"told-{number}"
            name = f"agent-{number % 6}-{number}"
            with log.open("wb") as out:
                running.append((name, python(STORM, place, name, stdout=out)))
            logs.append((name, log))
            number += 1
        time.sleep(chance.uniform(0.05, 0.3))
        _, victim = running.pop(chance.randrange(len(running)))
        victim.kill()
        _, err = victim.communicate(timeout=30)
        assert not err, err.decode()
    for _, victim in running:
        victim.kill()
        victim.communicate(timeout=30)
    for name, log in logs:
        for line in log.read_text().split("\n")[:-1]:
            what, seq = line.split()
            told.setdefault("shared" if what == "shared" else name, set()).add(int(seq))
    found = verified(place)
    assert sum(map(len, told.values())) > 100
    for name, seqs in told.items():
        stored = [int(each["seq"]) for each in found[name] if each["kind"] == TURN]
        assert stored == list(range(1, len(stored) + 1))
        assert set(stored) >= seqs, "acknowledged and lost"


def test_all_records_of_many_processes_land(memory: Path) -> None:
    """Eight processes that write 250 records each to one store lose none."""
    script = OPEN + "client = Client(local_dir=sys.argv[1])\n"
    script += "with client.resume(sys.argv[2]) as agent:\n"
    script += "    for number in range(250):\n        agent.record_turn('user', str(number))\nclient.close()\n"
    for process in [python(script, memory / "store", f"writer-{each}") for each in range(8)]:
        finished(process, timeout=120)
    logs = verified(memory / "store")
    assert {name: sum(each["kind"] == TURN for each in lines) for name, lines in logs.items()} == {
        f"writer-{each}": 250 for each in range(8)
    }


def test_twenty_short_processes_at_once_each_land(memory: Path) -> None:
    """Twenty processes that open a new store, write and end at one moment all succeed and say nothing on stderr."""
    script = OPEN + "client = Client(local_dir=sys.argv[1])\n"
    script += "client.resume(sys.argv[2]).record_turn('user', 'x')\n"  # and no close: the end of the process must do
    for process in [python(script, memory / "store", f"short-{each}") for each in range(20)]:
        finished(process, timeout=120)
    logs = verified(memory / "store")
    assert len(logs) == 20
    assert all(len(lines) == 2 for lines in logs.values())


def test_twenty_processes_with_one_token_begin_twenty_actions(memory: Path) -> None:
    """Parallel commands of one shell session all begin theirs, large arguments included; no race is lost for good."""
    backend = SqliteBackend(memory / "store")
    token = backend.acquire(request("shell")).lease.fence.token(backend.store_id)
    script = "import sys\nfrom store.access import exported\nfrom store.backends.sqlite import SqliteBackend\n"
    script += "backend = SqliteBackend(sys.argv[1])\nagent = exported(backend, 'shell', sys.argv[2])\n"
    script += "sys.stdin.read()\nfor n in range(3):\n"
    script += (
        "    agent.begin_action('t', 'pure', 'x' * (10_000 if n else 1))\n    agent.update_working_state(step=n)\n"
    )
    running = [python(script, memory / "store", token, stdin=subprocess.PIPE) for _ in range(20)]
    for each in running:
        assert each.stdin is not None
        each.stdin.close()
        each.stdin = None
    for each in running:
        finished(each, timeout=120)
    lines = verified(memory / "store")["shell"]
    assert sorted(int(each["seq"]) for each in lines if each["kind"] == "action") == list(range(1, 61))
    backend.close()


# -- SIGSTOP ------------------------------------------------------------------------------

STALLED = (
    OPEN
    + """
from store.errors import RecallError
events = []
client = Client(local_dir=sys.argv[1])
agent = client.resume("stalled", lease_ttl=1, on_lease=lambda event, epoch: events.append((event, epoch)))
action = agent.begin_action("send_email", "external", "to: a@example.com")
agent.record_turn("user", "before")
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
outcome = []
for work in (
    lambda: agent.record_turn("user", "late"),
    lambda: agent.begin_action("send_email", "external", "late"),
    lambda: agent.end_action(action.seq, "done"),
    lambda: agent.record_turn("user", "late again"),
):
    try:
        work()
        outcome.append("landed")
    except RecallError as problem:
        outcome.append(problem.code)
print(*outcome, agent.lease_held, events, flush=True)
"""
)


def wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_stopped_past_its_lease_and_taken_over_a_late_write_is_lease_lost(
    tmp_path: Path, killing: list[subprocess.Popen[bytes]]
) -> None:
    """SIGSTOP, the ttl passes, another process takes over, SIGCONT: every late write is refused and nothing landed."""
    place = tmp_path / "store"
    stalled = python(STALLED, place)
    killing.append(stalled)
    assert line_of(stalled) == "ready"
    wait_until_stopped(stalled)
    backend = SqliteBackend(place)
    with pytest.raises(LeaseHeld):  # stopped is not dead
        backend.acquire(request("stalled", incarnation="b" * 32))
    time.sleep(1.1)
    taken = backend.acquire(request("stalled", incarnation="b" * 32))
    assert (taken.reason, taken.lease.epoch) == ("expired", 2)
    os.kill(stalled.pid, signal.SIGCONT)
    told = finished(stalled)
    assert told.startswith("lease_lost lease_lost lease_lost lease_lost False")
    assert "('lost', 1)" in told
    lines = verified(place)["stalled"]
    assert [each["kind"] for each in lines] == ["lease", "tool", "action", "turn", "lease"]
    backend.close()


def test_stopped_past_its_lease_with_nobody_in_between_it_acquires_again_and_says_so(
    tmp_path: Path, killing: list[subprocess.Popen[bytes]]
) -> None:
    """Before anybody else: a new epoch, told to the caller and in the log, and its running action stays its own."""
    stalled = python(STALLED, tmp_path / "store")
    killing.append(stalled)
    assert line_of(stalled) == "ready"
    wait_until_stopped(stalled)
    time.sleep(1.1)
    os.kill(stalled.pid, signal.SIGCONT)
    told = finished(stalled)
    assert told.startswith("landed landed landed landed True")
    assert "('again', 2)" in told
    lines = verified(tmp_path / "store")["stalled"]
    assert [each["kind"] for each in lines[:5]] == ["lease", "tool", "action", "turn", "lease"]
    assert [each["kind"] for each in lines[5:]] == ["turn", "action", "action", "turn"]
    assert [int(each["epoch"]) for each in lines] == [1] * 4 + [2] * 5
    assert '"reason":"again"' in lines[4]["body"]


STOPPED_INSIDE = (
    OPEN
    + """
from store.clock import SystemClock
from store.errors import RecallError

class StopsInside(SystemClock):
    armed = 0
    def now(self):
        if self.armed:
            self.armed -= 1
            if not self.armed:  # the look just before the commit: the write lock is held
                os.kill(os.getpid(), signal.SIGSTOP)
        return super().now()

clock = StopsInside()
from store.backends.sqlite import SqliteBackend
from store.lease import LeaseRequest
from store.process import this_process
from store.records import Draft
backend = SqliteBackend(sys.argv[1], clock=clock)
fence = backend.acquire(LeaseRequest("inside", "a" * 32, "h", this_process(), 1000)).lease.fence
print("ready", flush=True)
clock.armed = 2
try:
    backend.append(fence, [Draft("turn", {"role": "user"}, seq=-1)])
    print("landed")
except RecallError as problem:
    print(problem.code)
"""
)


def test_stopped_inside_its_transaction_others_are_told_who_and_its_commit_is_refused(
    tmp_path: Path, killing: list[subprocess.Popen[bytes]]
) -> None:
    """Whoever is stopped holding the write lock is named by pid; continued past its deadline, it lands nothing."""
    place = tmp_path / "store"
    stalled = python(STOPPED_INSIDE, place)
    killing.append(stalled)
    assert line_of(stalled) == "ready"
    wait_until_stopped(stalled)
    started = time.monotonic()
    with pytest.raises(StoreBusy) as refused:
        SqliteBackend(place, lock_timeout=0.3)
    assert 0.25 < time.monotonic() - started < 5
    assert f"pid {stalled.pid} (stopped by a signal)" in refused.value.message
    with SqliteReader(place) as reader:  # looking goes on
        assert reader.counters("inside").lsn == 1
    time.sleep(1.1)
    os.kill(stalled.pid, signal.SIGCONT)
    assert finished(stalled) == "lease_expired\n"
    assert len(verified(place)["inside"]) == 1


class SqliteReader:
    def __init__(self, place: Path) -> None:
        self._backend = SqliteBackend(place, read_only=True)

    def __enter__(self) -> SqliteBackend:
        return self._backend

    def __exit__(self, *_: object) -> None:
        self._backend.close()


def test_a_killed_holder_of_the_write_lock_frees_it(tmp_path: Path, killing: list[subprocess.Popen[bytes]]) -> None:
    """SIGKILL inside a transaction gives the lock back at once, and the transaction is gone."""
    place = tmp_path / "store"
    stalled = python(STOPPED_INSIDE, place)
    killing.append(stalled)
    assert line_of(stalled) == "ready"
    wait_until_stopped(stalled)
    stalled.kill()
    stalled.wait()
    backend = SqliteBackend(place, lock_timeout=1)
    assert backend.acquire(request("inside", incarnation="b" * 32)).reason == "dead"
    backend.close()
    assert [each["kind"] for each in verified(place)["inside"]] == ["lease", "lease"]


def test_many_writers_do_not_leave_the_checkpoint_to_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log of 32 that began together and write in turn stays about as small as that of one."""
    handles = [SqliteBackend(tmp_path / "store") for _ in range(32)]
    fences = []
    for number, each in enumerate(handles):
        asked = request(f"agent-{number}")
        with monkeypatch.context() as patch:  # in processes of their own, whose threads have pids too
            patch.setattr(os, "getpid", lambda number=number: 4000 + 3 * number)
            fences.append(each.acquire(asked).lease.fence)
    for _ in range(40):
        for each, fence in zip(handles, fences, strict=True):
            each.append(fence, [Draft(TURN, {"role": "user", "content": "hello"}, seq=NEXT)])
    size = (tmp_path / "store" / "recall.db-wal").stat().st_size
    for each in handles:
        each.close()
    assert size < 6_000_000  # 40 commits of each are 15 MB
