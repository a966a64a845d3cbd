"""A command as a step: its intent first, then the command, then its outcome.

What the last attempt left decides what happens: a done step is replayed; an
interrupted one is settled as its class allows, by its resolver, or put before
a person.
"""

from __future__ import annotations

import binascii
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from recall_cli.beginning import begun as begun_or_abandoned
from recall_cli.spawn import KILL_GRACE, Child, Ended
from recall_cli.streams import Kept
from store import actions as rules
from store.actions import ActionEnd
from store.errors import (
    ActionClosed,
    Conflict,
    LeaseExpired,
    LeaseLost,
    MayStillRun,
    NeedsSettling,
    NotLastAttempt,
    RecallError,
    StillRunning,
)
from store.lease import MOST_TTL_MS
from store.running import witness
from store.text import quoted
from store.value import value
from store.values import Action
from store.views import View

if TYPE_CHECKING:
    from store.agent import Agent

STDERR_LIMIT = 8 * 1024  # bytes of stderr that an action keeps
_POLL = 0.2
_REGAIN = 25.0  # seconds; exec renews, and so notices a lapse, every 20 s by default

T = TypeVar("T")


class OutputCut(Conflict):
    """A replay would pass for the whole output, and is not."""

    code = "output_cut"
    template = "step {step} is done, but not all of its output was kept: {left} missing (action {seq})"
    hint_template = "accept what was kept with --replay-cut, or give the step an --output-limit next time"


@value
class Call:
    """What a step is, and how it is to be run.

    Attributes:
        argv: the command.
        args: what is recorded of it, and what tells it from another call.
        step, run: the step's name and its run; "" for a call that is not a step.
        resolver: a line for /bin/sh, or "".
        wait: seconds to wait for the step's command that still runs.
        capture: keep the output; at most ``output_limit`` bytes of it.
        redact: what is not recorded of the output.
    """

    argv: Sequence[str]
    tool: str
    class_: str
    args: str
    step: str = ""
    run: str = ""
    resolver: str = ""
    resolver_timeout: float = 60.0
    retry_failed: bool = False
    wait: float = 0.0
    timeout: float | None = None
    capture: bool = True
    output_limit: int = 1024 * 1024
    redact: tuple[re.Pattern[bytes], ...] = ()
    replay_cut: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)


@value
class Outcome:
    """What became of a call.

    Attributes:
        code: the exit code for the caller.
        action: as it is now recorded.
        replayed: whether the command was not run, and its recorded output stands for it.
        unrecorded: why the outcome could not be written, or None.
        end_all: what to do last, if Ctrl-C ended the command: let it end us and our callers too.
    """

    code: int
    action: Action
    replayed: bool = False
    unrecorded: RecallError | None = None
    end_all: Callable[[], None] = lambda: None


# -- replaying ----------------------------------------------------------------------------


def find_done(view: View, call: Call) -> Action | None:
    """The step's action if it is done already; reads only.

    Raises:
        StepMismatch: the step is another call.
    """
    if not call.step:
        return None
    last, digest = view.last_of_step(call.step, call.run)
    if last is None or rules.never_ran(last):
        return None
    _check_same(call, last, digest)
    return last if last.status == "done" else None


def _check_same(call: Call, last: Action, digest: str) -> None:
    rules.check_same_call(call.step, last, tool=call.tool, class_=call.class_, args=call.args, last_digest=digest)


def replay(view: View, call: Call, action: Action, say: Callable[[str], None]) -> Outcome:
    """Print what a done step printed.

    Raises:
        OutputCut: not all of it was kept.
    """
    command = action.command
    left = command.get("left_out", 0)
    if left and not call.replay_cut:
        raise OutputCut(
            step=quoted(call.step), left="a byte or more is" if left == 1 else f"{left:,} bytes are", seq=action.seq
        )
    text = view.output(action.result_ref).content if action.result_ref else action.result
    data = binascii.a2b_base64(text) if command.get("encoding") == "base64" else text.encode()
    say(f"step {quoted(call.step)} was done at {action.ended_at} (action {action.seq}); its output is replayed")
    if left or not command.get("captured", True):
        say("not all of its output was kept")
    if command.get("redacted"):
        say("what was redacted of it is missing")
    _put(1, data)
    _put(2, str(command.get("stderr", "")).encode())
    return Outcome(0, action, replayed=True)


def _put(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# -- running --------------------------------------------------------------------------------


def perform(agent: Agent, directory: str, token: str, call: Call, child: Child, lock: str) -> Action | Outcome:
    """Record the intent of a call whose command waits in ``child``, and let it start.

    Returns:
        the started action; or an outcome, if the step turned out to be done or could not be started.
    """
    if call.step:
        _clear_the_way(agent, call)
    most = 0 if call.timeout is None else math.ceil((call.timeout + KILL_GRACE) * 1000)
    begin = partial(
        agent.begin_action,
        call.tool,
        call.class_,
        call.args,
        step=call.step or None,
        run=call.run or None,
        retry_failed=call.retry_failed,
        command=witness(child.pid, lock),
        max_ms=min(most, MOST_TTL_MS),
    )
    begun = begun_or_abandoned(agent, call.argv[0], begin)
    if begun.status == "done":
        child.cancel()
        return Outcome(0, begun, replayed=True)
    if begun.command.get("lock") != lock:
        raise NeedsSettling(
            agent=agent.id,
            seq=begun.seq,
            tool=quoted(begun.tool),
            status="started",
            hint="a program of this session began it, and may be doing it right now",
        )
    told = {
        "RECALL_AGENT": agent.id,
        "RECALL_DIR": directory,
        "RECALL_LEASE": token,
        "RECALL_IDEMPOTENCY_KEY": begun.key,
        "RECALL_ACTION_SEQ": str(begun.seq),
        "RECALL_FENCE": agent.fence_of(begun),
    }
    problem = child.go(told)
    if problem is None:
        return begun
    code, text = could_not_start(call.argv, problem)
    known = {"exit": code, "never_started": True}
    return Outcome(code, agent.end_action(begun.seq, "failed", error=text, command=known))


def could_not_start(argv: Sequence[str], problem: OSError) -> tuple[int, str]:
    """The exit code of a shell for a command that could not be started, and why."""
    code = 127 if isinstance(problem, FileNotFoundError) else 126
    return code, f"{quoted(argv[0])} could not be started: {(problem.strerror or 'unknown').lower()}"


def _clear_the_way(agent: Agent, call: Call) -> None:
    """Settle the last attempt of the step, so that a new one may begin.

    Raises:
        StillRunning, MayStillRun: its command is alive, or may be elsewhere, and was for ``call.wait`` seconds.
        NeedsSettling: nobody can tell whether it happened.
    """
    deadline = time.monotonic() + call.wait
    asked = False
    while True:
        last, digest = agent.view.last_of_step(call.step, call.run)
        if last is None or last.status in ("done", "abandoned") or rules.never_ran(last):
            return
        _check_same(call, last, digest)
        if last.open:
            try:
                last = agent.settle_step(last)
            except (StillRunning, MayStillRun) as problem:
                if isinstance(problem, MayStillRun) and call.resolver and not asked:
                    asked = True  # where the call may still be under way elsewhere, only an answer counts
                    if _found(agent, call, last):
                        return
                if time.monotonic() >= deadline:
                    raise
                time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))
                continue
        asks = last.status == "unknown" or (last.status == "failed" and last.class_ == "external")
        if not asks or call.retry_failed:
            return
        try:
            _resolve(agent, call, last)
            return
        except (ActionClosed, NotLastAttempt):
            continue  # somebody was faster: what the resolver said is not of the last attempt any more


def _resolve(agent: Agent, call: Call, last: Action) -> None:
    """Ask the step's resolver about its last attempt, and record what it says."""
    if not _found(agent, call, last):
        try:
            rules.next_of_step(agent.id, last, mine=False, retry_failed=False)
        except NeedsSettling as problem:
            problem.hint = f"the resolver could not tell; {problem.hint}" if call.resolver else problem.hint
            raise


def _found(agent: Agent, call: Call, last: Action) -> bool:
    """Whether the step's resolver, if it has one, could tell; then that is recorded."""
    from recall_cli.asking import ask
    from recall_cli.evidence import outcomes

    args = agent.view.output(last.args_ref).content if last.args_ref else last.args
    if not call.resolver:
        return False
    # A bucket that cannot be asked is said soon: no command starts without it.
    told = outcomes(agent.view.backend, agent.id, last, lambda problem: None)
    found = ask(call.resolver, agent.id, last, args=args, timeout=call.resolver_timeout, evidence=told)
    if found is None:
        return False
    if last.open:
        agent.resolve_action(last.seq, found, by="resolver", force=agent.view.may_run(last) is not None)
    else:
        agent.revise_step(last.seq, found, by="resolver")
    return True


def close(agent: Agent, call: Call, action: Action, ended: Ended, out: Kept, err: Kept) -> Action:
    """Record how the command ended. Raises what writing raises: the action then stays open."""
    shown = _whole_characters(out)
    stored = _redacted(shown, call.redact)
    text, encoding = _storable(stored)
    stderr = _redacted(_whole_characters(err), call.redact).decode("utf-8", "replace").replace("\x00", "\ufffd")
    command: dict[str, Any] = {"exit": ended.status, "signal": ended.signal, "stderr": stderr}
    if encoding:
        command["encoding"] = encoding
    if out.left_out:
        command["left_out"] = out.left_out
    if stored != shown:
        command["redacted"] = True
    if not call.capture:
        command["captured"] = False
    end = _end(call, ended, text)
    return agent.end_action(action.seq, end.status, end.result, end.error, end.resolution, command=command)


def _end(call: Call, ended: Ended, text: str) -> ActionEnd:
    if ended.status == 0 and not ended.timed_out:
        return ActionEnd("done", text)
    how = f"exit status {ended.status}"
    if ended.signal:
        how = f"ended by signal {ended.signal}"
    if ended.timed_out:
        how = f"ran out of its {call.timeout:g} s"
    if call.class_ == "external" and (ended.signal or ended.timed_out):
        return ActionEnd("unknown", text, how, f"{how}; it is not known whether it happened")
    return ActionEnd("failed", text, how)


def exit_code(ended: Ended) -> int:
    """The exit code that tells the caller how the command ended (124 after a time-out, as timeout(1))."""
    return 124 if ended.timed_out else ended.status


def _redacted(data: bytes, patterns: tuple[re.Pattern[bytes], ...]) -> bytes:
    for pattern in patterns:
        data = pattern.sub(b"[redacted]", data)
    return data


def _whole_characters(kept: Kept) -> bytes:
    """What was kept of a stream, without a character that its limit cut in two."""
    data = bytes(kept.data)
    if kept.left_out:
        for end in range(len(data), max(0, len(data) - 4), -1):
            if data[end - 1] & 0xC0 != 0x80:  # the start of the last character
                return data[: end - 1] if data[end - 1] >= 0x80 else data
    return data


def _storable(data: bytes) -> tuple[str, str]:
    """Output as text that may be stored, and how it is encoded ("" for as it is)."""
    if b"\x00" not in data:
        try:
            return data.decode(), ""
        except UnicodeDecodeError:
            pass
    return binascii.b2a_base64(data, newline=False).decode(), "base64"


def regaining(take: Callable[[float], Agent], agent: Agent, work: Callable[[Agent], T]) -> T:
    """Do ``work``; if the session's lease lapsed, wait a little for its holder to take it again.

    An ``exec`` that was stopped, or a machine that slept, finds its lease
    lapsed and acquires again under a new epoch; a command that ended meanwhile
    is no less its own. Nobody else's epoch is ever written under.

    Args:
        take: gets the session's agent under the epoch that it has now.
    """
    deadline = time.monotonic() + _REGAIN
    while True:
        try:
            return work(agent)
        except LeaseExpired:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL)
            agent = take(0)
        except LeaseLost:
            again = take(0)
            if again.epoch == agent.epoch:
                raise
            agent = again
