"""``recall state``: the working state, its versions, and what changed between two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from recall_cli.exits import READS, WRITES
from recall_cli.look import Limit, check_limit, labelled, say_pruned, time_column
from recall_cli.options import AgentArgument, AgentOption, Choice, Globals, Noun
from recall_cli.render import Column
from recall_cli.session import viewing, write
from recall_cli.values import json_document
from store import checks
from store.errors import InvalidInput
from store.text import check_count, neutral_line, plain_breaks
from store.values import STATE_FIELDS, STATE_LISTS, WorkingState, plain
from store.views import View

app = Noun("The working state: an agent's note to its next instance.", default="show")

_COMPARED = (*STATE_FIELDS, "last_milestone")
_MOST_LINES = 4000  # above this, a comparison by line takes too long to be worth it


@app.verb("show", exits=READS)
def show(
    ctx: typer.Context,
    agent: AgentArgument,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="This version; the newest unless given.")
    ] = None,
) -> None:
    """Show the working state, whole."""
    here = Globals.of(ctx)
    with viewing(here, agent) as view:
        state = view.working_state() if version is None else _version(view, version, "--version")
    here.out.document({"agent": agent, **plain(state)}, lambda: _shown(state))
    if not state.version:
        here.out.message(f"{agent} has no working state yet", f"recall state set -a {agent} --goal TEXT")


def _shown(state: WorkingState) -> Iterator[str]:
    if state.version:
        milestone = " (milestone)" if state.is_milestone else ""
        yield from labelled((("version", f"{state.version}{milestone}"), ("written", state.updated_at)))
        yield from labelled(
            (name.replace("_", " "), getattr(state, name)) for name in _COMPARED if getattr(state, name)
        )


def _version(view: View, version: int, field: str) -> WorkingState:
    check_count(field, version, least=0, most=2**62)
    return view.state_version(version) if version else WorkingState()


@app.verb("history", exits=READS)
def history(
    ctx: typer.Context,
    agent: AgentArgument,
    limit: Limit = 20,
    milestones: Annotated[bool, typer.Option("--milestones", help="Only versions that mark a milestone.")] = False,
) -> None:
    """List the versions of the working state, newest first."""
    here = Globals.of(ctx)
    most = check_limit(limit)
    columns = [
        Column("version", right=True, keep=True),
        time_column(here.out, "updated_at", "WRITTEN"),
        Column("step", right=True, keep=True),
        Column("milestone"),
        Column("progress"),
        Column("goal"),
    ]
    with viewing(here, agent) as view:
        states = (state for state in view.states() if state.is_milestone or not milestones)
        rows = ({"agent": agent, **plain(state)} for state in islice(states, most))
        if not here.out.structured:
            rows = (row | {"milestone": row["last_milestone"] if row["is_milestone"] else ""} for row in rows)
        here.out.table(columns, rows, empty="no milestones" if milestones else "no working state yet")
        say_pruned(here.out, view)


@app.verb("diff", exits=READS, agent_first=True)
def diff(
    ctx: typer.Context,
    agent: AgentOption,
    from_: Annotated[
        int | None, typer.Argument(metavar="[FROM]", help="A version; the one before TO unless given.")
    ] = None,
    to: Annotated[int | None, typer.Argument(metavar="[TO]", help="A version; the newest unless given.")] = None,
) -> None:
    """Show what changed between two versions of the working state.

    Version 0 is the empty state before the first.
    """
    here = Globals.of(ctx)
    with viewing(here, agent) as view:
        new = view.working_state() if to is None else _version(view, to, "TO")
        old = _version(view, max(0, new.version - 1) if from_ is None else from_, "FROM")
    changes = {name: _change(name, old, new) for name in _COMPARED if getattr(old, name) != getattr(new, name)}
    document = {"agent": agent, "from": old.version, "to": new.version, "changes": changes}
    here.out.document(document, lambda: _told(changes))
    if not changes:
        here.out.message(f"versions {old.version} and {new.version} are the same")


def _change(name: str, old: WorkingState, new: WorkingState) -> dict[str, Any]:
    before, after = getattr(old, name), getattr(new, name)
    if name not in STATE_LISTS:
        return {"from": before, "to": after}
    return {
        "from": list(before),
        "to": list(after),
        "removed": [each for each in before if each not in after],
        "added": [each for each in after if each not in before],
    }


def _told(changes: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, change in changes.items():
        yield f"{name.replace('_', ' ')}:"
        yield from _lines(_parts(change["from"]), _parts(change["to"]))


def _parts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [neutral_line(plain_breaks(each)) for each in value]
    return plain_breaks(str(value)).split("\n") if value else []


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The lines that went and came, each with its sign; those that stayed are left out."""
    if len(old) + len(new) > _MOST_LINES:
        yield from (f"  - {line}" for line in old)
        yield from (f"  + {line}" for line in new)
        return
    from difflib import SequenceMatcher

    for what, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what != "equal":
            yield from (f"  - {line}" for line in old[a:b])
            yield from (f"  + {line}" for line in new[c:d])


def _text(name: str, help: str) -> Any:
    return typer.Option(name, metavar="TEXT", help=help + "; - or @FILE reads it.")


@app.verb("set", exits=WRITES, agent_first=True)
def set_state(
    ctx: typer.Context,
    agent: AgentOption,
    goal: Annotated[str | None, _text("--goal", "What it is all for")] = None,
    plan: Annotated[list[str] | None, _text("--plan", "A step of the plan, once for each")] = None,
    progress: Annotated[str | None, _text("--progress", "How far it has come")] = None,
    focus: Annotated[str | None, _text("--focus", "What is being done now")] = None,
    decision: Annotated[list[str] | None, _text("--decision", "A decision, once for each")] = None,
    question: Annotated[list[str] | None, _text("--question", "An open question, once for each")] = None,
    notes: Annotated[str | None, _text("--notes", "Anything else")] = None,
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="A number of your own.")] = None,
    add_plan: Annotated[list[str] | None, _text("--add-plan", "A step to add to the plan")] = None,
    add_decision: Annotated[list[str] | None, _text("--add-decision", "A decision to add")] = None,
    add_question: Annotated[list[str] | None, _text("--add-question", "An open question to add")] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option("--clear", metavar="FIELD", click_type=Choice(STATE_FIELDS), help="A field to empty."),
    ] = None,
    json_fields: Annotated[
        str | None,
        typer.Option("--json-fields", metavar="JSON", help="An object of fields; - or @FILE reads it."),
    ] = None,
) -> None:
    """Write a new version of the working state.

    Fields left out are kept, and a list is replaced as a whole; --add-plan,
    --add-decision and --add-question add to the end of one.
    """
    here = Globals.of(ctx)

    def read(option: str, value: str | None) -> str | None:
        return None if value is None else here.values.read(option, value)

    def read_all(option: str, values: list[str] | None) -> list[str] | None:
        return [here.values.read(option, each) for each in values] if values else None

    texts = {
        "goal": read("--goal", goal),
        "plan": read_all("--plan", plan),
        "progress": read("--progress", progress),
        "focus": read("--focus", focus),
        "decisions": read_all("--decision", decision),
        "open_questions": read_all("--question", question),
        "notes": read("--notes", notes),
        "step": step,
    }
    more = {
        "plan": read_all("--add-plan", add_plan),
        "decisions": read_all("--add-decision", add_decision),
        "open_questions": read_all("--add-question", add_question),
    }
    flags = {name: value for name, value in texts.items() if value is not None}
    cleared = dict.fromkeys(clear or ())
    given = _once(flags, cleared, _object(here, json_fields))
    add = {name: items for name, items in more.items() if items is not None}
    if not given and not add:
        raise InvalidInput(
            field="state set", reason="has nothing to set", hint="give a field, such as --progress; see: --help"
        )
    checks.check_change(given, add)
    state = write(here, agent, lambda it: it.update_working_state(add=add, **given))
    changed = ", ".join([*given, *(f"{name} (+{len(items)})" for name, items in add.items())])
    text = f"working state of {agent} is now version {state.version}: {changed}"
    here.out.change(plain(state), text, f"recall state show {agent}")


def _object(here: Globals, value: str | None) -> Mapping[str, Any]:
    if value is None:
        return {}
    found = json_document("--json-fields", here.values.read("--json-fields", value))
    if not isinstance(found, dict):
        raise InvalidInput(
            field="--json-fields", reason="must be a JSON object", hint='for example: {"goal": "…", "plan": ["…"]}'
        )
    return found


def _once(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of the sources, none of which may come twice."""
    merged: dict[str, Any] = {}
    for source in sources:
        for name, value in source.items():
            if name in merged:
                raise InvalidInput(field=name, reason="is given twice", hint="set it or clear it, once")
            merged[name] = value
    return merged
