"""The sessions of a server that has many clients: each one's calls in turn, all of them side by side."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from recall_cli.mcp.log import complain
from recall_cli.mcp.protocol import Protocol
from store.errors import RecallError

MOST = 100  # sessions
_TICK = 0.25
_PATIENCE = 600.0  # seconds to go on trying to give a lease back, while the store is busy or the disk is full


class Cancelled(Exception):
    """The request was taken out before its turn."""


class Ended(Exception):
    """The session is no more."""


class TooMany(Exception):
    """There are as many sessions as can be, and all of them act for an agent."""


class Served:
    """One client's session. Its calls are carried out one after another, in the order in which they came.

    Args:
        number: by which the log names it; the id is the client's own.
    """

    def __init__(self, protocol: Protocol, number: int) -> None:
        self.protocol = protocol
        self.number = number
        self.id = secrets.token_urlsafe(24)
        self._changed = threading.Condition()
        self._waiting: deque[_Ticket] = deque()
        self._running = False
        self._ended = False
        self._used = time.monotonic()

    def answer(self, message: Any, is_gone: Callable[[], bool]) -> Any:
        """The protocol's answer, in its turn.

        Args:
            is_gone: asked while the request waits: whether nobody wants the answer any more.

        Raises:
            Cancelled, Ended: it was not carried out.
        """
        ticket = _Ticket(message)
        with self._changed:
            if self._ended:
                raise Ended
            self._used = time.monotonic()
            self._waiting.append(ticket)
            while self._running or self._waiting[0] is not ticket:
                self._changed.wait(_TICK)
                if ticket not in self._waiting:
                    raise Ended if self._ended else Cancelled
                if is_gone():
                    self._waiting.remove(ticket)
                    self._changed.notify_all()
                    raise Cancelled
            self._waiting.popleft()
            self._running = True
        try:
            return self.protocol.answer(message)
        finally:
            with self._changed:
                self._running = False
                self._used = time.monotonic()
                self._changed.notify_all()

    def cancel(self, id: str | int) -> None:
        """Take out the request of this id, if it still waits."""
        with self._changed:
            for each in self._waiting:
                if each.is_of(id):
                    self._waiting.remove(each)
                    self._changed.notify_all()
                    return

    def touch(self) -> None:
        """The client is there. Raises Ended."""
        with self._changed:
            if self._ended:
                raise Ended
            self._used = time.monotonic()

    def idle(self) -> float:
        """Seconds since its last call ended, 0 while there is one."""
        with self._changed:
            return 0.0 if self._running or self._waiting else time.monotonic() - self._used

    def end(self, *, after: float = -1.0, unless_acting: bool = False) -> bool:
        """Take no more calls, and drop those that wait; False if that may not be, or has been done already.

        Args:
            after: only if it has been idle for more than so many seconds.
            unless_acting: only if it acts for no agent.
        """
        with self._changed:
            if self._ended or (after >= 0 and self.idle() <= after):
                return False
            if unless_acting and self.protocol.session.agents:
                return False
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
            return True

    def close(self, *, seconds: float | None = None) -> None:
        """Release what it holds, once the call that is under way has come to its end.

        Args:
            seconds: to wait for that, unless for as long as it takes; the process then ends. While it goes on a
                lease that cannot be given back now is tried again, since nothing else frees it before its time.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._running, seconds)
        ends = time.monotonic() + _PATIENCE
        while seconds is None and not self._released() and time.monotonic() < ends:
            time.sleep(1.0)
        self.protocol.session.close()

    def _released(self) -> bool:
        for agent in self.protocol.session.agents:
            try:
                self.protocol.session.release(agent)
            except RecallError as problem:
                lease = self.protocol.session.held(agent)
                if lease is not None and lease.lease_held:
                    complain(f"session {self.number}: {problem.message}")
                    return False
        return True


class _Ticket:
    """A request that waits for its turn."""

    def __init__(self, message: Any) -> None:
        named = isinstance(message, dict) and message.get("method") != "initialize"
        self._id = message.get("id") if named else None

    def is_of(self, id: str | int) -> bool:
        return type(self._id) is type(id) and self._id == id


class Sessions:
    """All sessions of the server.

    Args:
        make: a new client's protocol.
        timeout: seconds without a call after which a session is ended.
    """

    def __init__(self, make: Callable[[], Protocol], timeout: float) -> None:
        self._make, self._timeout = make, timeout
        self._changed = threading.Condition(threading.Lock())
        self._by_id: dict[str, Served] = {}
        self._common: Served | None = None  # of the clients that know no sessions
        self._opened = 0
        self.closing = False  # with the server
        threading.Thread(target=self._expire, daemon=True, name="recall-mcp-sessions").start()

    def open(self, message: Any) -> tuple[Served | None, Any]:
        """A new session and the answer to its ``initialize``; no session where that was refused. Raises TooMany."""
        protocol = self._make()
        answer = protocol.answer(message)
        if not protocol.version:
            return None, answer
        with self._changed:
            if self.closing:
                raise Ended
            given_up = self._given_up() if len(self._by_id) >= MOST else None
            served = self._new(protocol)
            self._by_id[served.id] = served
        if given_up is not None:
            self._close(given_up, "ended to make room for another")
        complain(f"session {served.number}: opened")
        return served, answer

    def _all(self) -> list[Served]:
        return [*self._by_id.values(), *([self._common] if self._common else [])]

    def _new(self, protocol: Protocol) -> Served:
        self._opened += 1
        self._changed.notify_all()
        return Served(protocol, self._opened)

    def _given_up(self) -> Served:
        """The session that has been idle for longest of those that act for no agent, ended. Raises TooMany."""
        for each in sorted(self._by_id.values(), key=Served.idle, reverse=True):
            if each.end(after=0.0, unless_acting=True):
                return self._by_id.pop(each.id)
        raise TooMany

    def find(self, id: str) -> Served | None:
        """The session of this id, kept from ending of idleness just now."""
        with self._changed:
            found = self._by_id.get(id)
        try:
            if found is not None:
                found.touch()
        except Ended:
            return None
        return found

    def common(self) -> Served:
        """The session of all clients that know none. Raises Ended if the server ends."""
        with self._changed:
            if self.closing:
                raise Ended
            if self._common is None:
                self._common = self._new(self._make())
                complain(f"session {self._common.number}: opened, for requests without a session")
            return self._common

    def end(self, served: Served) -> None:
        """End it as its client asked; its leases are given back when this returns. Raises Ended."""
        if not served.end():
            raise Ended
        self._forget(served)
        served.close()
        complain(f"session {served.number}: ended by its client")

    def close(self, seconds: float, *, within: float) -> None:
        """End all, side by side: what is under way has so many seconds, giving the leases back so many more."""
        with self._changed:
            self.closing = True
            left = self._all()
            self._by_id, self._common = {}, None
            self._changed.notify_all()
        for each in left:
            each.end()
        ends = time.monotonic() + seconds
        threads = []
        for each in left:
            thread = threading.Thread(target=self._finish, args=(each, ends), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there can be no more threads
                break  # the other leases are free once the process is gone
            threads.append(thread)
        for thread in threads:
            thread.join(max(0.0, ends + within - time.monotonic()))

    @staticmethod
    def _finish(served: Served, ends: float) -> None:
        served.close(seconds=max(0.0, ends - time.monotonic()))

    def _expire(self) -> None:
        while True:
            with self._changed:
                if self.closing:
                    return
                known = self._all()
                soonest = min((self._timeout - each.idle() for each in known), default=self._timeout)
                self._changed.wait(max(0.05, soonest + 0.01))
                if self.closing:
                    return
                known = self._all()
            for each in known:
                if each.end(after=self._timeout):
                    self._forget(each)
                    self._close(each, "ended: its client was not heard of for too long")

    def _forget(self, served: Served) -> None:
        with self._changed:
            self._by_id.pop(served.id, None)
            if self._common is served:
                self._common = None

    @staticmethod
    def _close(served: Served, why: str) -> None:
        complain(f"session {served.number}: {why}")
        try:
            threading.Thread(target=served.close, daemon=True).start()
        except RuntimeError:  # there can be no more threads, and this one has more to do than to wait
            served.close(seconds=0.0)
