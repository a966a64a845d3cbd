"""``recall state``: the agent's note to its next instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from recall_cli.exits import WRITES
from recall_cli.options import AgentOption, Choice, Globals, Noun
from recall_cli.rows import row
from recall_cli.session import write
from recall_cli.values import json_document
from store import checks
from store.errors import InvalidInput
from store.records import STATE_FIELDS

app = Noun("The working state: an agent's note to its next instance.")


def _text(name: str, help: str) -> Any:
    return typer.Option(name, metavar="TEXT", help=help + "; - or @FILE reads it.")


@app.verb("set", exits=WRITES)
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
    here.out.change(row(state), text, f"recall state show {agent}")


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
