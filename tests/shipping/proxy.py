"""An HTTP proxy between a client and a real S3 server, which records everything and does faults on demand.

    with Proxy(server.endpoint) as proxy:
        lost = proxy.inject(AnswerLost(), "put", key="head.json")
        ...
        assert lost.happened == 1

Requests are real, and so is the connection that is cut. Every exchange is kept
in ``proxy.seen``. A fault that did not happen proves nothing, so each test
asserts ``happened``. The kinds of faults are in ``faults.py``.
"""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from tests.shipping.serve import ACCESS_KEY, SECRET_KEY
from tests.shipping.servers import REGION

LONGEST_WAIT = 30.0  # seconds: a gate that a failed test left closed

Headers = dict[str, str]  # names in lower case


@dataclass(frozen=True)
class Request:
    """One request as it came off the wire; ``target`` is path and query."""

    method: str
    target: str
    headers: Headers
    body: bytes

    @property
    def kind(self) -> str:
        """``get``, ``put``, ``delete`` or ``list``, or another method in lower case."""
        listing = self.method == "GET" and "list-type" in parse_qs(urlsplit(self.target).query)
        return "list" if listing else self.method.lower()

    @property
    def key(self) -> str:
        """The object's whole key, prefix included; "" for a bucket."""
        return unquote(urlsplit(self.target).path).lstrip("/").partition("/")[2]

    def with_header(self, name: str, given: str | None) -> Request:
        """With the header set, or left out for None."""
        headers = {each: text for each, text in self.headers.items() if each != name}
        return replace(self, headers=headers if given is None else {**headers, name: given}).signed()

    def signed(self) -> Request:
        """Signed again after a change: the server checks signatures."""
        unsigned = ("authorization", "x-amz-date", "host", "content-length", "user-agent", "accept-encoding")
        signing = AWSRequest(
            self.method,
            f"http://{self.headers['host']}{self.target}",
            data=self.body,
            headers={name: text for name, text in self.headers.items() if name not in unsigned},
        )
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(signing)
        return replace(
            self, headers={**self.headers, **{name.lower(): str(text) for name, text in signing.headers.items()}}
        )


@dataclass(frozen=True)
class Reply:
    """An answer; ``length`` is what it claims to have, where that is not the truth."""

    status: int
    headers: Headers
    body: bytes
    length: int | None = None


Forward = Callable[[Request], Reply]


@dataclass
class Seen:
    """One exchange: what came in, what went back (None: the connection was cut), and the fault, if one acted."""

    request: Request
    reply: Reply | None = None
    fault: Fault | None = None


class Fault:
    """What is done to a request in the place of forwarding it.

    Attributes:
        happened: how often it was done, to the end.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.happened = 0

    def act(self, request: Request, forward: Forward) -> Reply | None:
        """The answer to give, or None to cut the connection."""
        raise NotImplementedError

    def run(self, request: Request, forward: Forward) -> Reply | None:
        """``act``, counted."""
        reply = self.act(request, forward)
        with self._changed:
            self.happened += 1
            self._changed.notify_all()
        return reply

    def wait(self, times: int = 1) -> None:
        """Wait until it has happened so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.happened >= times, LONGEST_WAIT), f"{self} did not happen"

    def release(self) -> Any:
        """Let go of what it holds back; called for every fault when the proxy closes."""


FaultT = TypeVar("FaultT", bound=Fault)


@dataclass
class _Rule:
    fault: Fault
    kind: str
    key: str
    when: Callable[[Request], bool]
    skip: int
    times: int | None
    count: itertools.count[int] = field(default_factory=itertools.count)

    def takes(self, request: Request) -> bool:
        if self.kind not in ("", request.kind) or not request.key.endswith(self.key) or not self.when(request):
            return False
        number = next(self.count) - self.skip
        return number >= 0 and (self.times is None or number < self.times)


class Proxy:
    """A proxy in front of ``endpoint``, on a port of its own; forwards everything that no rule takes."""

    def __init__(self, endpoint: str) -> None:
        self._upstream = urlsplit(endpoint).netloc
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self.seen: list[Seen] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        """Its address, for the client."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for rule in self._rules:
            rule.fault.release()
        self._server.shutdown()
        self._server.server_close()

    def inject(
        self,
        fault: FaultT,
        kind: str = "",
        *,
        key: str = "",
        when: Callable[[Request], bool] = lambda request: True,
        skip: int = 0,
        times: int | None = 1,
    ) -> FaultT:
        """Do ``fault`` to requests of this kind, whose key ends so, for which ``when`` holds.

        To the first of them; ``skip`` passes over so many before, ``times`` is how many are taken (None: all). Of two
        rules that match, the older one has the request.
        """
        with self._lock:
            self._rules.append(_Rule(fault, kind, key, when, skip, times))
        return fault

    def heal(self) -> None:
        """Forward everything from now on."""
        with self._lock:
            self._rules, old = [], self._rules
        for rule in old:
            rule.fault.release()

    def of(self, kind: str) -> list[Seen]:
        """The exchanges of one kind."""
        return [each for each in list(self.seen) if each.request.kind == kind]

    def answer(self, request: Request) -> Reply | None:
        """What goes back to the client; None cuts its connection."""
        seen = Seen(request)
        with self._lock:
            self.seen.append(seen)
            taken = next((rule for rule in self._rules if rule.takes(request)), None)
        if taken is None:
            seen.reply = self.forward(request)
        else:
            seen.fault = taken.fault
            seen.reply = taken.fault.run(request, self.forward)
        return seen.reply

    def forward(self, request: Request) -> Reply:
        """The server's answer. Host goes on unchanged, since the signature covers it."""
        connection = http.client.HTTPConnection(self._upstream, timeout=LONGEST_WAIT)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, text in request.headers.items():
                if name != "connection":
                    connection.putheader(name, text)
            connection.putheader("connection", "close")
            connection.endheaders(request.body or None)
            found = connection.getresponse()
            headers = {name.lower(): text for name, text in found.getheaders()}
            return Reply(found.status, headers, found.read())
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    proxy: Proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gave up, which is what many tests are about


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): text for name, text in self.headers.items()}
        request = Request(self.command, self.path, headers, self.rfile.read(length))
        reply = self.server.proxy.answer(request)
        if reply is None:
            self.close_connection = True
        else:
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        own = ("connection", "transfer-encoding", "content-length", "keep-alive")
        lines = [f"HTTP/1.1 {reply.status} {http.client.responses.get(reply.status, 'Unknown')}"]
        lines += [f"{name}: {text}" for name, text in reply.headers.items() if name not in own]
        head_only = reply.status in (204, 304) or self.command == "HEAD"
        if not head_only:
            lines.append(f"content-length: {len(reply.body) if reply.length is None else reply.length}")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if head_only else reply.body))
        self.wfile.flush()
        if reply.length is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
