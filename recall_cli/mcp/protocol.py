"""Messages and answers: the Model Context Protocol of every revision so far.

Up to 2025-11-25 a client opens a session with ``initialize``. From 2026-07-28
on there is no session: each request names its version in ``_meta``. Both are
served side by side, each request as what it declares itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from recall_cli import __version__
from recall_cli.mcp import framing, offers
from recall_cli.mcp.fitting import LONGEST_ANSWER, result_text
from recall_cli.mcp.framing import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Refused, failure
from recall_cli.mcp.log import complain
from recall_cli.mcp.refusals import guarded, refusal
from recall_cli.mcp.session import Session
from recall_cli.mcp.tool import Tool
from recall_cli.mcp.tools import offered
from store.errors import InvalidInput, RecallError
from store.text import quoted

SESSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SESSIONLESS = ("2026-07-28",)
_BATCHES = "2025-03-26"  # the one revision with batches; those before did not say, those after have none

META = "io.modelcontextprotocol/"
_SERVER = {"name": "recall", "title": "Recall", "version": __version__}

INSTRUCTIONS = (
    "Recall is an agent's durable memory: what it was doing survives the process. To work as an agent call "
    "agent_resume once and continue from the briefing that comes back. While working, keep update_working_state "
    "current, record what matters with record_turn, keep long texts with store_output, and say where work lives with "
    "set_pointer. Wrap every call that touches the outside world in begin_action and end_action, so that a crash in "
    "between neither repeats nor loses it. Stop with agent_release."
)
_INSTRUCTIONS_TO_LOOK = (
    "Recall is the durable memory of AI agents. Here it is to be looked at: list_agents finds agents, agent_briefing "
    "tells how the work of one stands, verify checks that the store still says what was written."
)


class Protocol:
    """One client's conversation.

    Args:
        agent_tools: whether to offer the tools of agents, and not only those of whoever looks after them.
    """

    def __init__(self, session: Session, *, agent_tools: bool = True) -> None:
        self.session = session
        self.tools: Mapping[str, Tool] = offered(write=session.write, agent_tools=agent_tools)
        self.version = ""  # of the session, once there is one

    def answer(self, message: Any) -> Any:
        """The answer to what ``framing.parse`` made of a line; None if there is none."""
        if isinstance(message, framing.Broken):
            return message.answer()
        if not isinstance(message, list):
            return self._one(message)
        if self.version != _BATCHES:
            return failure(None, INVALID_REQUEST, "batches are not part of this protocol version; send single messages")
        if not message:
            return failure(None, INVALID_REQUEST, "the batch is empty")
        answers = [self._one(each, in_batch=True) for each in message]
        return [each for each in answers if each is not None] or None

    def _one(self, message: Any, *, in_batch: bool = False) -> dict[str, Any] | None:
        id, method, wrong = _envelope(message)
        if wrong:
            return failure(id, INVALID_REQUEST, wrong)
        if id is None:  # a notification, or an answer to what we never asked
            return None
        try:
            params = message.get("params", {})
            if not isinstance(params, dict):
                raise Refused(INVALID_PARAMS, "params must be an object")
            if method == "initialize" and in_batch:
                raise Refused(INVALID_REQUEST, "initialize must not be part of a batch")
            result = self._result(method, params)
        except Refused as problem:
            return failure(id, problem.code, problem.message, problem.data)
        return {"jsonrpc": "2.0", "id": id, "result": result}

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        meta = params.get("_meta")
        if isinstance(meta, dict) and META + "protocolVersion" in meta and method != "initialize":
            _check_declared(meta)
            try:
                result = {"resultType": "complete", **self._method(_OF_SESSIONLESS, method)(self, params)}
            except Refused as problem:
                if problem.code == framing.RESOURCE_MISSING:  # that revision retired it
                    problem.code = INVALID_PARAMS
                raise
            keepable = _KEEPABLE.get(method)
            kept = {} if keepable is None else {"ttlMs": keepable, "cacheScope": "private"}
            return {**result, **kept, "_meta": {META + "serverInfo": _SERVER}}
        if not self.version and method not in ("initialize", "ping", "server/discover"):
            raise Refused(INVALID_REQUEST, f"{quoted(method)} came before initialize; send initialize first")
        return self._method(_OF_SESSIONS, method)(self, params)

    @staticmethod
    def _method(table: Mapping[str, Method], method: str) -> Method:
        if method not in table:
            raise Refused(METHOD_NOT_FOUND, f"no method {quoted(method)}; there are " + ", ".join(table))
        return table[method]

    # -- the methods ------------------------------------------------------------------------

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise Refused(INVALID_PARAMS, "initialize needs protocolVersion, a text such as " + quoted(SESSIONS[-1]))
        self.version = wanted if wanted in SESSIONS else SESSIONS[-1]
        database = {"backend": "local", "url": os.path.abspath(self.session.directory)}
        return {"protocolVersion": self.version, **self._about(), "serverInfo": {**_SERVER, "database": database}}

    def _discover(self, params: dict[str, Any]) -> dict[str, Any]:
        versions = {"supportedVersions": [*SESSIONLESS, *reversed(SESSIONS)]}
        return {**versions, **self._about()}

    def _about(self) -> dict[str, Any]:
        instructions = INSTRUCTIONS if "agent_resume" in self.tools else _INSTRUCTIONS_TO_LOOK
        capabilities: dict[str, Any] = {"tools": {"listChanged": False}, "resources": {}}
        if "agent_resume" in self.tools:
            capabilities["prompts"] = {"listChanged": False}
        return {"capabilities": capabilities, "instructions": instructions}

    def _ping(self, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _list(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("cursor") is not None:
            raise Refused(INVALID_PARAMS, "there is no such cursor: the list has one page")
        return {"tools": [each.listed() for each in self.tools.values()]}

    def _resources(self, params: dict[str, Any]) -> dict[str, Any]:
        return offers.resources(self.session, params.get("cursor"))

    def _templates(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"resourceTemplates": offers.TEMPLATES}

    def _read(self, params: dict[str, Any]) -> dict[str, Any]:
        return offers.read(self.session, params.get("uri"))

    def _prompts(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"prompts": offers.PROMPTS if "agent_resume" in self.tools else []}

    def _prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        return offers.prompt(params if "agent_resume" in self.tools else {})

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments")
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise Refused(INVALID_PARAMS, self._no_tool(name))
        if arguments is None:
            arguments = {}
        try:
            if not isinstance(arguments, dict):
                raise InvalidInput(field="arguments", reason=f"must be an object, not {quoted(arguments)}")
            text, failed = result_text(tool, tool.call(self.session, arguments)), False
        except RecallError as problem:
            text, failed = refusal(problem), True
        except Exception as problem:  # noqa: BLE001 (one bad call must not end the others' session)
            text, failed = _unexpected(tool, problem), True
        return {"content": [{"type": "text", "text": text}], "isError": failed}

    def _no_tool(self, name: Any) -> str:
        if not isinstance(name, str):
            return "tools/call needs name, the tool's name"
        if name in offered(write=True, agent_tools=True):
            why = "it has to be started with --write" if not self.session.write else "it was started without it"
            return f"this server does not offer {name}: {why}"
        near = get_close_matches(name, self.tools, n=1)
        hint = f"did you mean {near[0]}?" if near else "there are " + ", ".join(self.tools)
        return guarded(f"unknown tool {quoted(name)}; {hint}")


Method = Callable[[Protocol, dict[str, Any]], dict[str, Any]]

_OF_BOTH: Mapping[str, Method] = {
    "tools/list": Protocol._list,
    "tools/call": Protocol._call,
    "resources/list": Protocol._resources,
    "resources/templates/list": Protocol._templates,
    "resources/read": Protocol._read,
    "prompts/list": Protocol._prompts,
    "prompts/get": Protocol._prompt,
}
_OF_SESSIONS: Mapping[str, Method] = {"initialize": Protocol._initialize, "ping": Protocol._ping, **_OF_BOTH}
_OF_SESSIONLESS: Mapping[str, Method] = {"server/discover": Protocol._discover, **_OF_BOTH}

# Milliseconds that a client may keep an answer: this process never changes what it offers, but agents change.
_KEEPABLE = dict.fromkeys(("server/discover", "tools/list", "prompts/list", "resources/templates/list"), 300_000) | {
    "resources/list": 0,
    "resources/read": 0,
}


def line_of(answer: Any) -> bytes:
    """An answer as a line: a batch's as several if it is too long, and another one as an error that says so."""
    line = framing.encode(answer)
    if len(line) <= LONGEST_ANSWER:
        return line
    if isinstance(answer, list):
        half = len(answer) // 2
        return line_of(answer[:half]) + line_of(answer[half:]) if half else line_of(answer[0])
    text = f"the answer has {len(line):,} bytes, more than the {LONGEST_ANSWER:,} that clients read"
    return framing.encode(failure(answer["id"], framing.INTERNAL_ERROR, text))


def cancels(message: Any) -> str | int | None:
    """The id of the request that a message cancels, or None."""
    if isinstance(message, dict) and message.get("method") == "notifications/cancelled" and "id" not in message:
        params = message.get("params")
        id = params.get("requestId") if isinstance(params, dict) else None
        return id if isinstance(id, (str, int)) and not isinstance(id, bool) else None
    return None


def _envelope(message: Any) -> tuple[str | int | None, str, str]:
    """A message's id (None for one that wants no answer), its method, and what is wrong with it, or ""."""
    if not isinstance(message, dict):
        return None, "", "a message must be an object"
    id = message.get("id")
    if isinstance(id, bool) or not isinstance(id, (str, int, type(None))):
        return None, "", f"id must be a text or a whole number, not {quoted(id)}"
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return None, "", ""
    if message.get("jsonrpc") != "2.0":
        return id, "", 'jsonrpc must be "2.0"'
    if not isinstance(method, str):
        return id, "", "method must be a text"
    if "id" in message and id is None:
        return None, "", "id must not be null"
    return id, method, ""


def _check_declared(meta: Mapping[str, Any]) -> None:
    version = meta[META + "protocolVersion"]
    if not isinstance(version, str):
        raise Refused(INVALID_PARAMS, f"{META}protocolVersion must be a text")
    if version not in SESSIONLESS:
        data = {"supported": [*SESSIONLESS, *reversed(SESSIONS)], "requested": version}
        raise Refused(framing.UNSUPPORTED_VERSION, f"protocol version {quoted(version)} is not supported", data)
    if not isinstance(meta.get(META + "clientCapabilities"), dict):
        raise Refused(INVALID_PARAMS, f"_meta needs {META}clientCapabilities, an object")


def _unexpected(tool: Tool, problem: Exception) -> str:
    if os.environ.get("RECALL_DEBUG") not in (None, "", "0"):
        import traceback

        complain("".join(traceback.format_exception(problem)))
    said = f"unexpected {type(problem).__name__} in {tool.name}: {quoted(problem, 200)}"
    complain(said)
    return guarded(f"{said}; this is a defect of recall, and the server goes on")
