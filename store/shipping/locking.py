"""One conditional write of an agent at a time, over the threads and processes of one directory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from store.errors import StoreBusy, StoreReadOnly

DIRECTORY = "shipping"
_PAUSE = 0.002  # seconds; a conditional write takes longer
_threads: dict[tuple[int, str], threading.Lock] = {}


@contextmanager
def agent_lock(directory: str, agent: str, timeout: float) -> Iterator[None]:
    """Have an agent's lock: the next version of its head is made from the last one by one writer at a time.

    Whoever waited finds, more often than not, that the one before took its records along.

    Raises:
        StoreBusy: not within ``timeout`` seconds.
        StoreReadOnly: the lock's file cannot be made.
    """
    # By a hash: two agents whose ids differ only in case are two files everywhere.
    path = os.path.join(directory, DIRECTORY, hashlib.sha256(agent.encode()).hexdigest()[:32] + ".lock")
    deadline = time.monotonic() + timeout
    thread = _threads.setdefault((os.getpid(), path), threading.Lock())
    if not thread.acquire(timeout=timeout):
        raise StoreBusy(path=directory, holder=f"another thread that ships {agent}", waited=f"{timeout:g}")
    try:
        descriptor = _open(directory, path)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        holder = f"another process that ships {agent}"
                        raise StoreBusy(path=directory, holder=holder, waited=f"{timeout:g}") from None
                time.sleep(_PAUSE)
            yield
        finally:
            # A child that was forked meanwhile has the descriptor too, so that closing it here lets nothing go.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
    finally:
        thread.release()


def _open(directory: str, path: str) -> int:
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        reason = f"{DIRECTORY}: {(problem.strerror or str(problem)).lower()}"
        raise StoreReadOnly(path=directory, reason=reason) from problem
