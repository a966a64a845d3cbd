"""Holding a lease: taking it, renewing it, and proving it at every write.

One keeper is one actor. It never writes under a lapsed lease; when its own
lapsed and nobody else acted in between, it acquires again, under a new epoch
that is said in the log and to the caller. Otherwise it is lost for good.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Literal, TypeVar

from store.backend import Acquired, Backend
from store.errors import Fenced, LeaseExpired, LeaseHeld, LeaseLost, LeaseNotHeld, RecallError, StoreClosed
from store.lease import Fence, Lease, LeaseRequest
from store.process import Process, this_process
from store.value import replace

T = TypeVar("T")
Event = Literal["acquired", "again", "lost"]


class Keeper:
    """The lease of one agent, as one process or one shell session holds it.

    Args:
        holder: the name that others see; ``host:pid:8 hex`` unless given.
        ttl_ms: milliseconds that the lease lasts without a renewal.
        process: whose death frees the lease; this process unless given.
        background: renew in a thread at each third of the ttl.
        on_event: told of every new epoch and of the loss; what it raises is logged, and changes nothing.
    """

    def __init__(
        self,
        backend: Backend,
        agent: str,
        *,
        ttl_ms: int,
        holder: str = "",
        process: Process | None = None,
        background: bool = True,
        on_event: Callable[[Event, int], None] = lambda event, epoch: None,
    ) -> None:
        self._backend = backend
        self._agent = agent
        self._ttl_ms = ttl_ms
        self._process = process or this_process()
        self._given_holder = holder
        self._become()
        self._background = background
        self._on_event = on_event
        self._fence: Fence | None = None
        self._lost: LeaseLost | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._adopted = False
        self._renews = False
        self.look_around: Callable[[], Callable[[], None] | None] = lambda: None  # gives what to do at each renewal

    def _become(self) -> None:
        """A new actor: after a release or a loss somebody else may have acted."""
        self.incarnation = self._backend.random.hex(32)
        self.holder = self._given_holder or f"{self._process.host}:{self._process.pid}:{self.incarnation[:8]}"
        self._acquired = False

    @staticmethod
    def adopt(backend: Backend, fence: Fence, *, renew: bool) -> Keeper:
        """The keeper of a lease that another process took.

        Args:
            renew: whether each write starts the ttl anew, as for an exported lease.
        """
        keeper = Keeper(backend, fence.agent, ttl_ms=0, holder="(adopted)", background=False)
        keeper.incarnation = fence.incarnation
        keeper._fence = fence
        keeper._adopted, keeper._renews = True, renew
        return keeper

    @property
    def held(self) -> bool:
        """Whether this actor had the lease at its last write; the next one proves it."""
        return self._fence is not None and self._lost is None and self._pid == os.getpid()

    @property
    def epoch(self) -> int:
        """The current epoch, 0 without a lease."""
        return self._fence.epoch if self._fence else 0

    @property
    def fence(self) -> Fence:
        """The fencing token.

        Raises:
            LeaseNotHeld, LeaseLost.
        """
        if self._pid != os.getpid():
            raise LeaseNotHeld(agent=self._agent, why=": this process was forked from its holder")
        if self._lost is not None:
            raise self._lost
        if self._fence is None:
            raise LeaseNotHeld(agent=self._agent, why="")
        return self._fence

    def acquire(self) -> Acquired:
        """Try once.

        Raises:
            LeaseHeld: it names the holder.
        """
        if self._pid != os.getpid():
            raise LeaseNotHeld(agent=self._agent, why=": this process was forked from its holder")
        with self._lock:
            if self._acquired:
                self._become()
            request = LeaseRequest(self._agent, self.incarnation, self.holder, self._process, self._ttl_ms)
            acquired = self._backend.acquire(request)
            self._fence, self._lost, self._acquired = acquired.lease.fence, None, True
            if self._background:
                self.renew_in_background(self._ttl_ms)
        self._tell("acquired", acquired.lease.epoch)
        return acquired

    def write(self, work: Callable[[Fence, bool], T]) -> T:
        """Run ``work`` with the fence and whether to renew; acquire again if the lease lapsed unseen.

        Raises:
            LeaseLost, LeaseNotHeld; LeaseExpired for an adopted lease, or where it lapsed twice during one write.
        """
        fence = self.fence
        mended = self._adopted
        while True:
            try:
                return work(fence, self._renews)
            except LeaseExpired:
                if mended:
                    raise
                lapsed, fence = fence, self._again(fence)
                mended = fence != lapsed  # the same: a renewal that was under way has come through meanwhile
            except LeaseLost as problem:
                with self._lock:  # another thread of ours may be about to learn that it acquired again
                    newer = self._fence
                if newer is None or newer == fence or newer.incarnation != fence.incarnation:
                    self._lose(problem, fence)
                    raise
                fence = newer  # another thread of ours found the lapse first, and acquired again

    def renew_in_background(self, ttl_ms: int) -> None:
        """Renew at each third of the ttl, in a thread, until released or lost."""
        self._stop = threading.Event()
        arguments = (weakref.ref(self), self._stop, ttl_ms / 3000)
        threading.Thread(target=_renew, args=arguments, daemon=True, name="recall-lease").start()

    def renew(self) -> Lease:
        """Start the ttl anew, or acquire again."""
        return self.write(lambda fence, _: self._backend.renew(fence))

    def renewed(self, lease: Lease) -> None:
        """Do what is done at each renewal; what it raises must not end the renewing."""
        todo = self.look_around()
        if todo is None or not lease.ttl_ms:  # given back for as long as nothing is written: nobody looks either
            return
        try:
            todo()
        except (Fenced, LeaseHeld, StoreClosed):
            pass  # the next renewal, or write, finds the same and says so
        except Exception:
            import logging

            logging.getLogger("recall").exception("agent %s: what is due at a renewal failed", self._agent)

    def _again(self, lapsed: Fence) -> Fence:
        try:
            with self._lock:
                if self._fence != lapsed:  # another thread was first
                    return self.fence
                request = LeaseRequest(self._agent, self.incarnation, self.holder, self._process, self._ttl_ms)
                acquired = self._backend.acquire(replace(request, again=lapsed))
                self._fence = acquired.lease.fence
        except LeaseLost as problem:
            self._lose(problem, lapsed)  # without the lock: who is told may wait for a thread of ours that needs it
            raise
        if acquired.lease.fence != lapsed:
            self._tell("again", acquired.lease.epoch)
        return acquired.lease.fence

    def _tell(self, event: Event, epoch: int) -> None:
        """Tell the caller; a callback that fails must not end the renewing, or the write that noticed."""
        try:
            self._on_event(event, epoch)
        except Exception:
            import logging

            logging.getLogger("recall").exception("on_lease failed at %r of epoch %d", event, epoch)

    def _lose(self, problem: LeaseLost, fence: Fence) -> None:
        with self._lock:
            if self._fence != fence:  # released, or acquired anew, while this write was on its way
                return
            first, self._lost = self._lost is None, problem
        self._stop.set()
        if first:
            self._tell("lost", problem.details["epoch"])

    def release(self) -> bool:
        """Give the lease back; False if it was no longer ours."""
        if self._pid != os.getpid():  # the locks may be a vanished thread's
            return False
        self._stop.set()
        with self._lock:
            if not self.held or self._fence is None:
                return False
            fence = self._fence
        try:
            released = self._backend.release(fence)  # busy or full, it is still ours to give back
        except LeaseLost as problem:
            self._lose(problem, fence)
            raise
        with self._lock:
            if self._fence == fence:
                self._fence = None
        return released


def patiently(acquire: Callable[[], Acquired], wait: float) -> Acquired:
    """What ``acquire`` returns, tried again for ``wait`` seconds while it raises LeaseHeld."""
    deadline = time.monotonic() + wait
    pause = 0.005
    while True:
        try:
            return acquire()
        except LeaseHeld:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)


def _renew(reference: weakref.ref[Keeper], stop: threading.Event, every: float) -> None:
    """Renew until told to stop, until the lease is lost, or until its keeper is gone."""
    pause = every
    while not stop.wait(pause):
        keeper = reference()
        if keeper is None or not keeper.held:
            return
        try:
            keeper.renewed(keeper.renew())
            pause = every
        except (Fenced, LeaseHeld, StoreClosed):
            return  # the keeper remembers, and its next write says so
        except RecallError:
            pause = every / 4  # busy or full: try again well within the ttl
        del keeper
