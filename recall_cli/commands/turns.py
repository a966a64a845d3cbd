"""``recall turns``: the messages of an agent, verbatim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, takewhile
from typing import Annotated, Any

import typer

from recall_cli.exits import READS, WRITES
from recall_cli.look import Limit, check_limit, indented, labelled, moment
from recall_cli.options import AgentArgument, AgentOption, Choice, Globals, Noun
from recall_cli.render import Column
from recall_cli.session import viewing, write
from store import checks
from store.records import TURN
from store.text import check_count, cut
from store.values import ROLES, Turn, plain
from store.views import View

app = Noun("The messages of an agent, verbatim.", default="list")

_SHOWN_BYTES = 600  # of one turn on a terminal, unless --full


@app.verb("list", exits=READS)
def list_turns(
    ctx: typer.Context,
    agent: AgentArgument,
    limit: Limit = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them, whatever --limit says.")] = False,
    before: Annotated[int | None, typer.Option("--before", metavar="SEQ", help="Only turns before this one.")] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Only from this time on, or so long ago: 2h.")
    ] = "",
    role: Annotated[
        str | None, typer.Option("--role", click_type=Choice(ROLES), help="Only turns of this role.")
    ] = None,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="Only turns that have TEXT, in any case.")] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Uncut, with the whole of a turn that was kept as an output.")
    ] = False,
) -> None:
    """List the newest turns, oldest of them first."""
    here = Globals.of(ctx)
    most = None if everything else check_limit(limit)
    if before is not None:
        check_count("--before", before, least=1, most=2**62)
    with viewing(here, agent) as view:
        first = moment("--since", since, view.backend.clock.now()) if since else ""

        wanted = text.casefold()

        def fits(turn: Turn) -> bool:
            said = wanted in turn.content.casefold() or wanted in turn.brief.casefold()
            return said and role in (None, turn.role)

        # Backwards to where the list starts, and from there on: a whole history need not fit into memory.
        start, count = 1, 0
        if first or most is not None:
            newest = takewhile(lambda turn: turn.at >= first, view.turns(before=before))
            start = 0
            for turn in islice(filter(fits, newest), most):
                count += 1
                start = turn.seq
        turns = _between(view, start, before) if start else iter(())
        turns = (_whole(view, turn) if full else turn for turn in turns if fits(turn))
        if here.out.terminal and not here.out.structured:
            for turn in turns:
                here.out.text(_block(turn, agent, cut_at=0 if full else _SHOWN_BYTES))
        else:
            here.out.table(_COLUMNS, ({"agent": agent, **plain(turn)} for turn in turns), empty="no turns")
        if count == most and start > 1 and here.out.terminal:
            here.out.message(f"older ones: recall turns list {agent} --before {start}")


_COLUMNS = (Column("seq"), Column("at"), Column("role"), Column("name"), Column("content"))


def _between(view: View, start: int, before: int | None) -> Iterator[Turn]:
    """Turns from ``start`` up to the one before ``before``, oldest first."""
    turns = view.each(view.newest_of(TURN, above=start - 1), Turn.read)
    return turns if before is None else takewhile(lambda turn: turn.seq < before, turns)


def _whole(view: View, turn: Turn) -> Turn:
    return replace(turn, content=view.content(turn.output_ref)) if turn.output_ref else turn


def _block(turn: Turn, agent: str, *, cut_at: int) -> str:
    name = f" {turn.name}" if turn.name else ""
    content = turn.content
    if cut_at and len(content.encode()) > cut_at:
        content = cut(content, cut_at) + f" … (cut: recall turns show -a {agent} {turn.seq})"
    return f"[{turn.role}{name} #{turn.seq}] {turn.at}\n    {indented(content)}\n"


@app.verb("show", exits=READS, agent_first=True)
def show(
    ctx: typer.Context,
    agent: AgentOption,
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="The turn's number.")],
) -> None:
    """Show one turn, with the whole of one that was kept as an output."""
    here = Globals.of(ctx)
    check_count("SEQ", seq, least=1, most=2**62)
    with viewing(here, agent) as view:
        turn = _whole(view, view.turn(seq))
    here.out.document({"agent": agent, **plain(turn)}, lambda: _shown(turn))


def _shown(turn: Turn) -> Iterator[str]:
    values: list[tuple[str, Any]] = [
        (name.replace("_", " "), getattr(turn, name))
        for name in ("seq", "role", "name", "at", "message_id", "output_ref", "brief")
    ]
    yield from labelled(values)
    yield ""
    yield turn.content


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
    here.out.change(plain(turn), f"turn {turn.seq} of {agent} is recorded{kept}", f"recall turns list {agent}")
