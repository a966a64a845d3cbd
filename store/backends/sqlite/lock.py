"""The store's write lock: one writer at a time, over all threads and processes.

Every write transaction and every checkpoint of SQLite runs under it. That
closes the WAL-reset bug of SQLite before 3.51.3 (https://sqlite.org/wal.html,
"The WAL-reset bug"), where a checkpoint that overlaps a commit can lose it,
and makes writers queue instead of meeting "database is locked".

Two advisory locks are used. Whoever wants in takes the *turn* (an flock of the
directory) and, holding it, waits for the *lock* (an flock of ``recall.lock``).
With one lock a process in a loop takes it again before those it woke get to
run; with the turn it queues behind them. The queue for the turn is the
kernel's, entered by a thread, since flock has no deadline; for the lock only
the one who has the turn waits, who may therefore poll: nobody can starve, and
from one holder to the next no thread has to wake.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from types import FrameType

from store.backends.sqlite import files
from store.backends.sqlite.stack import frame, going_on
from store.errors import StoreBusy, StoreClosed

NAME = "recall.lock"
_PAUSE, _LONGEST_PAUSE = 20e-6, 2e-3  # seconds between two looks at the lock


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
        self._name = b"%-19d\n" % os.getpid()  # padded, so that the length stays
        self._threads = threading.RLock()
        self._calls: dict[int, FrameType] = {}  # by thread: the call that has the lock, or is getting it
        self._paused = 0
        self._queued = False  # whether it may have the turn
        self._waiter: _Waiter | None = None
        self._turn = self._open_turn()
        try:
            self._lock, self._status = self._open_lock()
        except BaseException:
            os.close(self._turn)
            raise

    def _open_turn(self) -> int:
        return self._open(self._directory, os.O_RDONLY)

    def _open_lock(self) -> tuple[int, os.stat_result]:
        descriptor = self._open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        return descriptor, os.fstat(descriptor)

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
        left = self._calls.get(me)
        if left is not None and going_on(left):
            raise StoreBusy(path=self._directory, holder="a call in progress in this very thread", waited="0")
        self._calls[me] = call
        had = False
        timeout = self._timeout if wait else 0
        try:
            if left is not None and self._is_ours() and not self._paused:
                self._give_back()  # of a call that an exception cut short
            until = time.monotonic() + timeout
            if not self._threads.acquire(timeout=timeout):
                raise self._busy(timeout, "another thread of this process")
            had = True
            self._enter(until)
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
            if self._waiter is not None:
                self._end_waiting()
            # Not by closing: a fork's copy of the descriptor would keep the lock.
            if self._queued:
                if self._turn >= 0:
                    fcntl.flock(self._turn, fcntl.LOCK_UN)
                self._queued = False
            if self._lock >= 0:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        finally:
            self._threads.release()
            while not self._paused and self._is_ours():  # what was cut short between two steps
                self._threads.release()

    def _enter(self, until: float) -> None:
        if self._lock < 0:
            raise StoreClosed(path=self._directory)
        if self._waiter is not None:
            self._end_waiting()
        if self._turn < 0:
            self._turn = self._open_turn()
        self._queued = True
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._queue(until)
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._poll(self._lock, until)
            if not self._replaced():
                break
            # Somebody tidied the file away: others would lock another one.
            old, (self._lock, self._status) = self._lock, self._open_lock()
            os.close(old)
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        self._queued = False
        # For the message of those who wait in vain.
        if os.pread(self._lock, 20, 0) != self._name:
            with suppress(OSError):  # a full disk
                os.pwrite(self._lock, self._name, 0)

    def _replaced(self) -> bool:
        """Whether the lock's file is not the one of that name any more."""
        try:
            there, ours = os.stat(self._path), self._status
        except FileNotFoundError:
            return True
        except OSError as problem:
            raise files.refusal(problem, self._directory, NAME) from problem
        return there.st_ino != ours.st_ino or there.st_dev != ours.st_dev

    def _queue(self, until: float) -> None:
        """Wait for the turn: in the kernel's queue, since polling for what many want starves some of them."""
        left = until - time.monotonic()
        if left <= 0:
            raise self._busy(0)
        waiter = self._waiter
        if waiter is None:
            waiter = self._waiter = _Waiter()
            try:
                waiter.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                self._waiter = None
                self._poll(self._turn, until)
                return
        if not waiter.take(self._turn, left):
            raise self._busy(self._timeout)

    def _end_waiting(self) -> None:
        """Leave alone a waiting that was in vain, or that an exception cut short."""
        waiter = self._waiter
        if waiter is not None and waiter.asked:
            if waiter.leave():
                self._turn = -1
            self._waiter = None

    def _poll(self, descriptor: int, until: float) -> None:
        """Wait for an flock that nobody else waits for, as only the one who has the turn waits for the lock."""
        pause = _PAUSE
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(pause * 1.25, _LONGEST_PAUSE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                continue
        raise self._busy(self._timeout)

    def _busy(self, waited: float, holder: str = "") -> StoreBusy:
        return StoreBusy(path=self._directory, holder=holder or self._holder(), waited=f"{waited:g}")

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
        turn, self._lock, self._turn = self._turn, -1, -1
        waiter, self._waiter = self._waiter, None
        if waiter is not None and waiter.leave():
            descriptors.discard(turn)
        for descriptor in descriptors - {-1}:
            os.close(descriptor)


class _Waiter:
    """A thread that waits for flocks, one after another; flock has no deadline, but whoever asks the thread has.

    Attributes:
        asked: whether a wait, or the start, is going on or was cut short.
    """

    def __init__(self) -> None:
        from queue import SimpleQueue  # only here: few processes have to wait

        self.asked = True
        self._asked_for: SimpleQueue[int] = SimpleQueue()
        self._descriptor = self._abandoned = -1
        self._came, self._has_come = threading.Lock(), False
        self._came.acquire()
        self._decide, self._left = threading.Lock(), False
        self._error: OSError | None = None

    def start(self) -> None:
        """Raises RuntimeError where there can be no thread."""
        threading.Thread(target=self._run, daemon=True, name="recall-lock").start()
        self.asked = False

    def take(self, descriptor: int, seconds: float) -> bool:
        """Whether the lock was had in time; if not, the caller has to ``leave``."""
        self._descriptor, self._has_come = descriptor, False
        self.asked = True
        self._asked_for.put(descriptor)
        if not self._came.acquire(timeout=seconds):
            return False
        if self._error is not None:
            raise self._error
        self.asked = False
        return True

    def leave(self) -> bool:
        """Let the thread end. True: it still waits, and will give the lock back and close the descriptor."""
        with self._decide:
            if not self._left:
                if self.asked and not self._has_come:
                    self._abandoned = self._descriptor
                self._left = True
                self._asked_for.put(-1)
            return self._abandoned >= 0

    def _run(self) -> None:
        while (descriptor := self._asked_for.get()) >= 0:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as problem:
                self._error = problem
            with self._decide:
                self._has_come = True
                if self._left:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a fork's copy would keep it
            self._came.release()
        if self._abandoned >= 0:
            os.close(self._abandoned)
