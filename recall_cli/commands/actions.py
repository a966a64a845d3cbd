"""``recall actions``: the tool calls of agents, and what became of them."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Annotated

import typer

from recall_cli.actions_shown import details, shown
from recall_cli.beginning import arguments, begun
from recall_cli.ending import ending_of
from recall_cli.exits import READS, WRITES, Exit
from recall_cli.look import AnyAgent, Limit, check_limit
from recall_cli.options import AgentOption, Choice, Globals, Noun, Remote
from recall_cli.pending import MOST_SEQ, Filter
from recall_cli.session import mark_run, operate, operator, viewing, write
from recall_cli.values import duration
from store import checks
from store.agent import Agent
from store.errors import InvalidInput
from store.lease import MOST_TTL_MS
from store.records import CLASSES, CLOSED_STATUSES, OPEN_STATUSES, STATUSES
from store.text import check_agent, check_count, check_text, json_value
from store.values import Action, plain

app = Noun("The tool calls of an agent and what became of them.", default="list")


@app.verb("list", exits=(*READS, Exit.UNSETTLED))
def list_actions(
    ctx: typer.Context,
    agent: AnyAgent = "",
    all_agents: Annotated[
        bool, typer.Option("--all-agents", help="Of every agent, whatever RECALL_AGENT says.")
    ] = False,
    only_pending: Annotated[bool, typer.Option("--pending", help="Only open ones: started or unknown.")] = False,
    only_stuck: Annotated[
        bool, typer.Option("--stuck", help="Only open ones that somebody must see to; not those that are running.")
    ] = False,
    status: Annotated[
        str | None, typer.Option("--status", click_type=Choice(STATUSES), help="Only in this status.")
    ] = None,
    class_: Annotated[
        str | None, typer.Option("--class", click_type=Choice(CLASSES), help="Only of this class.")
    ] = None,
    tool: Annotated[str, typer.Option("--tool", metavar="TOOL", help="Only calls of this tool.")] = "",
    step: Annotated[str, typer.Option("--step", metavar="STEP", help="Only attempts of this step.")] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Started at least so long ago: 90s, 1h.")
    ] = "",
    newer_than: Annotated[
        str, typer.Option("--newer-than", metavar="DURATION", help="Started at most so long ago.")
    ] = "",
    text: Annotated[
        str,
        typer.Option("--text", metavar="TEXT", help="Only with TEXT in tool, step, arguments or outcome."),
    ] = "",
    limit: Limit = None,
    fail_if_any: Annotated[
        bool, typer.Option("--fail-if-any", help="Exit with 8 if there is one: an alert for scripts.")
    ] = False,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Those that were set aside, and whether they can have run.")
    ] = False,
    remote: Remote = False,
) -> None:
    """List actions, of one agent or of all.

    Newest first within an agent; open ones (--pending, --stuck) oldest first.
    Stuck are the unknown ones, and the started ones whose agent nobody acts
    for any more; a person, a resolver or the next resume must see to them, and
    --stuck --fail-if-any is the alert for that. In a pipe each action is a
    line with tabs and no heading, and AGE is the exact time of its start.

    With --set-aside: those of records that an agent's log no longer goes
    through. VERDICT is "never executed" where that is proven: the call waited
    for the bucket, which never had it and never will; else "may have run".
    With --remote also those that other machines have left in the bucket.
    """
    here = Globals.of(ctx)
    wanted = Filter(
        class_=class_ or "",
        tool=tool,
        status=status or "",
        step=step,
        text=text,
        older_than=duration("--older-than", older_than) if older_than else None,
        newer_than=duration("--newer-than", newer_than) if newer_than else None,
        stuck=only_stuck,
    )
    most = check_limit(limit)
    agent = "" if all_agents else agent
    if agent:
        check_agent(agent)
    if remote and not set_aside:
        raise InvalidInput(field="--remote", reason="is for --set-aside: other actions are listed from the log here")
    from recall_cli.actions_listed import shown_as_list

    only_open = only_pending or only_stuck or status in OPEN_STATUSES
    any_there = shown_as_list(here, agent, wanted, most, only_open=only_open, set_aside=set_aside, remote=remote)
    if fail_if_any and any_there:
        raise typer.Exit(Exit.UNSETTLED)


@app.verb("show", exits=READS, agent_first=True)
def show(
    ctx: typer.Context,
    agent: AgentOption,
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="The action's number.")],
    remote: Remote = False,
) -> None:
    """Show one action whole: arguments, result, every change, and what the log says around it.

    Also what records that were set aside say of it: a machine that was taken
    over may know how the call ended. With --remote all machines on the bucket.
    """
    here = Globals.of(ctx)
    check_count("SEQ", seq, least=1, most=2**62)
    with viewing(here, agent) as view:
        found = details(view, seq, remote=remote)
        now = view.backend.clock.now()
    here.out.document(found, lambda: shown(found, now))


_ENDINGS = (*CLOSED_STATUSES, "unknown")


@app.verb("begin", exits=(*WRITES, Exit.UNSETTLED), agent_first=True)
def begin(
    ctx: typer.Context,
    agent: AgentOption,
    tool: Annotated[str, typer.Option("--tool", metavar="TOOL", help="The tool that is about to be called.")],
    class_: Annotated[
        str,
        typer.Option("--class", click_type=Choice(CLASSES), help="What calling it again would do to the world."),
    ],
    args: Annotated[
        str | None,
        typer.Option("--args", metavar="ARGS", help="Its arguments: JSON if it starts with { or [; - or @FILE reads."),
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="A name that is the same call whenever it is begun.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", envvar="RECALL_RUN", help="What the step's name is valid in."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Attempt an external step again that has failed.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="The most time that the call takes; you see to it."),
    ] = None,
) -> None:
    """Record the intent to call a tool, before calling it.

    Prints SEQ, KEY and STATUS, with a tab between them. Call the tool only if
    STATUS is started; a step that is done already prints done. It needs the
    lease of a session: eval "$(recall resume AGENT --export --holder-pid $$)"
    """
    here = Globals.of(ctx)
    checks.check_name("tool", tool, spaces=True)
    value = None if args is None else arguments(here, args)
    json_value("--args", value)

    max_ms = 0 if timeout is None else min(math.ceil(duration("--timeout", timeout) * 1000), MOST_TTL_MS)

    def work(it: Agent) -> tuple[Action, str]:
        begin = partial(
            it.begin_action, tool, class_, value, step=step, run=run, retry_failed=retry_failed, max_ms=max_ms
        )
        action = begun(it, tool, begin)
        return action, it.fence_of(action) if action.open else ""

    if step:
        mark_run(run or "")
    why = "an action is begun in a session that stays until it has ended"
    action, fence = write(here, agent, work, needs_lease=why)
    if action.status == "done":
        text, then = f"step {action.step} was done at {action.ended_at}: do not call {tool}", ""
    else:
        text = f"action {action.seq} of {agent} is started: call {tool} now"
        then = f"recall actions end {action.seq} done --result TEXT"
    value = {**plain(action), "fence": fence}
    here.out.change(value, text, then, data=f"{action.seq}\t{action.key}\t{action.status}")


Seq = Annotated[int, typer.Argument(metavar="SEQ", min=1, max=MOST_SEQ, help="The action's number.")]
Result = Annotated[str | None, typer.Option("--result", metavar="TEXT", help="What came of it; - or @FILE reads it.")]
Error = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="What went wrong; - or @FILE reads it.")]


@app.verb("end", exits=WRITES, agent_first=True)
def end(
    ctx: typer.Context,
    seq: Seq,
    status: Annotated[str, typer.Argument(metavar="STATUS", click_type=Choice(_ENDINGS), help="How it ended.")],
    agent: AgentOption,
    result: Result = None,
    error: Error = None,
    resolution: Annotated[
        str | None, typer.Option("--resolution", metavar="TEXT", help="How that is known; - or @FILE reads it.")
    ] = None,
) -> None:
    """Close an action of this session with its outcome; the first close wins.

    unknown leaves it open, to be settled later. Somebody outside the session
    settles an action with: recall actions resolve
    """
    here = Globals.of(ctx)
    ending = ending_of(here, status, result, error, resolution, "--resolution")
    action = write(
        here,
        agent,
        lambda it: it.end_action(seq, status, ending.result, ending.error, ending.resolution),
        needs_lease="a session ends its own actions; others settle one with recall actions resolve",
    )
    here.out.change(plain(action), f"action {seq} of {agent} is {action.status}", f"recall actions list {agent}")


@app.verb("resolve", exits=(*WRITES, Exit.UNSETTLED))
def resolve(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SEQ]... [STATUS]", help="The actions' numbers, then done, failed or abandoned."),
    ] = None,
    agent: AgentOption = "",
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="How that is known; - or @FILE reads it.")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decided it [default: user@host].")] = None,
    result: Result = None,
    error: Error = None,
    with_: Annotated[
        str | None,
        typer.Option("--with", metavar="CMD", help="Ask this command instead of giving a status: 0 happened, 1 not."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="How long CMD may take for each [default: 60s]."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also one that may be running right now under a live lease.")
    ] = False,
    all_pending: Annotated[
        bool, typer.Option("--all-pending", help="All open actions that the options below let through.")
    ] = False,
    class_: Annotated[
        str | None, typer.Option("--class", click_type=Choice(CLASSES), help="Only of this class.")
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="TOOL", help="Only of this tool.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Only those started that long ago.")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", click_type=Choice(OPEN_STATUSES), help="Only in this status.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Only with this in tool, step, arguments or outcome.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be settled, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before settling several.")] = False,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="DURATION", help="Wait until a holder elsewhere has carried it out."),
    ] = None,
    take: Annotated[
        bool, typer.Option("--take", help="Take the lease, if it is free, instead of queueing for a holder elsewhere.")
    ] = False,
) -> None:
    """Settle interrupted actions by hand, with a reason.

    done: it happened, and a step of that name is never run again. failed: it
    happened and went wrong; an external step is then not attempted again by
    itself. abandoned: it did not happen, and the step's next start is a new
    attempt. The model reads the outcome as a tool turn.

    Several numbers, or --all-pending, settle in bulk: it asks on a terminal, needs --yes
    elsewhere, and reports each. Without a status, on a terminal, it walks
    through what is pending and asks; without an agent, through that of all.

    --with asks a command about each: the action is JSON on its stdin and in
    its environment; exit 0: it happened, and stdout is the result; 1: it did
    not, so it is abandoned; else it cannot tell, and the action stays open. A
    command that is still running is not asked about. Exit 8 if any stays
    open, else 6 if any was refused.

    In a store that ships, an agent that another machine acts for, or acted
    for last, is settled by its holder or the next one: the outcome is queued in
    the bucket, exit 7, until --wait sees it carried out.
    """
    from recall_cli import resolving

    here = Globals.of(ctx)
    if agent:
        check_agent(agent)
    seqs, outcome = resolving.split(words or [])
    longest = None if older_than is None else duration("--older-than", older_than)
    wanted = Filter(class_ or "", tool or "", longest, status or "", text or "")
    resolving.check_with(with_, outcome, result, error, timeout)
    settling = bool(outcome) or with_ is not None
    resolving.check_choice(agent, seqs, wanted, all_pending=all_pending, settling=settling)
    away = resolving.Away(take=take, wait=duration("--wait", wait) if wait else 0.0)
    who = check_text("--by", operator() if by is None else by, limit=checks.NAME_LIMIT * 2, empty=False)
    if not settling:
        if dry_run or not here.out.interactive or here.out.structured:
            raise InvalidInput(
                field="STATUS",
                reason="is missing: done, failed or abandoned",
                hint="for example: recall actions resolve -a AGENT 7 done --reason TEXT; or ask a command: --with CMD",
            )
        from recall_cli.walk import walk

        resolving.fetch(here, agent)
        walk(here, agent, seqs, wanted, by=who)
        return
    if not seqs and not all_pending:
        raise InvalidInput(field="SEQ", reason="is missing", hint="give the actions' numbers, or --all-pending")
    resolving.fetch(here, agent)
    if with_ is not None:
        from recall_cli import resolving_with

        finding = "" if reason is None else here.values.read("--reason", reason)
        check_text("--reason", finding, limit=checks.REASON_LIMIT, empty=reason is None)
        resolving_with.resolve(
            here,
            agent,
            seqs,
            wanted,
            with_,
            timeout=timeout,
            reason=finding,
            by=who,
            force=force,
            dry_run=dry_run,
            yes=yes,
            away=away,
        )
        return
    if reason is None:
        raise InvalidInput(field="--reason", reason="is needed: how the outcome is known")
    ending = ending_of(here, outcome, result, error, reason, "--reason")
    check_text("--reason", ending.resolution, limit=checks.REASON_LIMIT, empty=False)
    resolving.resolve(here, agent, seqs, wanted, ending, by=who, force=force, dry_run=dry_run, yes=yes, away=away)


@app.verb("amend", exits=WRITES, agent_first=True)
def amend(
    ctx: typer.Context,
    seq: Seq,
    agent: AgentOption,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="The note; - or @FILE reads it.")],
) -> None:
    """Add a note to an action, closed or not; its outcome stays."""
    here = Globals.of(ctx)
    note = check_text("--note", here.values.read("--note", note), limit=checks.NOTE_LIMIT, empty=False)
    action = operate(here, agent, lambda it: it.amend_action(seq, note))
    here.out.change(
        plain(action), f"a note is added to action {seq} of {agent}", f"recall actions show -a {agent} {seq}"
    )


@app.verb("retry", exits=WRITES, agent_first=True)
def retry(
    ctx: typer.Context,
    seq: Seq,
    agent: AgentOption,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why it may run again; without a session.")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who says so [default: user@host].")] = None,
) -> None:
    """Begin a new attempt of a closed action, linked to it, or allow one.

    In a session it prints SEQ, KEY and STATUS as begin does; an idempotent
    call keeps its key. Without one it is an operator's word: the step may be
    attempted again by whoever begins it next; nothing is begun now.
    """
    here = Globals.of(ctx)
    if os.environ.get("RECALL_LEASE"):
        action = write(here, agent, lambda it: begun(it, f"the attempt after {seq}", partial(it.retry_action, seq)))
        text = f"action {action.seq} of {agent} is started, a new attempt of {seq}: call {action.tool} now"
        then = f"recall actions end {action.seq} done --result TEXT"
        here.out.change(plain(action), text, then, data=f"{action.seq}\t{action.key}\t{action.status}")
        return
    if reason is None:
        raise InvalidInput(field="--reason", reason="must be given without a session", hint="say why it may run again")
    who = by or operator()
    action = operate(here, agent, lambda it: it.permit_retry(seq, by=who, reason=reason))
    text = f"step {action.step} of {agent} may be attempted again, as {who} said (action {action.seq})"
    here.out.change(plain(action), text, f"recall actions show -a {agent} {action.seq}")
