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
from types import FrameType

from store.backends.sqlite import files
from store.backends.sqlite.stack import frame, going_on
from store.errors import StoreBusy, StoreClosed

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
        self._calls: dict[int, FrameType] = {}  # by thread: the call that has the lock, or is getting it
        self._paused = 0
        self._waiting: _Waiting | None = None
        self._turn = self._open_turn()
        try:
            self._lock = self._open_lock()
        except BaseException:
            os.close(self._turn)
            raise

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
        self.acquire(frame(above=1))

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, call: FrameType, *, wait: bool = True) -> None:
        """Have the lock, for the call that has this frame.

        Args:
            wait: up to the timeout, or not at all.

        Raises:
            StoreBusy: not within the timeout, or by a call further up this
                stack; it names the holder.
        """
        me = threading.get_ident()
        if going_on(self._calls.get(me)):
            raise StoreBusy(path=self._directory, holder="a call in progress in this very thread", waited="0")
        self._calls[me] = call
        had = False
        try:
            if self._is_ours() and not self._paused:
                self._give_back()  # of a call that an exception cut short
            if not self._threads.acquire(timeout=self._timeout if wait else 0):
                holder = "another thread of this process"
                raise StoreBusy(path=self._directory, holder=holder, waited=f"{self._timeout:g}")
            had = True
            self._enter(wait)
        except BaseException:
            if had or (self._is_ours() and not self._paused):
                self._give_back()
            self._calls.pop(me, None)
            raise

    def release(self) -> None:
        """Give it back."""
        self._give_back()
        self._calls.pop(threading.get_ident(), None)

    def _is_ours(self) -> bool:
        return bool(self._threads._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks it

    def _give_back(self) -> None:
        """Give back whatever this thread has of the lock, however far it had come."""
        try:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                waiting.give_up()
            for descriptor in (self._turn, self._lock):
                if descriptor >= 0:
                    # Not by closing: a fork's copy of the descriptor would keep the lock.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()
            while not self._paused and self._is_ours():  # what was cut short between two steps
                self._threads.release()

    def _enter(self, wait: bool) -> None:
        if self._lock < 0:
            raise StoreClosed(path=self._directory)
        self._take("_turn", self._open_turn, wait)
        self._take("_lock", self._open_lock, wait)
        while self._replaced():
            # Somebody tidied the file away: others would lock another one.
            old, self._lock = self._lock, self._open_lock()
            os.close(old)
            self._take("_lock", self._open_lock, wait)
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        # For the message of those who wait in vain. Padded, so that the length stays.
        with suppress(OSError):  # a full disk
            os.pwrite(self._lock, b"%-20d\n" % os.getpid(), 0)

    def _replaced(self) -> bool:
        """Whether the lock's file is not the one of that name any more."""
        ours = os.fstat(self._lock)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        except OSError as problem:
            raise files.refusal(problem, self._directory, NAME) from problem
        return (ours.st_ino, ours.st_dev) != (there.st_ino, there.st_dev)

    def _take(self, name: str, reopen: Callable[[], int], wait: bool) -> None:
        """Lock the descriptor ``name``; where it has to wait, on another open file, which takes its place."""
        descriptor: int = getattr(self, name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not wait:
                raise StoreBusy(path=self._directory, holder=self._holder(), waited="0") from None
        # flock has no deadline and polling starves, so a thread waits in the
        # kernel's queue, on an open file of its own: one that comes too late
        # closes it and so gives back nothing but what it took.
        waiting = self._waiting = _Waiting(reopen())
        try:
            threading.Thread(target=waiting.run, daemon=True, name="recall-lock").start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._waiting = None
            os.close(waiting.descriptor)
            self._poll(descriptor)
            return
        if not waiting.within(self._timeout):
            self._waiting = None
            raise StoreBusy(path=self._directory, holder=self._holder(), waited=f"{self._timeout:g}")
        setattr(self, name, waiting.descriptor)
        self._waiting = None
        os.close(descriptor)

    def _poll(self, descriptor: int) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
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
        self._paused += 1

    def resume(self) -> None:
        self._paused -= 1
        self._threads.release()

    def close(self) -> None:
        """Close the descriptors; in a forked child too, where it drops nothing of the parent's."""
        # Once only: a number that was closed may be another file's by now.
        descriptors = {self._lock, self._turn}
        self._lock = self._turn = -1
        for descriptor in descriptors - {-1}:
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
