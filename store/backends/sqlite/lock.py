"""The store's write lock: one writer at a time, over all threads and processes.

Every write transaction and every checkpoint of SQLite runs under it. That
closes the WAL-reset bug of SQLite before 3.51.3 (https://sqlite.org/wal.html,
"The WAL-reset bug"), where a checkpoint that overlaps a commit can lose it,
and makes writers queue instead of meeting "database is locked".

Two advisory locks are used. Whoever wants in takes the *turn* (an flock of the
directory) and, holding it, waits for the *lock* (an flock of ``recall.lock``).
With one lock a process in a loop takes it again before those it woke get to
run; with the turn it queues behind them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from store.backends.sqlite import files
from store.errors import StoreBusy

NAME = "recall.lock"


class WriteLock:
    """The lock of one store, as one handle uses it.

    Args:
        directory: the store's directory; it must exist and be writable.
        timeout: the most seconds to wait.
    """

    def __init__(self, directory: str, timeout: float) -> None:
        self._directory = directory
        self._path = os.path.join(directory, NAME)
        self._timeout = timeout
        self._threads = threading.RLock()
        self._depth = 0
        self._turn = self._open_turn()
        try:
            self._lock = self._open_lock()
        except BaseException:
            os.close(self._turn)
            raise
        self._held = self._lock

    def _open_turn(self) -> int:
        return self._open(self._directory, os.O_RDONLY)

    def _open_lock(self) -> int:
        return self._open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, 0o600)
        except OSError as problem:
            raise files.refusal(problem, self._directory, os.path.basename(path)) from problem

    def __enter__(self) -> None:
        """Have the lock; a thread that has it may enter again.

        Raises:
            StoreBusy: not within the timeout; it names the holder.
        """
        if not self._threads.acquire(timeout=self._timeout):
            raise StoreBusy(path=self._directory, holder="another thread of this process", waited=f"{self._timeout:g}")
        try:
            if self._depth == 0:
                self._enter()
            self._depth += 1
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._depth -= 1
            if self._depth == 0:
                held, self._held = self._held, self._lock
                _unlock(held, keep=self._lock)
        finally:
            self._threads.release()

    def _enter(self) -> None:
        if self._lock < 0:
            raise RuntimeError("this handle is closed")
        turn = self._take(self._turn, self._open_turn)
        try:
            self._held = self._take(self._lock, self._open_lock)
        finally:
            _unlock(turn, keep=self._turn)
        # For the message of those who wait in vain. Padded, so that the length stays.
        with suppress(OSError):  # a full disk
            os.pwrite(self._held, b"%-20d\n" % os.getpid(), 0)

    def _take(self, descriptor: int, reopen: Callable[[], int]) -> int:
        """Lock ``descriptor``, or another one of the same file; returns the one that has the lock."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            pass
        # flock has no deadline and polling starves, so a thread waits in the
        # kernel's queue, on an open file of its own: one that comes too late
        # closes it and so gives back nothing but what it took.
        waiting = _Waiting(reopen())
        try:
            threading.Thread(target=waiting.run, daemon=True, name="recall-lock").start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            os.close(waiting.descriptor)
            return self._poll(descriptor)
        try:
            in_time = waiting.within(self._timeout)
        except BaseException:  # Ctrl-C while waiting
            waiting.give_up()
            raise
        if not in_time:
            raise StoreBusy(path=self._directory, holder=self._holder(), waited=f"{self._timeout:g}")
        return waiting.descriptor

    def _poll(self, descriptor: int) -> int:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreBusy(path=self._directory, holder=self._holder(), waited=f"{self._timeout:g}") from None
            time.sleep(0.002)

    def _holder(self) -> str:
        from store.process import stopped

        try:
            pid = int(os.pread(self._lock, 20, 0) or b"0")
        except (OSError, ValueError):
            pid = 0
        if not pid:
            return "another process"
        return f"pid {pid} (stopped by a signal)" if stopped(pid) else f"pid {pid}"

    def pause(self) -> None:
        """Keep the threads of this process out until ``resume``, without the lock itself (around a fork)."""
        self._threads.acquire()

    def resume(self) -> None:
        self._threads.release()

    def close(self) -> None:
        """Close the descriptors; in a forked child too, where it drops nothing of the parent's."""
        # Once only: a number that was closed may be another file's by now.
        descriptors = {self._lock, self._turn, self._held}
        self._lock = self._turn = self._held = -1
        for descriptor in descriptors - {-1}:
            os.close(descriptor)


def _unlock(descriptor: int, keep: int) -> None:
    # Not by closing alone: a fork's copy of the descriptor would keep the lock.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    if descriptor != keep:
        os.close(descriptor)


class _Waiting:
    """One wait for an flock, which its caller may give up."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._done = threading.Event()
        self._decide = threading.Lock()
        self._given_up = False
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        except OSError as problem:
            self._error = problem
        with self._decide:
            self._done.set()
            if self._given_up:
                self._give_back()

    def within(self, seconds: float) -> bool:
        """Whether the lock was had in time; if not, it is given up."""
        if not self._done.wait(seconds):
            with self._decide:
                self._given_up = not self._done.is_set()
        if self._error is not None:
            raise self._error
        return not self._given_up

    def give_up(self) -> None:
        """Give back the lock, now or when it comes."""
        with self._decide:
            if self._done.is_set():
                self._give_back()
            self._given_up = True

    def _give_back(self) -> None:
        with suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # a fork's copy would keep it
        os.close(self.descriptor)
