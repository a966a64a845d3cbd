"""``recall mcp --http``: the server's process. It listens, gives each connection a thread, and ends in order.

As over stdio the main thread only waits, so that it always notices a signal.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping

from recall_cli.mcp.connection import Connection, Gone, Refused
from recall_cli.mcp.endpoint import PATH, Endpoint, refusal
from recall_cli.mcp.entry import TOKEN
from recall_cli.mcp.log import complain
from recall_cli.mcp.protocol import Protocol
from recall_cli.mcp.serve import LAST, RELEASING, SIGNALS, catch_signals
from recall_cli.mcp.sessions import Sessions
from recall_cli.streams import wait_for
from store.errors import InvalidInput, Unavailable
from store.text import quoted
from store.value import value

MOST_CONNECTIONS = 128
_BACKLOG = 128
_LEAST_TOKEN, _MOST_TOKEN = 16, 4096
_TOKEN_FORM = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_PAUSE = 0.1  # seconds, where the system has no descriptor left for one more connection
_MOST_SAID = 20  # refusals that the log names ...
_SAID_TIME = 60.0  # ... in so many seconds


class CannotListen(Unavailable):
    """The address is taken, or is none of this machine's."""

    code = "cannot_listen"
    template = "cannot listen on {address}: {reason}"
    hint_template = "choose another port; 0 takes any that is free"


@value
class Address:
    """Where to listen: ``PORT``, ``HOST:PORT`` or ``[HOST]:PORT``."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Address:
        """Raises InvalidInput."""
        host, found, port = text.rpartition(":")
        if found and host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or (found and not host):
            raise InvalidInput(field="--http", reason=f"must be PORT, HOST:PORT or [IPV6]:PORT, not {quoted(text)}")
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise InvalidInput(field="--http", reason=f"needs a port from 0 to 65535, not {quoted(port)}")
        if not re.fullmatch(r"[A-Za-z0-9._:%-]*", host):
            raise InvalidInput(field="--http", reason=f"has no host by the name {quoted(host)}")
        return Address(host or "127.0.0.1", int(port))

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{PATH}"


def given_token(file: str, environment: Mapping[str, str]) -> str:
    """The token that clients have to bring, of a file or of RECALL_MCP_TOKEN; "" if there is none.

    Raises:
        InvalidInput: it is too short, or has what no header can carry. The message does not show it.
    """
    if file:
        field = "--token-file"
        try:
            with open(file, "rb") as opened:
                text = opened.read(_MOST_TOKEN + 1).decode("latin-1").strip()
        except OSError as problem:
            reason = problem.strerror or "it is unreadable"
            raise InvalidInput(field=field, reason=f"{quoted(file)} cannot be read: {reason}") from problem
    else:
        field, text = TOKEN, environment.get(TOKEN, "").strip()
        if not text:
            return ""
    if not _LEAST_TOKEN <= len(text) <= _MOST_TOKEN or not _TOKEN_FORM.fullmatch(text):
        reason = f"must hold {_LEAST_TOKEN} to {_MOST_TOKEN:,} letters, digits and . _ ~ + / - characters"
        raise InvalidInput(field=field, reason=reason, hint="make one with: openssl rand -hex 32")
    return text


def serve(make: Callable[[], Protocol], address: Address, token: str, timeout: float) -> int:
    """Listen and answer until told to end.

    Args:
        make: a new client's protocol, with a session of its own.
        token: that clients have to bring; "" to make one, which is said on stderr.
        timeout: seconds after which a session without a call is ended.

    Returns:
        0, or 130 after an interrupt from the keyboard.

    Raises:
        CannotListen, InvalidInput: nothing was begun.
    """
    listener = _listen(address)
    bound = listener.getsockname()
    local = ipaddress.ip_address(bound[0].partition("%")[0]).is_loopback
    if not local and not token:
        listener.close()
        reason = f"{quoted(address.host)} can be reached from other machines, so a token of yours is needed"
        raise InvalidInput(field="--http", reason=reason, hint=f"put one into {TOKEN}, or name its --token-file")
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    # What is ignored, as under nohup, stays so.
    seen = catch_signals(woken, [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN])
    sessions = Sessions(make, timeout)
    clients = _Clients(Endpoint(sessions, token or (made := secrets.token_urlsafe(32)), local=local))
    complain(f"listening on {Address(address.host, bound[1]).url}")
    if not token:
        complain(f"its token, until it ends: {made}")
    while not seen:
        ready = wait_for({listener.fileno(): select.POLLIN, wake: select.POLLIN})
        if wake in ready:
            os.read(wake, 4096)
        if listener.fileno() in ready and not seen:
            clients.take(listener)
    listener.close()
    clients.end()
    begun = time.monotonic()
    sessions.close(LAST, within=RELEASING)
    clients.wait(begun + LAST)
    return 130 if signal.SIGINT in seen else 0


def _listen(address: Address) -> socket.socket:
    try:
        flags = socket.AI_PASSIVE
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is no name of a host"
        raise CannotListen(address=address.host, reason=reason, hint="name an address of this machine") from problem
    family, kind, number, _, where = found[0]
    try:
        listener = socket.socket(family, kind, number)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(where)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as problem:
        reason = (problem.strerror or "it is not possible").lower()
        raise CannotListen(address=f"{address.host}, port {address.port}", reason=reason) from problem
    return listener


class _Clients:
    """The connections, each with its thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._changed = threading.Condition()
        self._open: set[Connection] = set()
        self._ending = False
        self._said: list[float] = []

    def take(self, listener: socket.socket) -> None:
        """Accept a connection. Where there are too many, the one that has waited for longest goes."""
        try:
            stream, peer = listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return
        except OSError:  # no descriptor or no memory is left
            self._make_room()
            time.sleep(_PAUSE)
            return
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # some systems say so where the client has gone already
            stream.close()
            return
        connection = Connection(stream, str(peer[0]))
        with self._changed:
            full = len(self._open) >= MOST_CONNECTIONS
        if full and not self._make_room():
            self._say(connection.peer, Refused(503, "there are too many connections"))
            stream.close()
            return
        with self._changed:
            self._open.add(connection)
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="recall-mcp-client").start()
        except RuntimeError:  # the system allows no more threads
            with self._changed:
                self._open.discard(connection)
            stream.close()

    def _make_room(self) -> bool:
        with self._changed:
            waiting = [(since, each) for each in self._open if (since := each.waiting_since) is not None]
        return any(each.evict() for _, each in sorted(waiting, key=lambda pair: pair[0]))

    def _serve(self, connection: Connection) -> None:
        try:
            while self._one(connection):
                pass
        except Gone:
            pass
        except Exception as problem:  # noqa: BLE001 (one bad connection must not be seen by the others)
            complain(f"unexpected {type(problem).__name__}: {quoted(problem, 200)}; this is a defect of recall")
        finally:
            connection.close()
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

    def _one(self, connection: Connection) -> bool:
        """Answer one request; whether there may be another. Raises Gone."""
        request = None
        try:
            request = connection.request()
            response = self._endpoint.answer(request, connection)
        except Refused as problem:
            self._say(connection.peer, problem)
            response = refusal(problem)
        except Gone:
            raise
        except Exception as problem:  # noqa: BLE001 (the client gets an answer, and the others are served on)
            said = f"unexpected {type(problem).__name__}: {quoted(problem, 200)}"
            complain(f"{said}; this is a defect of recall")
            response = refusal(Refused(500, said))
        return connection.respond(response, last=request is None or self._ending)

    def _say(self, peer: str, problem: Refused) -> None:
        """Name a refusal in the log. Only so many: whoever sends them could fill a disk."""
        if problem.status == 405:
            return  # how a client finds out that nothing is pushed
        now = time.monotonic()
        with self._changed:
            self._said = [each for each in self._said if now - each < _SAID_TIME]
            if len(self._said) == _MOST_SAID:
                return
            self._said.append(now)
            more = "; further ones are not named for a while" if len(self._said) == _MOST_SAID else ""
        complain(f"{peer}: {problem.status}, {problem.reason}{more}")

    def end(self) -> None:
        """Take no more requests: close the connections that wait for one."""
        self._ending = True
        while self._make_room():
            pass

    def wait(self, ends: float) -> None:
        """Wait until the last answers are out, or no longer."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, max(0.0, ends - time.monotonic()))
