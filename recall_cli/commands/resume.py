"""``recall resume``, ``acquire`` and ``release``: the lease of a shell session.

A session is many short processes under one lease. The process that is
recorded as its holder is the shell that evaluates the exported variables, so
that its death frees the agent at once.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from recall_cli.briefing_file import write_briefing
from recall_cli.exits import WRITES, Exit, exit_of
from recall_cli.lease_options import BriefingFile, Budget, Holder, Wait
from recall_cli.options import AgentArgument, AgentOption, Choice, Globals, Verbs
from recall_cli.session import check_store_of_token, tell_of_before, writing
from recall_cli.shellcode import SHELLS, exports, refusal
from recall_cli.values import duration
from store.access import exported
from store.agent import Agent
from store.backend import Acquired
from store.briefing_parts import DEFAULT_BUDGET, check_budget
from store.client import check_holder, take
from store.errors import Fenced, InvalidInput, LeaseHeld, LeaseLost, LeaseNotHeld, RecallError
from store.keeper import Keeper
from store.lease import DEFAULT_TTL_MS, SHELL_TTL_MS, Fence, check_ttl
from store.process import Process, describe, provably_dead
from store.text import check_agent, check_count
from store.values import plain

app = Verbs()

Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl", metavar="DURATION", help="How long the lease lasts without a write [default: 60s; exported: 1h]."
    ),
]
HolderPid = Annotated[
    int | None,
    typer.Option("--holder-pid", metavar="PID", help="Whose end frees the lease: $$ in a shell, $fish_pid in fish."),
]
Shell = Annotated[str, typer.Option("--shell", click_type=Choice(SHELLS), help="The form of the exports.")]


@app.verb("resume", exits=WRITES)
def resume(
    ctx: typer.Context,
    agent: AgentArgument,
    ttl: Ttl = None,
    wait: Wait = "0",
    budget: Budget = DEFAULT_BUDGET,
    holder: Holder = None,
    export: Annotated[
        bool, typer.Option("--export", help="Keep the lease for a shell session; print variables to evaluate.")
    ] = False,
    holder_pid: HolderPid = None,
    shell: Shell = "sh",
    briefing_file: BriefingFile = None,
) -> None:
    """Resume an agent and print its briefing.

    Takes the lease, settles what was interrupted as far as its class allows,
    prints the briefing and releases. An agent that is new is made.

    A script that writes more than once keeps the lease:
    eval "$(recall resume AGENT --export --holder-pid $$)"
    prints nothing but exports, and sets the status if it fails.
    """
    here = Globals.of(ctx)
    if export:
        _export(here, agent, ttl, wait, holder, holder_pid, shell, budget, briefing_file)
        return
    if holder_pid is not None:
        raise InvalidInput(
            field="--holder-pid", reason="is for --export", hint="without it the lease ends with the command"
        )
    _check(agent, budget)
    ttl_ms = _ttl(ttl, DEFAULT_TTL_MS)
    patience = duration("--wait", wait)
    name = check_holder(holder)
    with writing(here) as backend:
        it = Agent(
            backend, agent, Keeper(backend, agent, ttl_ms=ttl_ms, holder=name, background=False), token_budget=budget
        )
        try:
            acquired = _take(it, patience)
            context = it.refresh()
            if briefing_file is not None:
                write_briefing(briefing_file, context.briefing)
            value = {**plain(context), **_lease_row(acquired), "lease_held": False}
            here.out.document(value, lambda: [] if briefing_file is not None else context.briefing.split("\n"))
            here.out.flush()
        finally:
            it.release()
    tell_of_before(here, it, acquired)
    here.out.message(_summary(agent, acquired, len(context.pending_actions)) + "; the lease is released")


@app.verb("acquire", exits=WRITES, agent_first=True)
def acquire(
    ctx: typer.Context,
    agent: AgentOption,
    ttl: Ttl = None,
    wait: Wait = "0",
    holder: Holder = None,
    holder_pid: HolderPid = None,
    shell: Shell = "sh",
) -> None:
    """Take an agent's lease for a shell session, without its briefing.

    The same as resume --export, for a script that has read the briefing
    already: eval "$(recall acquire -a AGENT --holder-pid $$)"
    """
    _export(Globals.of(ctx), agent, ttl, wait, holder, holder_pid, shell)


@app.verb("release", exits=(Exit.FENCED, Exit.UNAVAILABLE, Exit.CORRUPT), agent_first=True)
def release(
    ctx: typer.Context,
    agent: AgentOption,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say nothing, and succeed when there is no lease to give back.")
    ] = False,
) -> None:
    """Give the session's lease back.

    The lease is the one of RECALL_LEASE. Releasing it twice is no error; one
    that another process has taken over meanwhile is, unless --quiet.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    try:
        released, epoch = _release(here, agent)
    except Fenced:
        if quiet:
            return
        raise
    value = {"agent_id": agent, "epoch": epoch, "released": released}
    if not quiet:
        text = f"lease of {agent} (epoch {epoch}) " + ("is released" if released else "was released before")
        here.out.change(value, text, "unset RECALL_LEASE")


def _release(here: Globals, agent: str) -> tuple[bool, int]:
    token = os.environ.get("RECALL_LEASE", "")
    if not token:
        raise LeaseNotHeld(agent=agent, why=": RECALL_LEASE is not set", hint="there is nothing to release here")
    check_store_of_token(here)
    with writing(here) as backend:
        it = exported(backend, agent, token)
        fence = Fence.parse(token, agent=agent, store_id=backend.store_id)
        if it.release():
            return True, fence.epoch
        lease = backend.lease(agent)
        if lease is not None and lease.fence == fence:
            return False, fence.epoch
        raise LeaseLost(agent=agent, epoch=fence.epoch, now=f"{lease.epoch}, of {lease.holder}" if lease else "none")


def _export(
    here: Globals,
    agent: str,
    ttl: str | None,
    wait: str,
    holder: str | None,
    holder_pid: int | None,
    shell: str,
    budget: int | None = None,
    briefing_file: str | None = None,
) -> None:
    """Take the lease for a shell and print how the shell gets it; without ``budget`` no briefing is read."""
    try:
        _check(agent, DEFAULT_BUDGET if budget is None else budget)
        ttl_ms = _ttl(ttl, SHELL_TTL_MS)
        patience = duration("--wait", wait)
        process = _process(holder_pid)
        name = check_holder(holder)
        directory = os.path.abspath(here.directory)
        lines = exports(shell, {"RECALL_AGENT": agent, "RECALL_DIR": directory})  # refused before the lease is taken
        with writing(here) as backend:
            keeper = Keeper(backend, agent, ttl_ms=ttl_ms, holder=name, process=process, background=False)
            it = Agent(backend, agent, keeper, token_budget=DEFAULT_BUDGET if budget is None else budget)
            acquired = _take(it, patience)
            try:
                token = acquired.lease.fence.token(backend.store_id)
                value = {"agent_id": agent, **_lease_row(acquired), "lease": token, "dir": directory}
                if budget is None:
                    pending = it.view.backend.in_force_newest(agent, "action", limit=0)[1]
                else:
                    context = it.refresh()
                    pending = len(context.pending_actions)
                    if briefing_file is not None:
                        write_briefing(briefing_file, context.briefing)
                    value = {**plain(context), **value}
                lines += exports(shell, {"RECALL_LEASE": token})
                lines.append("# release it when the shell ends: trap 'recall release --quiet' EXIT")
                here.out.document(value, lambda: ()) if here.out.structured else here.out.write("\n".join(lines) + "\n")
                here.out.flush()
            except BaseException:
                it.release()  # nobody got the token
                raise
    except RecallError as problem:
        if not here.out.structured:
            # eval "$(…)" of nothing would succeed, and the script would go on without a lease.
            here.out.write(refusal(shell, exit_of(problem)))
        raise
    tell_of_before(here, it, acquired)
    here.out.message(_summary(agent, acquired, pending), "recall release, when the session is over")


def _take(it: Agent, patience: float) -> Acquired:
    try:
        return take(it, patience)
    except LeaseHeld as problem:
        lease = it.view.backend.lease(it.id)
        token = os.environ.get("RECALL_LEASE", "")
        if lease is not None and token == lease.fence.token(it.view.backend.store_id):
            hint = f"this session holds it: recall briefing {it.id} shows the briefing, recall release ends the session"
            raise LeaseHeld(**{**problem.details, "hint": hint}) from None
        raise


def _check(agent: str, budget: int) -> None:
    check_agent(agent)
    check_budget(budget)


def _ttl(given: str | None, default_ms: int) -> int:
    return default_ms if given is None else check_ttl(duration("--ttl", given), "--ttl")


def _process(pid: int | None) -> Process:
    if pid is None:
        raise InvalidInput(
            field="--holder-pid",
            reason="is needed: the process whose end frees the lease",
            hint="add --holder-pid $$ (in fish: --holder-pid $fish_pid)",
        )
    check_count("--holder-pid", pid, least=1, most=2**31 - 1)
    try:
        process = describe(pid)
    except ProcessLookupError:
        process = None
    if process is None or provably_dead(process):
        raise InvalidInput(
            field="--holder-pid", reason=f"there is no process {pid}", hint="use $$ (in fish: $fish_pid)"
        )
    return process


def _lease_row(acquired: Acquired) -> dict[str, object]:
    lease, before = acquired.lease, acquired.previous
    return {
        "epoch": lease.epoch,
        "holder": lease.holder,
        "ttl": lease.ttl_ms / 1000,
        "acquired_at": lease.acquired_at,
        "reason": acquired.reason,
        "previous_holder": before.holder if before else "",
        "previous_elsewhere": acquired.elsewhere,
        "previous_ship": acquired.ship,
    }


_WHY = {
    "first": "it is new",
    "released": "its lease was free",
    "expired": "the lease of {} had expired",
    "dead": "{} had died",
}


def _summary(agent: str, acquired: Acquired, pending: int) -> str:
    why = _WHY.get(acquired.reason, acquired.reason)
    why = why.format(acquired.previous.holder if acquired.previous else "")
    actions = f"{pending} unfinished action" + ("" if pending == 1 else "s")
    return f"agent {agent} is resumed at epoch {acquired.lease.epoch} ({why}), with {actions}"
