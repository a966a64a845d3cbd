"""What a request over HTTP is answered: the Model Context Protocol's streamable HTTP.

Nothing is ever pushed, so that every answer is a single JSON document and
there are no streams: GET is refused, as the protocol has it for such servers.
"""

from __future__ import annotations

import hmac
import ipaddress
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from recall_cli.mcp import framing
from recall_cli.mcp.connection import Connection, Refused, Request, Response, Room
from recall_cli.mcp.framing import LONGEST_LINE, encode, failure
from recall_cli.mcp.protocol import META, SESSIONLESS, SESSIONS, cancels, line_of
from recall_cli.mcp.sessions import Cancelled, Ended, Served, Sessions, TooMany
from store.text import quoted

PATH = "/mcp"
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"

# The status beside an error, as the sessionless revision has it. The others have none: 200.
_STATUS = {
    framing.PARSE_ERROR: 400,
    framing.INVALID_REQUEST: 400,
    framing.INVALID_PARAMS: 400,
    framing.HEADER_MISMATCH: 400,
    framing.UNSUPPORTED_VERSION: 400,
    framing.METHOD_NOT_FOUND: 404,
}
_ENDING = "the server is ending"
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}  # what Mcp-Name repeats


class Endpoint:
    """The one address that a client talks to.

    Args:
        token: what every request has to bring.
        local: whether it is reached over loopback only.
    """

    def __init__(self, sessions: Sessions, token: str, *, local: bool) -> None:
        self._sessions = sessions
        self._token = token.encode()
        self._local = local
        self._room = Room(LONGEST_LINE)

    def answer(self, request: Request, connection: Connection) -> Response:
        """Carry a request out. Raises Refused, and Gone if the client is."""
        self._check_place(request)
        if request.path.rstrip("/") != PATH:
            raise Refused(404, f"there is nothing here; the endpoint is {PATH}")
        self._check_token(request)
        if request.method == "DELETE":
            return self._delete(request)
        if request.method != "POST":
            raise Refused(405, "messages are sent with POST; nothing is pushed", {"Allow": "POST, DELETE"})
        _check_types(request)
        data = connection.body(request, LONGEST_LINE, self._room)
        size = len(data)
        try:
            message = framing.parse(data, "body")
            data.clear()
            return self._post(request, message, connection)
        finally:
            self._room.give_back(size)

    # -- who asks ------------------------------------------------------------------------------

    def _check_place(self, request: Request) -> None:
        """A page in a browser may have been led here by a name that it made mean this address (DNS rebinding)."""
        host = _host_of(request.headers.get("host", ""))
        if self._local and not _is_loopback(host):
            raise Refused(403, f"Host must be this machine, not {quoted(host, 80)}")
        origin = request.headers.get("origin")
        if origin is None:
            return
        scheme, _, rest = origin.partition("://")
        from_host = _host_of(rest) if scheme in ("http", "https") else ""
        if not _is_loopback(from_host) and not (from_host == host and _address(from_host)):
            raise Refused(403, f"requests from {quoted(origin, 80)} are not taken")

    def _check_token(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        if scheme.lower() != "bearer" or not right:
            error = ' error="invalid_token"' if given else ""
            said = "the token is wrong" if given else "a token is needed"
            raise Refused(401, f"{said}: Authorization: Bearer TOKEN", {"WWW-Authenticate": f"Bearer{error}"})

    # -- messages -------------------------------------------------------------------------------

    def _post(self, request: Request, message: Any, connection: Connection) -> Response:
        if isinstance(message, framing.Broken):
            return _response(message.answer(), 400)
        declared = request.headers.get(_VERSION)
        if declared is not None and declared not in (*SESSIONS, *SESSIONLESS):
            return _response(_unsupported(message, declared), 400)
        method = message.get("method") if isinstance(message, dict) else None
        try:
            if method != "initialize" and (declared in SESSIONLESS or _version_in(message) is not None):
                return self._without_session(request, message, connection)
            if method == "initialize" and _SESSION not in request.headers:
                return self._initialize(message)
            served = self._found(request)
            return _response(self._answer(served, message, lambda: False), None)
        except Cancelled:
            return _response(failure(_id_of(message), framing.CANCELLED, "cancelled before its turn"), 200)
        except Ended:
            if self._sessions.closing:
                raise Refused(503, _ENDING) from None
            raise Refused(404, "the session has ended; initialize again") from None

    def _initialize(self, message: dict[str, Any]) -> Response:
        try:
            served, answer = self._sessions.open(message)
        except TooMany:
            raise Refused(503, "there are too many sessions at work; try again later", {"Retry-After": "60"}) from None
        except Ended:
            raise Refused(503, _ENDING) from None
        return _response(answer, None, {} if served is None else {"Mcp-Session-Id": served.id})

    def _found(self, request: Request) -> Served:
        id = request.headers.get(_SESSION)
        if id is None:
            raise Refused(400, "the header Mcp-Session-Id is missing; initialize gives one")
        served = self._sessions.find(id)
        if served is None:
            raise Ended
        return served

    def _without_session(self, request: Request, message: Any, connection: Connection) -> Response:
        """A request of the revision that has no sessions; its agents belong to all clients of that kind together."""
        if not isinstance(message, dict):
            return _response(failure(None, framing.INVALID_REQUEST, "the body must be a single message"), 400)
        if "id" in message:
            wrong = _mismatch(request, message)
            if wrong:
                return _response(failure(_id_of(message), framing.HEADER_MISMATCH, wrong), 400)
        while True:
            try:
                served = self._sessions.common()
            except Ended:
                raise Refused(503, _ENDING) from None
            try:
                answer = self._answer(served, message, connection.is_gone)
            except Ended:
                continue  # it was idle for too long, just now
            error = answer.get("error") if isinstance(answer, dict) else None
            return _response(answer, _STATUS.get(error["code"]) if error else None)

    @staticmethod
    def _answer(served: Served, message: Any, is_gone: Callable[[], bool]) -> Any:
        served.touch()
        cancelled = cancels(message)
        if cancelled is not None:
            served.cancel(cancelled)
            return None
        if isinstance(message, dict) and (message.get("method") == "ping" or message.get("id") is None):
            return served.protocol.answer(message)  # whatever call is under way
        return served.answer(message, is_gone)

    def _delete(self, request: Request) -> Response:
        declared = request.headers.get(_VERSION)
        if declared in SESSIONLESS and _SESSION not in request.headers:
            raise Refused(405, "this revision has no sessions", {"Allow": "POST"})
        try:
            self._sessions.end(self._found(request))
        except Ended:
            raise Refused(404, "there is no such session") from None
        return Response(204)


def refusal(problem: Refused) -> Response:
    """The response to a request that is refused before it reaches the protocol."""
    body = encode(failure(None, framing.INVALID_REQUEST, problem.reason))
    return Response(problem.status, body, problem.headers)


def _response(answer: Any, status: int | None, headers: dict[str, str] | None = None) -> Response:
    """The response with an answer of the protocol's: without one, 202."""
    if answer is None:
        return Response(202, headers=headers)
    if isinstance(answer, list):
        return Response(200, b"[" + b",".join(line_of(each).rstrip(b"\n") for each in answer) + b"]\n", headers)
    if status is None:
        status = 400 if answer.get("id") is None else 200
    return Response(status, line_of(answer), headers)


def _check_types(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise Refused(415, "Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "the body must not be compressed", {"Accept-Encoding": "identity"})
    accepted = [each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "*/*").split(",")]
    if not {"application/json", "application/*", "*/*"} & set(accepted):
        raise Refused(406, "answers are application/json, which Accept does not name")


def _version_in(message: Any) -> Any:
    """The revision that a message declares itself to be of, None if it declares none."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(META + "protocolVersion") if isinstance(meta, dict) else None


def _mismatch(request: Request, message: dict[str, Any]) -> str:
    """How the headers that repeat a part of the message differ from it, or ""."""
    method, params = message.get("method"), message.get("params")
    pairs = [("MCP-Protocol-Version", _version_in(message)), ("Mcp-Method", method)]
    key = _NAMED.get(method) if isinstance(method, str) else None
    if key and isinstance(params, dict) and params.get(key) is not None:
        pairs.append(("Mcp-Name", params[key]))
    for name, wanted in pairs:
        given = request.headers.get(name.lower())
        if given is None:
            return f"the header {name} is missing"
        if (_decoded(given) if name == "Mcp-Name" else given) != wanted:
            return f"the header {name} says {quoted(given)}, the body {quoted(wanted)}"
    return ""


def _decoded(value: str) -> str | None:
    """A header's value, which may be in Base64 as the protocol has it; None if that is malformed."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return b64decode(value[9:-2], validate=True).decode("utf-8")
    except ValueError:
        return None


def _unsupported(message: Any, version: str) -> dict[str, Any]:
    data = {"supported": [*SESSIONLESS, *reversed(SESSIONS)], "requested": version}
    text = f"protocol version {quoted(version)} is not supported"
    return failure(_id_of(message), framing.UNSUPPORTED_VERSION, text, data)


def _id_of(message: Any) -> str | int | None:
    id = message.get("id") if isinstance(message, dict) else None
    return id if isinstance(id, (str, int)) and not isinstance(id, bool) else None


def _host_of(authority: str) -> str:
    """The host of ``HOST``, ``HOST:PORT`` or ``[HOST]:PORT``; "" if it is malformed."""
    if authority.startswith("["):
        host, found, port = authority[1:].partition("]")
        port = port.removeprefix(":") if port[:1] in (":", "") else "?"
        host = host if found else ""
    else:
        host, _, port = authority.partition(":")
    return host.lower() if not port.strip("0123456789") else ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)
