"""The store's write lock over threads and processes: exclusive, fair, with a deadline."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from store.backends.sqlite.lock import WriteLock
from store.errors import StoreBusy, StoreClosed
from tests.engine import finished, line_of, python, run_python

TAKER = """
import sys, time
from store.backends.sqlite.lock import WriteLock
lock, taken = WriteLock(sys.argv[1], 30), 0
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + 2
while time.monotonic() < until:
    with lock:
        taken += 1
        time.sleep(0.0002)
print(taken)
"""


def slowest_and_fastest(place: Path) -> tuple[int, int]:
    takers = [python(TAKER, place, stdin=subprocess.PIPE) for _ in range(16)]
    for each in takers:
        assert line_of(each) == "ready"
    for each in takers:
        assert each.stdin is not None
        each.stdin.write(b"\n")
        each.stdin.close()
        each.stdin = None
    taken = sorted(int(finished(each)) for each in takers)
    return taken[0], taken[-1]


def test_writers_queue_fairly(tmp_path: Path) -> None:
    """Of sixteen processes in a loop the slowest gets the lock at least a quarter as often as the fastest."""
    for last in (False, True):  # a loaded machine may stall one process; twice in a row it is the lock
        slowest, fastest = slowest_and_fastest(tmp_path)
        if 4 * slowest >= fastest:
            return
        assert not last, (slowest, fastest)


def test_a_writer_that_waits_in_vain_names_the_holder_and_gives_back_nothing(tmp_path: Path) -> None:
    """StoreBusy comes after the timeout and names the pid; the one who gave up does not get in the way later."""
    script = "import sys\nfrom store.backends.sqlite.lock import WriteLock\nlock = WriteLock(sys.argv[1], 5)\n"
    script += "with lock:\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    holder = python(script, tmp_path, stdin=subprocess.PIPE)
    assert line_of(holder) == "held"
    lock = WriteLock(str(tmp_path), 0.2)
    for _ in range(3):
        with pytest.raises(StoreBusy) as refused, lock:
            raise AssertionError("got in")
        assert refused.value.details["holder"] == f"pid {holder.pid}"
    assert holder.stdin is not None
    holder.stdin.write(b"\n")
    holder.stdin.close()
    holder.stdin = None
    finished(holder)
    entered = 0
    for _ in range(20):
        with lock:
            entered += 1
    assert entered == 20
    run_python(
        "import sys\nfrom store.backends.sqlite.lock import WriteLock\nwith WriteLock(sys.argv[1], 1): pass", tmp_path
    )
    lock.close()


@pytest.mark.timeout(method="thread")  # the alarm is the test's own
def test_waits_that_are_cut_short_leave_nothing_taken(tmp_path: Path) -> None:
    """Interrupted at random moments of queueing behind two others: all go on, and no descriptor or thread stays."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def take() -> None:
        with lock:
            pass

    takers = [python(TAKER, tmp_path, stdin=subprocess.PIPE) for _ in range(2)]
    for each in takers:
        assert line_of(each) == "ready"
        assert each.stdin is not None
        each.stdin.write(b"\n")
        each.stdin.close()
        each.stdin = None
    lock, chance, interrupted, taken = WriteLock(str(tmp_path), 30), random.Random(3), 0, 0
    with lock:
        descriptors = len(os.listdir("/dev/fd"))

    def left() -> bool:
        waiting = [each for each in threading.enumerate() if each.name == "recall-lock" and each.is_alive()]
        return len(waiting) > 1 or len(os.listdir("/dev/fd")) > descriptors + 1

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.004))
                while time.monotonic() < until:  # an interrupt of a finalizer is lost, and no other one comes
                    take()
                    taken += 1
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert all(int(finished(each)) > 20 for each in takers)
    assert interrupted > 50
    assert taken > 50
    run_python(
        "import sys\nfrom store.backends.sqlite.lock import WriteLock\nwith WriteLock(sys.argv[1], 5): pass", tmp_path
    )
    with lock:
        pass
    until = time.monotonic() + 10
    while left() and time.monotonic() < until:
        time.sleep(0.01)
    assert not left()
    lock.close()


def test_without_threads_to_wait_in_the_lock_is_polled_for(tmp_path: Path) -> None:
    """A contended write at interpreter exit, where no thread can start any more, still gets the lock."""
    script = """
import atexit, subprocess, sys, threading
from store.backends.sqlite.lock import WriteLock

def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

class NoThreads(threading.Thread):
    start = refuse

import store.backends.sqlite.lock as module

class Threading:
    Thread = NoThreads
    def __getattr__(self, name):
        return getattr(threading, name)

module.threading = Threading()
lock = WriteLock(sys.argv[1], 10)
print("ready", flush=True)
with lock:
    print("got it")
"""
    mine = WriteLock(str(tmp_path), 1)
    with mine:
        waiting = python(script, tmp_path)
        assert line_of(waiting) == "ready"
        time.sleep(0.2)
        assert waiting.poll() is None
    assert finished(waiting) == "got it\n"
    mine.close()


def test_one_thread_at_a_time(tmp_path: Path) -> None:
    """Threads of one handle exclude each other; one that has the lock is not let in twice."""
    lock, inside, most = WriteLock(str(tmp_path), 10), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock:
                inside += 1
                most = max(most, inside)
                with pytest.raises(StoreBusy), lock:
                    raise AssertionError("got in twice")
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (inside, most) == (0, 1)
    lock.close()


def test_two_handles_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    """The lock belongs to a handle, not to the process."""
    one, other = WriteLock(str(tmp_path), 1), WriteLock(str(tmp_path), 0.1)
    with one:
        with pytest.raises(StoreBusy) as refused, other:
            raise AssertionError("got in")
        assert f"pid {os.getpid()}" in refused.value.message
    with other:
        pass
    one.close()
    other.close()


def test_another_thread_that_keeps_the_lock_is_named(tmp_path: Path) -> None:
    """Within one handle the message says that it is a thread of this process."""
    lock, got, leave = WriteLock(str(tmp_path), 0.1), threading.Event(), threading.Event()

    def keep() -> None:
        with lock:
            got.set()
            leave.wait(30)

    thread = threading.Thread(target=keep)
    thread.start()
    got.wait(30)
    with pytest.raises(StoreBusy, match="another thread of this process"), lock:
        raise AssertionError("got in")
    leave.set()
    thread.join()
    lock.close()


def test_closing_twice_closes_nobody_elses_file(tmp_path: Path) -> None:
    """A second close leaves alone the files that have got the numbers meanwhile; a closed lock is not entered."""
    lock = WriteLock(str(tmp_path), 1)
    lock.close()
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(3)]
    lock.close()
    assert all(stat.S_ISDIR(os.fstat(each).st_mode) for each in others)
    for each in others:
        os.close(each)
    with pytest.raises(StoreClosed), lock:
        raise AssertionError("got in")


def test_an_exception_inside_gives_the_lock_back(tmp_path: Path) -> None:
    """Whatever ends the block, the next one gets in."""
    one, other = WriteLock(str(tmp_path), 1), WriteLock(str(tmp_path), 1)
    with pytest.raises(KeyboardInterrupt), one:
        raise KeyboardInterrupt
    with other:
        pass
    one.close()
    other.close()


def test_a_file_that_was_tidied_away_is_locked_anew(tmp_path: Path) -> None:
    """When somebody deletes recall.lock, those who have it open and those who make it anew still exclude each other."""
    old = WriteLock(str(tmp_path), 0.2)
    with old:
        pass
    (tmp_path / "recall.lock").unlink()
    new = WriteLock(str(tmp_path), 0.2)
    with new, pytest.raises(StoreBusy), old:
        raise AssertionError("two at once")
    with old, pytest.raises(StoreBusy), new:
        raise AssertionError("two at once")
    old.close()
    new.close()
