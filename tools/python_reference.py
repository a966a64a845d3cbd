"""The Python reference as Markdown, from signatures and docstrings: the part of docs/python.md below its mark."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import recall_cli
from recall_cli.exits import exit_of
from store import errors, remote_errors
from store.aio import AsyncAgent, AsyncClient

MARK = "<!-- From here on: written by `make generate`, from the code. -->"
_HEADING = re.compile(r"(Args|Attributes|Raises|Returns|Yields):(.*)")
_ENTRY = re.compile(r"[\w, ]+:")
_VALUES = "Context Action ActionEnd ReconcileReport Turn WorkingState Pointer Output OutputRef".split()

# Whatever Python can do, the shell can: each operation and the command that does it.
FROM_A_SHELL = {
    "Client.resume": "resume",
    "Client.close": "release",
    "Agent.acquire": "acquire",
    "Agent.take": "acquire --wait",
    "Agent.release": "release",
    "Agent.refresh": "briefing",
    "Agent.context": "briefing --json",
    "Agent.epoch": "lease show",
    "Agent.lease_held": "lease show",
    "Agent.token": "resume --export",
    "Agent.settle": "resume",
    "Agent.update_working_state": "state set",
    "Agent.working_state_history": "state history",
    "Agent.milestone": "milestone",
    "Agent.record_turn": "turns add",
    "Agent.recent_turns": "turns list",
    "Agent.store_output": "outputs put",
    "Agent.fetch_output": "outputs get",
    "Agent.set_pointer": "pointers set",
    "Agent.remove_pointer": "pointers rm",
    "Agent.pointers": "pointers list",
    "Agent.begin_action": "actions begin",
    "Agent.fence_of": "actions begin",
    "Agent.end_action": "actions end",
    "Agent.pending_actions": "actions list --pending",
    "Agent.last_of_step": "actions list --step",
    "Agent.reconcile": "actions resolve --with",
    "Agent.resolve_action": "actions resolve",
    "Agent.amend_action": "actions amend",
    "Agent.retry_action": "actions retry",
    "Agent.permit_retry": "actions retry --reason",
    "Agent.settle_step": "run",
    "Agent.revise_step": "run --resolver",
    "Agent.tool_class": "log --kind",
    "Agent.begin_run": "exec",
    "Agent.open_run": "exec",
    "Agent.stepped": "exec",
    "Agent.end_run": "exec",
    "Agent.archive": "agents archive",
    "Agent.unarchive": "agents unarchive",
    "Agent.refuse_archived": "agents show",
}


def operations() -> list[str]:
    """Everything public of a client and an agent, as ``FROM_A_SHELL`` names it."""
    kinds = (recall_cli.Client, recall_cli.Agent)
    return [f"{kind.__name__}.{name}" for kind in kinds for name in _public(kind)]


def _from_a_shell() -> list[str]:
    rows = [f"| `{name}` | `recall {command}` |" for name, command in FROM_A_SHELL.items()]
    return ["## The same from a shell", "\n".join(["| Python | command |", "|---|---|", *rows])]


def reference() -> str:
    """Everything below the mark."""
    parts = [MARK, *_from_a_shell(), "## Reference"]
    parts += _class(recall_cli.Client, [*_public(recall_cli.Client)])
    awaited = set(_public(AsyncAgent))  # what is there only for the command is not
    parts += _class(recall_cli.Agent, [name for name in _public(recall_cli.Agent) if name in awaited], made=False)
    parts += _class(AsyncClient, [name for name in _public(AsyncClient) if name != "resume"])
    parts += _class(AsyncAgent, [], made=False)
    parts += ["## Values", 'Immutable; what is not given is `""`, `0` or empty.']
    for name in _VALUES:
        parts += _value(getattr(recall_cli, name))
    parts += ["## Errors", *_errors()]
    return "\n\n".join(parts) + "\n"


def _public(kind: type) -> Iterator[str]:
    """Names of operations and properties in the order of the source: the class's own, then what it stands on."""
    for base in (kind, *kind.__mro__[-2:0:-1]):
        for name, member in vars(base).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                yield name


def _class(kind: type, names: Iterable[str], *, made: bool = True) -> list[str]:
    parts = [f"### {kind.__name__}"]
    if made:
        parts.append(_code(kind.__name__ + _signature(kind)))
    parts += _prose(inspect.getdoc(kind) or "")
    for name in names:
        member = inspect.getattr_static(kind, name)
        text = _prose(inspect.getdoc(member) or "")
        if isinstance(member, property):
            parts += [f"#### {kind.__name__}.{name}", *text] if text else []  # else the class's docstring tells
            continue
        word = "await " if inspect.iscoroutinefunction(member) else ""
        parts += [f"#### {kind.__name__}.{name}", _code(f"{word}{name}{_signature(member, bound=True)}"), *text]
    return parts


def _value(kind: type) -> list[str]:
    own = [f"`{each.name}: {each.type}`" for each in dataclasses.fields(kind)]
    return [f"### {kind.__name__}", *_prose(inspect.getdoc(kind) or ""), f"Fields: {', '.join(own)}."]


def _errors() -> list[str]:
    rows = ["| error | is a | code | exit code | when |", "|---|---|---|---|---|"]
    named = {**vars(errors), **vars(remote_errors)}
    kinds = [named[name] for name in recall_cli.__all__ if name in named]
    for code, kind in sorted(((int(exit_of(kind.__new__(kind))), kind) for kind in kinds), key=lambda each: each[0]):
        base = kind.__bases__[0].__name__ if kind is not errors.RecallError else "Exception"
        when = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        rows.append(f"| `{kind.__name__}` | `{base}` | `{kind.code}` | {code} | {_text(when)} |")
    intro = _prose(inspect.getdoc(errors.RecallError) or "")
    return [*intro, "Catch the base that says what to do next; the exit code is the command's.", "\n".join(rows)]


def _signature(what: Any, *, bound: bool = False) -> str:
    """As in the source, whatever Python runs this."""
    signature = inspect.signature(what)
    given = list(signature.parameters.values())[1 if bound else 0 :]
    shown, starred = [], False
    for each in given:
        if each.kind is each.VAR_POSITIONAL:
            starred = True
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        prefix = "**" if each.kind is each.VAR_KEYWORD else "*" if each.kind is each.VAR_POSITIONAL else ""
        default = "" if each.default is each.empty else f" = {each.default!r}"
        shown.append(f"{prefix}{each.name}: {each.annotation}{default}")
    result = "" if signature.return_annotation is signature.empty or not bound else f" -> {signature.return_annotation}"
    line = f"({', '.join(shown)}){result}"
    return line if len(line) < 90 else "(\n    " + ",\n    ".join(shown) + f",\n){result}"


def _code(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


def _prose(text: str) -> list[str]:
    """A docstring as Markdown: paragraphs, and its sections as lists."""
    parts = []
    for paragraph in text.split("\n\n"):
        first, *lines = paragraph.split("\n")
        heading = _HEADING.fullmatch(first)
        if heading is None:
            parts.append(_text(" ".join(paragraph.split("\n"))))
        elif any(_ENTRY.match(line.strip()) for line in lines):
            parts.append(f"*{heading[1]}*\n\n" + "\n".join(_entries(lines)))
        else:
            parts.append(
                f"*{heading[1]}*: " + _text(" ".join(each.strip() for each in [heading[2], *lines] if each.strip()))
            )
    return parts


def _entries(lines: list[str]) -> Iterator[str]:
    """``name: text`` with its continuation lines, as items of a list."""
    depth = min(len(line) - len(line.lstrip()) for line in lines)
    for line in re.split(rf"\n(?= {{{depth}}}\S)", "\n".join(lines)):
        name, colon, text = " ".join(line.split()).partition(": ")
        yield f"- `{name}`{colon}{_text(text)}" if colon else f"- {_text(name)}"


def _text(text: str) -> str:
    """Double backquotes of docstrings as Markdown's single ones, and nothing that Markdown would act on."""
    return re.sub(r"``(.*?)``", r"`\1`", text).replace("|", "\\|").replace("*", "\\*")
