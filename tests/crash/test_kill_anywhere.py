"""SIGKILL at every system call that changes something, for every kind of write.

A first run under strace lists the calls of one operation; then the operation is
run once for each of them, on a copy of the same store, and killed on entering it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.pruning import prune
from store.records import TURN, Draft
from store.restore import restore
from store.transfer import export
from store.verify import Problem, verify
from tests.engine import ROOT, request, verified
from tests.needs import need

STRACE = "strace"
CHANGING = "openat,pwrite64,write,fsync,fdatasync,ftruncate,rename,unlink,mkdir,flock,fcntl,fchown,fchmod"
CALL = re.compile(r"^(\d+) +(\w+)\((.*)")

# sys.executable, since the python3 of a PATH may be a script that starts another one. Without
# --seccomp-bpf, which makes strace forget to deliver the signal (seen with 6.1).
TRACED = (STRACE, "-f", "-qq", "-o")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}

# Writes GO before the operation and ACK when its call has returned, with nothing in between.
SCRIPT = """
import os, sys
from store.backends.sqlite import SqliteBackend
from store.lease import LeaseRequest
from store.process import this_process
from store.records import Draft

place, operation = sys.argv[1:]

def opened():
    return SqliteBackend(place)

def request():
    return LeaseRequest("victim", "a" * 32, "victim", this_process(), 60_000)

def told(word):
    os.write(1, word)

if operation == "create":
    told(b"GO")
    backend = opened()
    backend.acquire(request())
    told(b"ACK")
    os._exit(0)
if operation == "import":
    from store.restore import restore
    backend = opened()
    with open(place + ".export", "rb") as file:
        told(b"GO")
        restore(backend, file)
        told(b"ACK")
    os._exit(0)
backend = opened()
if operation == "acquire":
    told(b"GO")
    backend.acquire(request())
    told(b"ACK")
    os._exit(0)
from store.agent import Agent
from store.keeper import Keeper
fence = backend.acquire(request()).lease.fence
agent = Agent(backend, "victim", Keeper.adopt(backend, fence, renew=False))
if operation == "turn":
    told(b"GO")
    agent.record_turn("assistant", "one")
elif operation == "batch":
    drafts = [Draft("turn", {"role": "user", "content": "x" * 9000}, seq=-1) for _ in range(3)]
    told(b"GO")
    backend.append(fence, drafts, renew=True)
elif operation == "begin":
    told(b"GO")
    agent.begin_action("send_email", "external", "x" * 40_000)
elif operation == "end":
    told(b"GO")
    agent.end_action(1, "done", "y" * 40_000)
elif operation == "resolve":
    from store.actions import ActionEnd
    told(b"GO")
    agent.resolve_action(1, ActionEnd("done", resolution="looked"), by="operator", force=True)
elif operation == "renew":
    told(b"GO")
    backend.renew(fence)
elif operation == "release":
    told(b"GO")
    backend.release(fence)
elif operation == "aside":
    told(b"GO")
    backend.set_aside(fence, 3, "diverged")
elif operation == "prune":
    from store.pruning import prune
    told(b"GO")
    prune(backend, "victim", backend.counters("victim").lsn)
elif operation == "checkpoint":
    backend._until_checkpoint = 1  # so that the next commit is followed by one
    told(b"GO")
    agent.record_turn("assistant", "one")
elif operation == "close":
    agent.record_turn("assistant", "one")
    told(b"GO")
    backend.close()
told(b"ACK")
os._exit(0)
"""

VICTIM = (sys.executable, "-S", "-c", SCRIPT)

# operation: how many records it adds to those that are there at GO
OPERATIONS = {
    "create": 1,
    "acquire": 1,
    "turn": 1,
    "batch": 3,
    "begin": 3,
    "end": 2,
    "resolve": 2,
    "renew": 0,
    "release": 0,
    "checkpoint": 1,
    "close": 0,
}
SAMPLED = ("create", "end", "resolve", "checkpoint")
KINDS_OF_APPEND = {"flock", "fcntl", "pwrite64", "fdatasync"}


@pytest.fixture(autouse=True)
def _strace() -> None:
    need("strace")


@dataclass(frozen=True)
class Ran:
    killed: bool
    acknowledged: bool
    trace: str


def run_victim(place: Path, operation: str, inject: str = "", trace: Path | None = None) -> Ran:
    injection = ["-e", f"inject={inject}"] if inject else []
    calls = inject.partition(":")[0] or CHANGING
    done = subprocess.run(
        [*TRACED, str(trace or "/dev/null"), "-e", f"trace={calls}", *injection, *VICTIM, str(place), operation],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"GO" in done.stdout, done.stderr.decode()
    assert done.returncode in (0, -9, 137), (done.returncode, done.stderr.decode())
    return Ran(done.returncode != 0, b"ACK" in done.stdout, trace.read_text() if trace else "")


def points(trace: str) -> list[tuple[str, int]]:
    """The calls between GO and ACK as (name, how many of that name its thread had made with it)."""
    made: Counter[tuple[str, str]] = Counter()
    found, inside = [], False
    for line in trace.splitlines():
        match = CALL.match(line)
        if match is None:
            continue
        thread, name, arguments = match.groups()
        made[thread, name] += 1
        if name == "write" and '"GO"' in arguments:
            inside = True
        elif name == "write" and '"ACK"' in arguments:
            found.append((name, made[thread, name]))
            break
        elif inside and (name != "openat" or "O_CREAT" in arguments):
            found.append((name, made[thread, name]))
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a little history and an open action, as a released agent left it."""
    place = tmp_path_factory.mktemp("prepared") / "store"
    backend = SqliteBackend(place)
    fence = backend.acquire(request("victim", incarnation="0" * 32)).lease.fence
    action = {"tool": "t", "class": "external", "key": "0" * 32, "status": "started", "incarnation": "a" * 32}
    backend.append(fence, [Draft(TURN, {"role": "user", "content": str(n)}, seq=-1) for n in range(5)])
    backend.append(fence, [Draft("action", action, seq=1)])
    backend.release(fence)
    backend.close()
    return place


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_at_any_call_a_write_is_whole_or_absent(operation: str, prepared: Path, memory: Path) -> None:
    """Wherever SIGKILL strikes: all of the write or none, what was acknowledged is there, the next one takes over."""

    def fresh(name: str) -> Path:
        place = memory / name
        if operation != "create":
            shutil.copytree(prepared, place)
        return place

    first = fresh("traced")
    listed = run_victim(first, operation, trace=memory / "trace")
    assert listed.acknowledged
    everything = len(verified(first)["victim"])
    nothing = everything - OPERATIONS[operation]
    where = points(listed.trace)
    if operation == "turn":
        assert {name for name, _ in where} >= KINDS_OF_APPEND
    if operation in SAMPLED:  # all that differs from an append's calls, and a sample of those that do not
        where = [each for number, each in enumerate(where) if number % 3 == 0 or each[0] not in KINDS_OF_APPEND]
    hits, outcomes = 0, set()
    for number, (name, nth) in enumerate(where):
        place = fresh(f"killed-{number}")
        ran = run_victim(place, operation, f"{name}:signal=SIGKILL:when={nth}")
        hits += ran.killed
        point = f"{operation} killed at {name} number {nth}"

        after = SqliteBackend(place)
        lease = after.lease("victim")
        found = after.counters("victim").lsn
        assert found in (nothing, everything), point
        if ran.acknowledged:
            assert found == everything, f"{point}: acknowledged and lost"
        outcomes.add(found == everything)
        if operation == "release" and ran.acknowledged:
            assert lease is not None
            assert lease.state == "released"
        acquired = after.acquire(request("victim", incarnation="b" * 32))
        assert acquired.lease.epoch == (lease.epoch + 1 if lease else 1), point
        if lease and lease.state == "held":
            assert acquired.reason == "dead", point
        after.append(acquired.lease.fence, [Draft(TURN, {"role": "user", "content": "after"}, seq=-1)])
        assert [each for each in verify(after) if isinstance(each, Problem)] == [], point
        after.close()
        assert len(verified(place)["victim"]) == found + 2, point
        shutil.rmtree(place, ignore_errors=True)
    assert hits >= len(where) - 1, "the kills missed"
    if OPERATIONS[operation]:
        assert outcomes == {True, False}, "the kills did not straddle the commit"


def test_killed_while_setting_aside_the_log_is_the_old_or_the_new_one(prepared: Path, memory: Path) -> None:
    """A switch of branches happens whole or not at all, and no record is gone either way."""
    shutil.copytree(prepared, memory / "traced")
    listed = run_victim(memory / "traced", "aside", trace=memory / "trace")
    seen = set()
    for number, (name, nth) in enumerate(points(listed.trace)):
        place = memory / f"killed-{number}"
        shutil.copytree(prepared, place)
        run_victim(place, "aside", f"{name}:signal=SIGKILL:when={nth}")
        after = SqliteBackend(place)
        lsns = [each.lsn for each in after.log("victim")]
        assert lsns in ([1, 2, 3], list(range(1, 9)))
        assert [each.lsn for each in after.log("victim", branch=1)] == list(range(1, 9))
        assert after.counters("victim").turns == (2 if len(lsns) == 3 else 5)
        seen.add(len(lsns))
        after.close()
    assert seen == {3, 8}


def test_killed_while_pruning_the_log_is_the_old_or_the_new_one(prepared: Path, memory: Path) -> None:
    """A prune takes everything away or nothing; the numbers and the open action are there, and it can be done again."""
    shutil.copytree(prepared, memory / "traced")
    listed = run_victim(memory / "traced", "prune", trace=memory / "trace")
    where = points(listed.trace)
    seen = set()
    for number, (name, nth) in enumerate(where):
        if number % 9 and number + 9 < len(where):
            continue
        place = memory / f"killed-{number}"
        shutil.copytree(prepared, place)
        ran = run_victim(place, "prune", f"{name}:signal=SIGKILL:when={nth}")
        after = SqliteBackend(place)
        first = next(after.log("victim")).lsn
        assert first in (1, 9)
        assert first == 9 or not ran.acknowledged
        assert [each for each in verify(after) if isinstance(each, Problem)] == []
        last = after.counters("victim")
        prune(after, "victim", last.lsn)
        assert next(after.log("victim")).lsn == last.lsn + 1
        assert (after.counters("victim").turns, after.counters("victim").actions) == (5, 1)
        assert len(after.in_force("victim", "action", limit=5)) == 1
        assert [each for each in verify(after) if isinstance(each, Problem)] == []
        seen.add(first)
        after.close()
        shutil.rmtree(place, ignore_errors=True)
    assert seen == {1, 9}


def test_killed_while_importing_the_agent_is_whole_or_absent(prepared: Path, memory: Path) -> None:
    """An import lands whole or not at all; one that landed is acquired under a new lineage and a higher epoch."""
    source = SqliteBackend(prepared, read_only=True)
    exported = b"".join(export(source, ["victim"]))
    source.close()
    whole = [int(each["lsn"]) for each in verified(prepared)["victim"]]

    def fresh(name: str) -> Path:
        place = memory / name
        backend = SqliteBackend(place)
        backend.release(backend.acquire(request("bystander")).lease.fence)
        backend.close()
        Path(f"{place}.export").write_bytes(exported)
        return place

    listed = run_victim(fresh("traced"), "import", trace=memory / "trace")
    seen = set()
    where = points(listed.trace)
    for number, (name, nth) in enumerate(where):
        if number % 2 and number + 8 < len(where):
            continue
        place = fresh(f"killed-{number}")
        ran = run_victim(place, "import", f"{name}:signal=SIGKILL:when={nth}")
        after = SqliteBackend(place)
        found = [each.lsn for each in after.log("victim")]
        assert found in ([], whole)
        assert found == whole or not ran.acknowledged
        assert [each for each in verify(after) if isinstance(each, Problem)] == []
        if found:
            acquired = after.acquire(request("victim", incarnation="b" * 32)).lease
            before = after.branches("victim")[0]
            assert (acquired.epoch, acquired.lineage != before.lineage) == (2, True)
        else:
            with Path(f"{place}.export").open("rb") as file:
                assert restore(after, file)[0].lsn == whole[-1]
        seen.add(bool(found))
        after.close()
    assert seen == {True, False}


@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_an_io_error_at_any_call_fails_closed(call: str, prepared: Path, memory: Path) -> None:
    """When the disk refuses a write or a sync, begin raises one of our errors, and the store goes on afterwards."""
    script = """
import os, sys
from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.errors import Unavailable, Corrupt
from store.keeper import Keeper
from store.lease import LeaseRequest
from store.process import this_process
backend = SqliteBackend(sys.argv[1])
fence = backend.acquire(LeaseRequest("victim", "a" * 32, "victim", this_process(), 60_000)).lease.fence
agent = Agent(backend, "victim", Keeper.adopt(backend, fence, renew=False))
os.write(1, b"GO")
try:
    agent.begin_action("send_email", "external", "x" * 40_000)
    os.write(1, b"ACK")
except (Unavailable, Corrupt) as problem:
    os.write(1, b"refused " + problem.code.encode())
    agent.record_turn("user", "later")
    os.write(1, b" later")
os._exit(0)
"""
    shutil.copytree(prepared, memory / "traced")
    command = [sys.executable, "-S", "-c", script]
    trace = memory / "trace"
    listing = [*TRACED, str(trace), "-e", f"trace={call},write", *command, str(memory / "traced")]
    subprocess.run(listing, env=ENVIRONMENT, check=True, capture_output=True, timeout=60)
    refused = 0
    for number, (name, nth) in enumerate(points(trace.read_text())):
        if name != call or (number % 3 and call == "pwrite64"):
            continue
        place = memory / f"failing-{number}"
        shutil.copytree(prepared, place)
        injecting = [*TRACED, "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={nth}"]
        done = subprocess.run(
            [*injecting, *command, str(place)], env=ENVIRONMENT, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        actions = [line for line in verified(place)["victim"] if line["kind"] == "action"]
        if b"ACK" in done.stdout:
            assert len(actions) == 2
        else:
            assert done.stdout.startswith(b"GOrefused store_"), done.stdout
            assert done.stdout.endswith(b" later")
            assert len(actions) == 1
            refused += 1
    assert refused
