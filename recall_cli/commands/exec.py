"""``recall exec``: a program as the agent's holder, resumed before it and released after it."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import suppress
from typing import Annotated

import typer

from recall_cli.briefing_file import open_briefing, write_briefing
from recall_cli.exits import WRITES
from recall_cli.lease_options import BriefingFile, Budget, Holder, Wait
from recall_cli.options import AgentArgument, Globals, Verbs
from recall_cli.session import RUN_USED, give_back, tell_of_before, telling_if_new, writing
from recall_cli.spawn import KILL_GRACE, Child, guard
from recall_cli.steps import could_not_start
from recall_cli.values import duration
from store import checks
from store.agent import Agent, is_own_run
from store.briefing_parts import DEFAULT_BUDGET, check_budget
from store.client import check_holder, take
from store.errors import InvalidInput, LeaseLost
from store.keeper import Event, Keeper
from store.lease import DEFAULT_TTL_MS, check_ttl
from store.text import check_agent, quoted

app = Verbs()

_GRACE_WHEN_LOST = KILL_GRACE + 2  # seconds: a recall run inside first ends its own command


@app.verb("exec", exits=WRITES)
def exec_(
    ctx: typer.Context,
    agent: AgentArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="DURATION", help="How long the lease lasts without a renewal.")
    ] = None,
    wait: Wait = "0",
    holder: Holder = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="The run that steps belong to [default: until one ends with 0]."),
    ] = None,
    budget: Budget = DEFAULT_BUDGET,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="At SIGTERM: how long the command may go on.")
    ] = "25s",
    briefing_file: BriefingFile = None,
    briefing_fd: Annotated[
        int | None, typer.Option("--briefing-fd", metavar="N", help="Let the command read the briefing from there.")
    ] = None,
) -> None:
    """Run a command as the agent: take its lease, keep it, release it.

    Settles what was interrupted, then runs the command with RECALL_AGENT,
    RECALL_DIR, RECALL_LEASE, RECALL_RUN and RECALL_BRIEFING (a file with the
    briefing) in its environment, and exits with its status. recall run inside
    it makes durable steps. Without --run, a command that did not end with 0
    is continued by the next exec: its steps are known. One that did is over;
    but a mere look, which uses no step, ends nothing.

    A lost lease ends the command, and exec exits with 5. At SIGTERM the
    command may go on for --grace. If exec itself is killed, so is the command.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    check_budget(budget)
    if run and is_own_run(checks.check_run(run)):
        raise InvalidInput(field="--run", reason=f"{quoted(run)} is a name that recall gives by itself")
    if briefing_fd is not None and not 3 <= briefing_fd <= 255:
        raise InvalidInput(field="--briefing-fd", reason=f"must be from 3 to 255, not {briefing_fd}")
    patience, at_term = duration("--wait", wait), duration("--grace", grace)
    ttl_ms = check_ttl(duration("--ttl", ttl)) if ttl else DEFAULT_TTL_MS
    name = check_holder(holder)
    directory = os.path.abspath(here.directory)
    lost: list[int] = []

    def on_lease(event: Event, epoch: int) -> None:
        if event == "lost":
            lost.append(epoch)
        elif event == "again":
            here.out.message(f"the lease had lapsed; it was taken again as epoch {epoch}")

    def on_term() -> float:
        here.out.message(f"SIGTERM: the command may go on for {at_term:g} s")
        return at_term

    if os.getpid() == 1:
        # The first process of a container is not ended by a signal that it does not handle.
        signal.signal(signal.SIGTERM, _leave)
    with writing(here) as backend, _Place(briefing_file) as place:
        open_there = {} if briefing_fd is None else {briefing_fd: place.descriptor}
        child = Child(command, dict(os.environ), capture=False, descriptors=open_there, die_with_parent=True)
        call_off = guard(child.pid)
        try:
            keeper = Keeper(backend, agent, ttl_ms=ttl_ms, holder=name, on_event=on_lease)
            it = Agent(backend, agent, keeper, token_budget=budget)
            try:
                with telling_if_new(here, backend, agent):
                    acquired = take(it, patience)
                tell_of_before(here, it, acquired)
                going_on = run or it.open_run()
                its_run = going_on or it.begin_run()
                start = backend.counters(agent).lsn
                place.write(it.refresh().briefing)
                problem = child.go(
                    {
                        "RECALL_AGENT": agent,
                        "RECALL_DIR": directory,
                        "RECALL_LEASE": it.token,
                        "RECALL_RUN": its_run,
                        "RECALL_BRIEFING": place.path,
                        RUN_USED: place.used,
                    }
                )
                if problem is not None:
                    code, text = could_not_start(command, problem)
                    here.out.message(text)
                    raise typer.Exit(code)
                ended = child.watch(on_term=on_term, stop=lambda: bool(lost), grace=_GRACE_WHEN_LOST)
                if ended.signal not in (0, signal.SIGINT, signal.SIGHUP):
                    # Killed alone, a script leaves the step that was under way: it may end while there is a lease.
                    child.end_group(0 if lost else at_term)
                # A look (recall briefing, say) must not end the run that a script was killed in.
                used = not going_on or place.was_used or it.stepped(its_run, start)
                if ended.status == 0 and run is None and used and not lost:
                    it.end_run(its_run)
            finally:
                released = give_back(here, it)
        finally:
            child.cancel()
            call_off()
    if lost or not released:
        raise LeaseLost(agent=agent, epoch=lost[0] if lost else it.epoch, now="another's")
    child.die_alike(ended)
    raise typer.Exit(ended.status)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _temporary_file(prefix: str) -> str:
    descriptor, path = tempfile.mkstemp(prefix=prefix)
    os.close(descriptor)
    return path


class _Place:
    """Where the command finds its briefing, a private temporary file unless it is named, and marks its run as used."""

    def __init__(self, path: str | None) -> None:
        self._temporary = path is None
        self.path = _temporary_file("recall-briefing-") if path is None else os.path.abspath(path)
        self.descriptor = open_briefing(self.path, os.O_RDWR)
        self.used = _temporary_file("recall-run-")

    def write(self, text: str) -> None:
        write_briefing(self.path, text)

    @property
    def was_used(self) -> bool:
        """Whether recall run has met a step of the run, if only to replay it."""
        try:
            return os.stat(self.used).st_size > 0
        except OSError:
            return True  # somebody tidied up; as if there were no such file

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        for path in (self.used, self.path) if self._temporary else (self.used,):
            with suppress(FileNotFoundError):
                os.unlink(path)
