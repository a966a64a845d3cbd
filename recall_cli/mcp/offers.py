"""What a person gives to a model by hand: resources to look at, and the prompt that resumes an agent."""

from __future__ import annotations

from typing import Any

from recall_cli.mcp.framing import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_MISSING, Refused
from recall_cli.mcp.session import Session
from store.errors import InvalidInput, NotFound, RecallError
from store.text import check_agent, check_text, json_for_display, quoted

_SCHEME = "recall://agents/"
_PAGE = 50  # agents of a list
_MOST_RECORDS = 1 << 20  # bytes; a model's context holds less
_KINDS = {
    "briefing": ("Briefing", "The text that the agent's next process starts from."),
    "records": ("Records", "The newest record of every key, as key and value."),
}

TEMPLATES = [
    {
        "uriTemplate": f"{_SCHEME}{{agent_id}}/{kind}",
        "name": kind,
        "title": f"{title} of an agent",
        "description": about,
        "mimeType": "text/plain",
    }
    for kind, (title, about) in _KINDS.items()
]
PROMPTS = [
    {
        "name": "resume",
        "title": "Resume an agent",
        "description": "Have the model work as an agent, from where its last process stopped.",
        "arguments": [
            {"name": "agent_id", "description": "The agent's id.", "required": True},
            {"name": "task", "description": "What to do, beside going on.", "required": False},
        ],
    }
]


def resources(session: Session, cursor: Any) -> dict[str, Any]:
    """The briefing and the records of each agent, a page at a time; nothing where there is no store yet."""
    after = "" if cursor is None else _agent(cursor, "cursor")
    try:
        with session.reading() as backend:
            agents = [lease.agent for lease in backend.leases(after=after, limit=_PAGE + 1)]
    except NotFound:
        agents = []
    except RecallError as problem:
        raise Refused(INTERNAL_ERROR, problem.message) from None
    listed = [
        {
            "uri": f"{_SCHEME}{agent}/{kind}",
            "name": f"{agent} {kind}",
            "title": f"{title} of {agent}",
            "description": about,
            "mimeType": "text/plain",
        }
        for agent in agents[:_PAGE]
        for kind, (title, about) in _KINDS.items()
    ]
    return {"resources": listed} | ({"nextCursor": agents[_PAGE - 1]} if len(agents) > _PAGE else {})


def read(session: Session, uri: Any) -> dict[str, Any]:
    """One resource's text."""
    if not isinstance(uri, str):
        raise Refused(INVALID_PARAMS, f"resources/read needs uri, such as {_SCHEME}AGENT/briefing")
    agent, _, kind = uri.removeprefix(_SCHEME).rpartition("/")
    if not uri.startswith(_SCHEME) or kind not in _KINDS:
        raise Refused(
            RESOURCE_MISSING, f"no resource {quoted(uri)}; they are {_SCHEME}AGENT/briefing and …/records", {"uri": uri}
        )
    try:
        text = _briefing(session, agent) if kind == "briefing" else _records(session, agent)
    except (NotFound, InvalidInput) as problem:
        raise Refused(RESOURCE_MISSING, problem.message, {"uri": uri}) from None
    except RecallError as problem:
        raise Refused(INTERNAL_ERROR, problem.message) from None
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}


def _briefing(session: Session, agent: str) -> str:
    from recall_cli.mcp.handlers import agent_briefing

    return str(agent_briefing(session, {"agent_id": agent})["briefing"])


def _records(session: Session, agent: str) -> str:
    from recall_cli.newest import newest_records

    lines: list[str] = []
    size = 0
    with session.viewing(agent) as view:
        found = newest_records(view)
        for key, value in found:
            lines.append(f"{key}   {json_for_display(value)}")
            size += len(lines[-1].encode()) + 1
            if size > _MOST_RECORDS:
                lines[-1] = "… and more; all of them: recall records " + agent
                break
    return "\n".join(lines)


def prompt(params: dict[str, Any]) -> dict[str, Any]:
    """The messages of a prompt."""
    given = params.get("arguments") or {}
    if params.get("name") != "resume" or not isinstance(given, dict):
        raise Refused(INVALID_PARAMS, f"no prompt {quoted(params.get('name'))}; there is resume")
    unknown = sorted(set(given) - {"agent_id", "task"})
    if unknown:
        raise Refused(INVALID_PARAMS, f"{quoted(unknown[0])} is no argument of resume; it takes agent_id and task")
    agent = _agent(given.get("agent_id"), "agent_id")
    text = (
        f"You are the agent {agent}. Before anything else call agent_resume with agent_id {agent}, read the briefing "
        "that comes back, and settle what it says was interrupted. Then go on from where it stands, without repeating "
        "what is done, and keep the working state current as you go."
    )
    try:
        task = check_text("task", given.get("task") or "", limit=64 * 1024)
    except InvalidInput as problem:
        raise Refused(INVALID_PARAMS, problem.message) from None
    said = f"{text}\n\n{task}" if task else text
    content = {"type": "text", "text": said}
    return {"description": f"Resume {agent}", "messages": [{"role": "user", "content": content}]}


def _agent(value: Any, field: str) -> str:
    try:
        return check_agent(value)
    except InvalidInput:
        was = "is missing" if value is None else f"must be an agent's id, not {quoted(value)}"
        raise Refused(INVALID_PARAMS, f"{field} {was}") from None
