"""``recall turns``: an agent's messages."""

from __future__ import annotations

from typing import Annotated

import typer

from recall_cli.exits import WRITES
from recall_cli.options import AgentOption, Choice, Globals, Noun
from recall_cli.rows import row
from recall_cli.session import write
from store import checks
from store.records import ROLES

app = Noun("The messages of an agent, verbatim.")


@app.verb("add", exits=WRITES)
def add(
    ctx: typer.Context,
    content: Annotated[str, typer.Argument(metavar="CONTENT", help="The message; - or @FILE reads it.")],
    agent: AgentOption,
    role: Annotated[str, typer.Option("--role", click_type=Choice(ROLES), help="Who said it.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name of the speaker or the tool.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--message-id", metavar="ID", help="Your own id of it, at most 256 bytes.")
    ] = None,
    brief: Annotated[
        str | None, typer.Option("--brief", metavar="TEXT", help="What a briefing shows instead; - or @FILE reads it.")
    ] = None,
) -> None:
    """Record one message.

    One of more than 2,000 tokens is kept whole as an output; the turn then
    has its opening and the output's ref.
    """
    here = Globals.of(ctx)
    content = here.values.read("CONTENT", content)
    brief = None if brief is None else here.values.read("--brief", brief)
    checks.check_turn(role, content, name, message_id, brief)
    turn = write(here, agent, lambda it: it.record_turn(role, content, name, message_id, brief))
    kept = f", whole in output {turn.output_ref}" if turn.output_ref else ""
    here.out.change(row(turn), f"turn {turn.seq} of {agent} is recorded{kept}", f"recall turns list {agent}")
