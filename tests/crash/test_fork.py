"""Forked processes: nothing of SQLite's or of the lease crosses a fork. Each case is a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.engine import run_python, verified

# Forking a process with threads warns from Python 3.12 on; that it is done is the point here.
FORK = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from store.client import Client
from store.errors import RecallError

place = sys.argv[1]

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            code = 0 if work() in (None, True) else 1
        except BaseException as problem:
            import traceback
            traceback.print_exc()
            code = 1
        os._exit(code)
    return pid

def ended_well(pid):
    for _ in range(3000):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the child hangs")

def code_of(work):
    try:
        work()
    except RecallError as problem:
        return problem.code
    return "done"

client = Client(local_dir=place)
agent = client.resume("parent", lease_ttl=30)
agent.record_turn("user", "before")
"""


def test_a_child_reads_but_does_not_write_under_its_parents_lease(tmp_path: Path) -> None:
    """Reads go on over a new connection; every write, and acquiring, is refused with lease_not_held."""
    script = """
def work():
    assert not agent.lease_held
    assert [each.content for each in agent.recent_turns()] == ["before"]
    assert agent.refresh().briefing
    codes = {code_of(each) for each in (
        lambda: agent.record_turn("user", "child"),
        lambda: agent.begin_action("t", "pure"),
        lambda: agent.update_working_state(goal="x"),
        agent.acquire,
    )}
    assert codes == {"lease_not_held"}, codes
    assert agent.release() is False

ended_well(in_child(work))
agent.record_turn("user", "after")
assert agent.lease_held
"""
    run_python(FORK + script, tmp_path / "store")
    kinds = [each["kind"] for each in verified(tmp_path / "store")["parent"]]
    assert kinds == ["lease", "turn", "turn"]


def test_a_childs_end_releases_and_checkpoints_nothing(tmp_path: Path) -> None:
    """A child that leaves the with block, closes the client and exits takes nothing from its parent."""
    script = """
pid = os.fork()
if pid == 0:
    client.close()
    sys.exit(0)
ended_well(pid)
assert agent.record_turn("user", "after").seq == 2
pid = os.fork()
if pid == 0:
    sys.exit(0)  # with the atexit handlers
ended_well(pid)
assert agent.record_turn("user", "after").seq == 3
assert client.backend.lease("parent").state == "held"
"""
    run_python(FORK + script, tmp_path / "store")
    assert len(verified(tmp_path / "store")["parent"]) == 4


def test_what_a_child_wrote_stays_when_its_parent_closes_the_store(tmp_path: Path) -> None:
    """A child's acknowledged records survive the parent's close, the end of the parent, and its own SIGKILL."""
    script = """
to_child, to_parent = os.pipe(), os.pipe()

def work():
    inherited = client.resume("through-the-inherited-handle")
    own = Client(local_dir=place).resume("through-its-own")
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    for each in (inherited, own):
        each.record_turn("user", "one")
        each.record_turn("user", "two")
    os.write(to_parent[1], b"x")
    time.sleep(60)

pid = in_child(work)
os.read(to_parent[0], 1)
client.close()
os.write(to_child[1], b"x")
os.read(to_parent[0], 1)
second = Client(local_dir=place)
assert code_of(lambda: second.resume("through-its-own")) == "lease_held"
second.close()
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
"""
    run_python(FORK + script, tmp_path / "store")
    logs = verified(tmp_path / "store")
    for name in ("through-the-inherited-handle", "through-its-own"):
        assert [each["kind"] for each in logs[name]] == ["lease", "turn", "turn"]


def test_a_daemon_that_forks_away_from_its_parent_keeps_its_records(tmp_path: Path) -> None:
    """The parent opens the store, forks and ends at once: what the child writes from then on is kept."""
    script = """
if os.fork():
    os._exit(0)
os.setsid()
own = client.resume("daemon")
for number in range(20):
    own.record_turn("user", str(number))
sys.stdout.write("done")
sys.stdout.flush()
os._exit(0)
"""
    assert run_python(FORK + script, tmp_path / "store") == "done"
    assert len(verified(tmp_path / "store")["daemon"]) == 21


def test_forks_in_the_middle_of_other_threads_writes(tmp_path: Path) -> None:
    """While four threads write, twenty children are forked; each can read and write, none hangs, nothing is lost."""
    script = """
stop = threading.Event()
made = []

def write():
    while not stop.is_set():
        made.append(agent.record_turn("user", "x" * 3000).seq)

threads = [threading.Thread(target=write) for _ in range(4)]
for each in threads:
    each.start()

def work():
    assert len(agent.recent_turns(1)) == 1
    assert code_of(lambda: agent.record_turn("user", "child")) == "lease_not_held"
    with client.resume(f"child-{os.getpid()}") as own:
        own.record_turn("user", "mine")
    client.close()

for _ in range(10):
    pair = [in_child(work), in_child(work)]
    for each in pair:
        ended_well(each)
stop.set()
for each in threads:
    each.join()
assert sorted(made) == list(range(2, len(made) + 2))
assert agent.lease_held
client.close()
"""
    run_python(FORK + script, tmp_path / "store")
    logs = verified(tmp_path / "store")
    assert len([name for name in logs if name.startswith("child-")]) == 20


def test_a_fork_while_another_thread_waits_for_the_write_lock(tmp_path: Path) -> None:
    """A child holds no copy of a lock that its parent is still waiting for; the store is free when both are done."""
    script = """
import fcntl
blocker = os.open(os.path.join(place, "recall.lock"), os.O_RDWR)
fcntl.flock(blocker, fcntl.LOCK_EX)
from store.backends.sqlite.lock import WriteLock
from store.errors import StoreBusy
waiting = WriteLock(place, 0.2)
try:
    with waiting:
        raise AssertionError("got in")
except StoreBusy:
    pass  # its thread still waits in the kernel, on a descriptor that the child inherits
client.backend._lock._timeout = 0.2  # the fork must not wait long for a lock that it cannot have

pid = os.fork()
if pid == 0:
    os.close(blocker)
    time.sleep(60)
    os._exit(0)
fcntl.flock(blocker, fcntl.LOCK_UN)
os.close(blocker)
client.backend._lock._timeout = 5
agent.record_turn("user", "free again")
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
"""
    run_python(FORK + script, tmp_path / "store")


def test_a_store_that_could_not_be_closed_for_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    """Where the connection had to cross the fork, the child is told so in one line instead of harming the store."""
    script = """
with client.backend.reading():
    works = (agent.recent_turns, lambda: Client(local_dir=place))
    pid = in_child(lambda: {code_of(each) for each in works} == {"store_unreadable"})
ended_well(pid)
agent.record_turn("user", "after")
"""
    run_python(FORK + script, tmp_path / "store")


def test_multiprocessing_children_resume_agents_of_their_own(tmp_path: Path) -> None:
    """A pool forked from a process with an open client writes through the inherited client and loses nothing."""
    script = """
import multiprocessing

def work(number):
    with client.resume(f"worker-{number}") as own:
        for each in range(5):
            own.record_turn("user", str(each))
    return number

with multiprocessing.get_context("fork").Pool(3) as pool:
    for _ in range(4):
        agent.record_turn("user", "meanwhile")
    assert sorted(pool.map(work, range(9))) == list(range(9))
agent.record_turn("user", "after")
client.close()
"""
    run_python(FORK + script, tmp_path / "store")
    logs = verified(tmp_path / "store")
    assert all(len(logs[f"worker-{each}"]) == 6 for each in range(9))
    assert len(logs["parent"]) == 7
