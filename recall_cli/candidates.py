"""What a shell offers at a key press: names and numbers that are in the store.

The completion scripts call ``recall __complete SHELL KIND LINE [BREAKS]``, which
is answered here, before the parser and any command is imported. It reads only,
at the cost of what it offers and never a history; whatever goes wrong, there is
nothing to offer, and nothing is said.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from recall_cli.shellwords import Word, quoted, split
from store.backends.sqlite import SqliteBackend
from store.errors import BadRecord
from store.place import directory_of, store_directory
from store.records import ACTION, OUTPUT, POINTER, STEP, TOOL, Record
from store.text import AGENT_ID, cut, neutral_line
from store.values import Action
from store.views import View

_MOST = 200
_PATIENCE = 2.0  # seconds; a person waits for the key press
_LAST_SEQ = 2**53
_DESCRIPTION = 60  # bytes

Found = Iterator[tuple[str, str]]  # what to offer, and a few words about it


class Unknown(Exception):
    """Only the shell could tell which store or agent the line means."""


def offer(arguments: Sequence[str]) -> int:
    """Print the candidates, one a line; the exit code is always 0."""
    lines: list[str] = []

    def gather() -> None:
        try:
            lines.extend(_lines(*arguments))
        except BaseException:  # noqa: BLE001 (a key press is no place for complaints)
            lines.clear()

    worker = threading.Thread(target=gather, daemon=True)
    try:
        worker.start()
        worker.join(_PATIENCE)
        if not worker.is_alive():
            sys.stdout.write("".join(line + "\n" for line in lines))
            sys.stdout.flush()
            return 0
    except (KeyboardInterrupt, OSError):
        pass
    os._exit(0)  # not waiting for a busy store, nor for the flush of a closed pipe


def _lines(shell: str, kind: str, line: str, breaks: str = "") -> list[str]:
    """The lines that a shell's script reads."""
    words = split(line, shell=shell, breaks=breaks)
    typed = words.pop()
    if typed.text is None:
        return []
    option = len(typed.text.partition("=")[0]) + 1 if typed.text.startswith("--") and "=" in typed.text else 0
    prefix = typed.text[option:]
    backend = SqliteBackend(_directory(words), read_only=True)
    try:
        found = list(islice(_candidates(backend, kind, prefix, words), _MOST))
    finally:
        backend.close()
    if shell == "bash":
        return [quoted((typed.text[:option] + value)[typed.start :], typed.quote) for value, _ in found]
    if shell == "fish":
        return [f"{value}\t{about}" for value, about in found]
    return [value.replace("\\", "\\\\").replace(":", "\\:") + (f":{about}" if about else "") for value, about in found]


def _candidates(backend: SqliteBackend, kind: str, prefix: str, words: list[Word]) -> Found:
    """Those that begin with ``prefix`` and that a person can type; the store may hold stranger ones."""
    if kind == "agent":
        found = _agents(backend, prefix)
    else:
        agent = _agent(backend, words)
        if kind == "pending":
            found = _numbers(prefix, _pending(backend, agent)) if agent else iter(())
        elif not agent:
            return
        elif kind == "action":
            found = _numbers(prefix, _all(backend, agent))
        elif kind == "kind":
            found = ((each, "") for each in View(backend, agent).kinds() if each.startswith(prefix))
        else:
            found = _named(backend, agent, kind, prefix, words)
    for value, about in found:
        if value.isprintable() and (value[:1].isalnum() or value[:1] == "_"):
            yield value, cut(neutral_line(about), _DESCRIPTION)


# -- which store and agent ------------------------------------------------------------------


def _directory(words: list[Word]) -> str:
    backend = _option(words, "--backend")
    given = _option(words, "--dir")
    return directory_of("--backend", backend) if backend and not given else store_directory(given)


def _agent(backend: SqliteBackend, words: list[Word]) -> str:
    """The agent that the line names, by option or as a word of it, else RECALL_AGENT's."""
    named = _option(words, "--agent", "-a")
    if named:
        return named
    for word in words[2:]:
        if word.text and AGENT_ID.fullmatch(word.text) and backend.lease(word.text) is not None:
            return word.text
    return os.environ.get("RECALL_AGENT", "")


def _option(words: list[Word], long: str, short: str = "") -> str:
    """An option's value, the last one given; "" for none.

    Raises:
        Unknown: only the shell can tell it.
    """
    value: str | None = ""
    for at, word in enumerate(words):
        if word.raw == "--":
            break
        if word.text in (long, short) and word.text and at + 1 < len(words):
            value = words[at + 1].text
        elif word.raw.startswith(long + "="):
            value = None if word.text is None else word.text[len(long) + 1 :]
        elif short and word.raw.startswith(short) and len(word.raw) > len(short):
            value = None if word.text is None else word.text[len(short) :]
    if value is None:
        raise Unknown
    return value


# -- what is there --------------------------------------------------------------------------


def _agents(backend: SqliteBackend, prefix: str) -> Found:
    exact = backend.lease(prefix)
    for lease in ([exact] if exact else []) + backend.leases(after=prefix, limit=_MOST):
        if not lease.agent.startswith(prefix):
            return
        yield lease.agent, ""


def _named(backend: SqliteBackend, agent: str, kind: str, prefix: str, words: list[Word]) -> Found:
    """The newest records of a named kind: outputs, pointers, tools, and the steps of the line's run."""
    kind = {"ref": OUTPUT, "pointer": POINTER, "step": STEP, "tool": TOOL}[kind]
    run = _option(words, "--run") or os.environ.get("RECALL_RUN", "") if kind == STEP else ""
    scope = f"{run}/" if kind == STEP else ""
    exact = backend.newest(agent, kind, name=scope + prefix)
    for record in ([exact] if exact else []) + backend.keys(agent, after=(kind, 0, scope + prefix), limit=_MOST):
        if record.kind != kind or not record.name.startswith(scope + prefix):
            return
        try:
            body = record.fields()
        except BadRecord:
            continue
        if not body.get("removed"):
            about = {OUTPUT: "summary", POINTER: "type", TOOL: "class"}.get(kind, "")
            yield record.name.removeprefix(scope), str(body.get(about, ""))


Page = Callable[[int, int, int], list[Record]]  # actions from a number on, below another, at most so many


def _pending(backend: SqliteBackend, agent: str) -> Page:
    return lambda low, high, most: backend.in_force(agent, ACTION, limit=most, after=(agent, low - 1))


def _all(backend: SqliteBackend, agent: str) -> Page:
    return lambda low, high, most: backend.tail(agent, ACTION, limit=most, before=high)


def _numbers(prefix: str, page: Page) -> Found:
    """Actions whose number begins with ``prefix``: 7, then 70 to 79, then 700 to 799 ..."""
    if not prefix:
        ranges = [(1, _LAST_SEQ)]
    elif prefix.isascii() and prefix.isdecimal() and prefix[0] != "0" and len(prefix) <= 16:
        ranges = [(int(prefix) * 10**k, (int(prefix) + 1) * 10**k) for k in range(17 - len(prefix))]
    else:
        return
    for low, high in ranges:
        records = [each for each in page(low, high, min(_MOST, high - low)) if each.seq >= low]
        if not records:  # then none is larger either
            return
        for record in records:
            try:
                action = Action.read(record, None)
            except BadRecord:
                continue
            if record.seq < high:
                yield str(record.seq), f"{action.tool} ({action.class_}, {action.status})"
