"""``recall run``: a command as a durable step of a shell script."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from recall_cli.exits import WRITES, Exit, exit_of
from recall_cli.options import AgentOption, Globals, Verbs
from recall_cli.session import mark_run, reading, working
from recall_cli.spawn import Child
from recall_cli.steps import (
    STDERR_LIMIT,
    Call,
    Outcome,
    close,
    exit_code,
    find_done,
    perform,
    regaining,
    replay,
)
from recall_cli.streams import Kept
from recall_cli.values import duration
from store import checks
from store.canonical import BLOB_LIMIT
from store.errors import InvalidInput, RecallError, StoreMissing
from store.running import hold, let_go
from store.text import check_agent, check_count, quoted
from store.views import View

app = Verbs()

_RUN_OTHERS = frozenset(
    "sh bash dash zsh ksh fish busybox python perl ruby node php env sudo doas nice nohup setsid timeout time xargs "
    "ssh docker kubectl make".split()
)


@app.verb("run", exits=(*WRITES, Exit.UNSETTLED))
def run(
    ctx: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    agent: AgentOption,
    class_: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="CLASS", help="pure, idempotent or external; needed at the first use of a tool."
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="The step that this is: it happens once.")
    ] = None,
    run_: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", envvar="RECALL_RUN", show_envvar=True, help="The run of the step."),
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="TOOL", help="The tool's name [default: the command's].")
    ] = None,
    args: Annotated[
        str | None,
        typer.Option("--args", metavar="JSON", help="What tells the call from another [default: the command line]."),
    ] = None,
    resolver: Annotated[
        str | None,
        typer.Option("--resolver", metavar="CMD", help="Asked whether an interrupted call happened: 0 yes, 1 no."),
    ] = None,
    resolver_timeout: Annotated[
        str, typer.Option("--resolver-timeout", metavar="DURATION", help="How long a resolver may take.")
    ] = "60s",
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="End the command after this time.")
    ] = None,
    wait: Annotated[
        str,
        typer.Option("--wait", metavar="DURATION", help="Wait for another holder, or for the step that still runs."),
    ] = "0",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Attempt an external step again that failed.")
    ] = False,
    output_limit: Annotated[
        int, typer.Option("--output-limit", metavar="BYTES", help="How much of the output to keep.")
    ] = 1024 * 1024,
    no_capture: Annotated[
        bool, typer.Option("--no-capture", help="Leave stdout and stderr alone and keep nothing of them.")
    ] = False,
    replay_cut: Annotated[
        bool, typer.Option("--replay-cut", help="Replay a step although not all of its output was kept.")
    ] = False,
    redact: Annotated[
        list[str] | None, typer.Option("--redact", metavar="REGEX", help="Do not record what matches; repeatable.")
    ] = None,
    outcome_file: Annotated[
        str | None, typer.Option("--outcome-file", metavar="FILE", help="Write as JSON what became of the call.")
    ] = None,
) -> None:
    """Run a command as a step that happens once.

    Records the intent, runs the command with RECALL_IDEMPOTENCY_KEY and
    RECALL_FENCE (lineage:epoch:lsn of the intent) set, passes its streams
    through and keeps its output, records how it ended, and exits with its
    status (128 + N by signal, 124 after --timeout, 126 and 127 where it could
    not be started).

    Run again, a done step replays its output. An interrupted one is run again
    if it is pure, run again with the same key if it is idempotent; an
    external one asks --resolver, and otherwise waits for a person: exit 8.
    In a store that ships, a command whose intent does not reach the bucket is
    not started: exit 7.
    """
    here = Globals.of(ctx)
    directory = os.path.abspath(here.directory)
    patterns = _patterns(redact or [])
    written = Outcomes(outcome_file, step or "")
    try:
        named = tool is not None
        tool = checks.check_name("tool", tool or os.path.basename(command[0]), spaces=True)
        call = Call(
            argv=command,
            tool=tool,
            class_=_class(here, agent, tool, class_, named=named),
            args=_args(args, command, patterns),
            step=checks.check_name("step", step) if step else "",
            run=checks.check_run(run_),
            resolver=resolver or "",
            resolver_timeout=duration("--resolver-timeout", resolver_timeout),
            retry_failed=retry_failed,
            wait=duration("--wait", wait),
            timeout=duration("--timeout", timeout) if timeout else None,
            capture=not no_capture,
            output_limit=check_count("--output-limit", output_limit, least=0, most=BLOB_LIMIT // 2),
            redact=patterns,
            replay_cut=replay_cut,
        )
        if call.step:
            mark_run(call.run)
        outcome = _replayed(here, agent, call) or _run(here, agent, directory, call)
    except RecallError as problem:
        written.refused(problem)
        raise
    written.ended(outcome)
    if outcome.unrecorded is not None:
        here.out.message(
            f"the command ended with exit code {outcome.code}, but that could not be recorded: "
            f"action {outcome.action.seq} stays {outcome.action.status}"
        )
        raise outcome.unrecorded
    outcome.end_all()
    raise typer.Exit(outcome.code)


def _replayed(here: Globals, agent: str, call: Call) -> Outcome | None:
    """The outcome of a step that is done: a look, without a lease."""
    if not call.step:
        return None
    try:
        with reading(here) as backend:
            view = View(backend, check_agent(agent))
            action = find_done(view, call)
            return replay(view, call, action, here.out.message) if action else None
    except StoreMissing:
        return None


def _run(here: Globals, agent_id: str, directory: str, call: Call) -> Outcome:
    check_agent(agent_id)
    with working(here, agent_id) as (backend, take):
        # Before any thread: the fork. Before the intent: the pid that it records.
        lock = backend.random.hex(32)
        descriptor = hold(directory, lock)
        child = Child(call.argv, dict(os.environ), capture=call.capture)
        try:
            agent = take(call.wait)
            begun = perform(agent, directory, agent.token, call, child, lock)
            if isinstance(begun, Outcome):
                if begun.replayed:
                    return replay(agent.view, call, begun.action, here.out.message)
                here.out.message(begun.action.error)
                return begun
            out, err = Kept(call.output_limit), Kept(STDERR_LIMIT)
            ended = child.watch(keep=(out, err) if call.capture else None, timeout=call.timeout)
            end_all = partial(child.die_alike, ended)
            try:
                action = regaining(take, agent, lambda it: close(it, call, begun, ended, out, err))
                return Outcome(exit_code(ended), action, end_all=end_all)
            except RecallError as problem:
                return Outcome(exit_code(ended), begun, unrecorded=problem)
        finally:
            child.cancel()
            let_go(directory, lock, descriptor)


def _class(here: Globals, agent: str, tool: str, given: str | None, *, named: bool) -> str:
    """The class that was given, or that the tool was last used with.

    A program that runs others has no class of its own, unless it was ``named`` as a tool.
    """
    if given:
        return checks.check_class(given)
    anything = not named and tool.rstrip("0123456789.") in _RUN_OTHERS
    try:
        with reading(here) as backend:
            known = "" if anything else View(backend, check_agent(agent)).tool_class(tool)
    except StoreMissing:
        known = ""
    if known:
        return known
    when = f"for {quoted(tool)}, which can do anything" if anything else f"at the first use of {quoted(tool)}"
    raise InvalidInput(
        field="--class",
        reason=f"is needed {when}: what would running it again do?",
        hint="pure: change nothing; idempotent: no harm, with the same RECALL_IDEMPOTENCY_KEY; external: it might "
        "happen twice",
    )


def _args(given: str | None, command: list[str], patterns: tuple[re.Pattern[bytes], ...]) -> str:
    """What is recorded of the call's arguments, secrets taken out."""
    if given is not None:
        try:
            value: Any = json.loads(given, parse_constant=_no_constant)
        except (ValueError, RecursionError) as problem:
            raise InvalidInput(field="--args", reason=f"is not JSON: {problem}") from None
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    else:
        # A file's name may be any bytes; what is recorded of it is text.
        shown = [os.fsencode(each).decode("utf-8", "backslashreplace") for each in command]
        text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    data = text.encode("utf-8", "surrogatepass")
    for pattern in patterns:
        data = pattern.sub(b"[redacted]", data)
    return data.decode("utf-8", "backslashreplace")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _patterns(given: list[str]) -> tuple[re.Pattern[bytes], ...]:
    compiled = []
    for each in given:
        try:
            compiled.append(re.compile(each.encode("utf-8", "surrogateescape")))
        except re.error as problem:
            raise InvalidInput(field="--redact", reason=f"{quoted(each)} is not a pattern: {problem}") from None
    return tuple(compiled)


class Outcomes:
    """Writes ``--outcome-file``, which tells the command's status from a refusal of ours."""

    def __init__(self, path: str | None, step: str) -> None:
        self._path = path
        self._step = step

    def ended(self, outcome: Outcome) -> None:
        self._write(
            {
                "ran": not outcome.replayed,
                "replayed": outcome.replayed,
                "refused": False,
                "code": outcome.code,
                "recorded": outcome.unrecorded is None,
                "action": outcome.action.seq,
                "status": outcome.action.status,
            }
        )

    def refused(self, problem: RecallError) -> None:
        self._write(
            {
                "ran": False,
                "replayed": False,
                "refused": True,
                "code": int(exit_of(problem)),
                "reason": problem.code,
                "message": problem.message,
            }
        )

    def _write(self, document: dict[str, Any]) -> None:
        if self._path is None:
            return
        path = Path(self._path)
        partial = path.with_name(path.name + f".{os.getpid()}.partial")
        try:
            partial.write_text(json.dumps({"step": self._step, **document}) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as problem:
            # The command's status matters more than the file about it.
            sys.stderr.write(f"recall: {quoted(self._path)} could not be written: {problem.strerror}\n")
