"""What networks and bad stores do to a request, each as a fault that ``Proxy.inject`` takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from xml.sax.saxutils import escape

from tests.shipping.proxy import LONGEST_WAIT, Fault, Forward, Reply, Request


class AnswerLost(Fault):
    """The server does it, and the client never learns."""

    def act(self, request: Request, forward: Forward) -> None:
        forward(request)


class RequestLost(Fault):
    """The connection is cut before the server sees anything."""

    def act(self, request: Request, forward: Forward) -> None:
        return None


class Delayed(Fault):
    """The connection is cut, and the request still lands: when the test releases it, as late as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Callable[[], Reply]] = []
        self.landed: list[Reply] = []

    def act(self, request: Request, forward: Forward) -> None:
        self._held.append(lambda: forward(request))

    def land(self) -> Reply:
        """Let the oldest one held land now; the server's answer to it, which nobody else sees."""
        self.landed.append(self._held.pop(0)())
        return self.landed[-1]


class Answer(Fault):
    """An answer that the server did not give, with S3's code in its XML; ``applied``: it was done all the same."""

    def __init__(
        self, status: int, code: str = "", *, applied: bool = False, body: bytes | None = None, **headers: str
    ) -> None:
        super().__init__()
        xml = f"<Error><Code>{escape(code)}</Code><Message>as the test asked for</Message></Error>"
        self._applied = applied
        self._reply = Reply(
            status,
            {"content-type": "application/xml", **{name.replace("_", "-"): text for name, text in headers.items()}},
            (f'<?xml version="1.0" encoding="UTF-8"?>\n{xml}'.encode() if code else b"") if body is None else body,
        )

    def act(self, request: Request, forward: Forward) -> Reply:
        if self._applied:
            forward(request)
        return self._reply


def slow_down(*, applied: bool = False) -> Answer:
    """503 as S3 gives it under load; with ``applied`` although it was done."""
    return Answer(503, "SlowDown", applied=applied)


def too_many() -> Answer:
    """429, as R2 gives it for more than one write of a key in a second."""
    return Answer(429, "TooManyRequests")


def conflict() -> Answer:
    """409: another conditional write of the key was in progress."""
    return Answer(409, "ConditionalRequestConflict")


def precondition_failed() -> Answer:
    """412, whatever is there."""
    return Answer(412, "PreconditionFailed")


def expired() -> Answer:
    """The credentials are no longer good."""
    return Answer(403, "ExpiredToken")


def skewed() -> Answer:
    """The client's clock is too far off."""
    return Answer(403, "RequestTimeTooSkewed")


class RequestHeader(Fault):
    """A header of the request is changed on the way, as ``change`` of its value ("" if absent); None leaves it out."""

    def __init__(self, name: str, change: Callable[[str], str | None]) -> None:
        super().__init__()
        self._name, self._change = name, change

    def act(self, request: Request, forward: Forward) -> Reply:
        return forward(request.with_header(self._name, self._change(request.headers.get(self._name, ""))))


class Rewritten(Fault):
    """The request asks for something else: its path and query are those that ``change`` gives."""

    def __init__(self, change: Callable[[Request], str]) -> None:
        super().__init__()
        self._change = change

    def act(self, request: Request, forward: Forward) -> Reply:
        return forward(replace(request, target=self._change(request)).signed())


class ConditionIgnored(Fault):
    """A store that does not know conditions: it writes whatever the request says."""

    def act(self, request: Request, forward: Forward) -> Reply:
        return forward(request.with_header("if-match", None).with_header("if-none-match", None))


class Changed(Fault):
    """The server's answer, changed by a function."""

    def __init__(self, change: Callable[[Reply], Reply]) -> None:
        super().__init__()
        self._change = change

    def act(self, request: Request, forward: Forward) -> Reply:
        return self._change(forward(request))


def answer_headers(headers: Mapping[str, str | None]) -> Changed:
    """These headers are set in the answer, or left out where None."""

    def change(reply: Reply) -> Reply:
        given = {**reply.headers, **{name.lower(): text for name, text in headers.items()}}
        return replace(reply, headers={name: text for name, text in given.items() if text is not None})

    return Changed(change)


def byte_changed() -> Changed:
    """The last byte of the answer's body is another one."""
    return Changed(lambda reply: replace(reply, body=reply.body[:-1] + bytes([reply.body[-1] ^ 1])))


def cut_short() -> Changed:
    """The connection is cut in the middle of the answer's body."""
    return Changed(lambda reply: replace(reply, body=reply.body[: len(reply.body) // 2], length=len(reply.body)))


class Slow(Fault):
    """The server does it at once, and the answer takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def act(self, request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        time.sleep(self._seconds)
        return reply


class Pause(Fault):
    """A gate: requests wait until it is released, before the server sees them or with its answer in hand.

    With ``then`` another fault is done to each of them once it is through.
    """

    def __init__(self, *, answered: bool = False, then: Fault | None = None) -> None:
        super().__init__()
        self._answered = answered
        self._then = then
        self._open = threading.Event()
        self.waiting = 0

    def act(self, request: Request, forward: Forward) -> Reply | None:
        reply = forward(request) if self._answered else None
        with self._changed:
            self.waiting += 1
            self._changed.notify_all()
        self._open.wait(LONGEST_WAIT)
        if self._then is not None:
            return self._then.run(request, forward)
        return reply if reply is not None else forward(request)

    def wait_for_waiting(self, count: int = 1) -> None:
        """Wait until so many requests stand at the gate."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting >= count, LONGEST_WAIT), "nothing came to the gate"

    def release(self) -> None:
        self._open.set()


class Hang(Fault):
    """No answer, and no cut either: the client has to give up by itself. The server never sees the request."""

    def __init__(self) -> None:
        super().__init__()
        self._open = threading.Event()

    def run(self, request: Request, forward: Forward) -> None:
        with self._changed:
            self.happened += 1
            self._changed.notify_all()
        self._open.wait(LONGEST_WAIT)

    def release(self) -> None:
        self._open.set()
