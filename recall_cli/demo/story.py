"""What the demo does, in order: it starts the agent's program, kills it at the worst moment, and counts.

Each case checks itself as it goes: what did not hold is a problem in its
outcome, and one problem is enough for the demo to fail.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recall_cli.demo.ending import Ending
from recall_cli.demo.mail import MailServer, Moment, message_id
from recall_cli.exits import Exit
from store.backends.sqlite import SqliteBackend
from store.errors import RecallError
from store.verify import Problem, verify
from store.views import View

Tell = Callable[[str], None]

AGENT = "billing-migrator"
_PATIENCE = 20.0  # seconds for anything that takes a fraction of one
_ROOT = Path(__file__).resolve().parents[2]


class DemoFailed(RecallError):
    """The story did not go as it has to."""

    code = "demo_failed"
    template = "the demo did not hold: {reason}"
    hint_template = "see the whole with: recall demo --keep"


@dataclass
class Case:
    """One killed agent and what became of its email. ``problems`` is empty if the story held."""

    name: str
    agent: str
    key: str = ""
    lease_left_ms: int = 0
    takeover_ms: float = 0.0
    restart_ms: float = 0.0
    settled: str = ""
    settled_by: str = ""
    emails: int = 0
    problems: list[str] = field(default_factory=list)

    def check(self, held: bool, otherwise: str) -> None:
        """Notes ``otherwise`` as a problem unless it ``held``."""
        if not held:
            self.problems.append(f"{self.name}: {otherwise}")


@dataclass
class Outcome:
    """All of it, as ``--json`` shows it."""

    ok: bool
    cases: list[Case]
    emails_without_records: int
    records: int
    chain: str
    problems: list[str]
    seconds: float

    def document(self) -> dict[str, Any]:
        return asdict(self)


def run(directory: Path, tell: Tell, ending: Ending, *, by_hand: bool) -> Outcome:
    """Tells and does the whole story.

    Args:
        directory: where the store is made.
        ending: what an early end is signalled through.
        by_hand: an operator's command settles what was interrupted, instead of a resolver.

    Raises:
        DemoFailed: a process did not do its part in time, so that nothing can be said.
    """
    started = time.monotonic()
    scene = Scene(directory, tell, ending, by_hand)
    cases = [
        scene.killed("killed after", AGENT, "after"),
        scene.killed("killed before", f"{AGENT}-2", "before"),
    ]
    without = scene.without_records()
    records, found = scene.verified([case.agent for case in cases])
    problems = [problem for case in cases for problem in case.problems] + found
    if without != 2:
        problems.append(f"without records: {without} emails were sent, not the 2 of a program that starts over")
    counts = " and ".join(str(case.emails) for case in cases)
    tell("")
    tell(f"emails sent: {counts}, one for each case; without records {without}")
    tell(f"records: {records} verified, chain {'BROKEN' if found else 'ok'}")
    return Outcome(
        ok=not problems,
        cases=cases,
        emails_without_records=without,
        records=records,
        chain="broken" if found else "ok",
        problems=problems,
        seconds=round(time.monotonic() - started, 2),
    )


class Scene:
    """The store, and how processes are started on it."""

    def __init__(self, directory: Path, tell: Tell, ending: Ending, by_hand: bool) -> None:
        self.store = directory
        self._tell = tell
        self._ending = ending
        self._mode = "without-resolver" if by_hand else "with-resolver"
        self._by_hand = by_hand
        self._number = 0

    def killed(self, name: str, agent: str, moment: Moment) -> Case:
        """One case: the first process is killed at ``moment``, and the next one finishes the work."""
        case = Case(name, agent)
        accepted = moment == "after"
        self._number += 1
        self._tell("")
        self._tell(
            f"{self._number}. Killed after the mail server took the message, before the agent could note it"
            if accepted
            else f"{self._number}. Killed before the mail server got the message"
        )
        with MailServer(hold=moment) as mail:
            killed_at = self._first_life(case, mail, accepted=accepted)
            self._next_lives(case, mail, killed_at, accepted=accepted)
            case.emails = len(mail.messages)
        case.check(case.emails == 1, f"{case.emails} emails were sent, not 1")
        self._say(f"emails sent: {case.emails}")
        return case

    def _first_life(self, case: Case, mail: MailServer, *, accepted: bool) -> float:
        with self._process(case.agent, mail.port) as first:
            _until_held(first, mail)
            first.kill()
            killed_at = time.time()
            told, _ = _ended(first)
        case.check(first.returncode == -signal.SIGKILL, f"the first process ended with {first.returncode}")
        case.check(len(mail.messages) == int(accepted), f"the server had {len(mail.messages)} messages at the kill")
        mail.go_on()
        noted, began = _event(told, "noted"), _event(told, "began")
        case.check("sent" not in _names(told), "the first process could still note that it had sent the email")
        case.key = str(began["key"])
        self._say(f"process {first.pid} works as agent {case.agent}: {noted['turns']} turns, a pointer, a milestone")
        self._say(f"it notes that it is about to call send_email (action {began['seq']}, external, key {case.key})")
        self._say(
            "it sends; the server has accepted the message, and the agent has not been told"
            if accepted
            else "it connects to the server, and has not sent the message yet"
        )
        with self._looking() as backend:
            lease = backend.lease(case.agent)
            status = View(backend, case.agent).action(int(began["seq"])).status
            case.lease_left_ms = lease.left_ms(backend.clock.now()) if lease else 0
        case.check(status == "started", f"the action was {status} after the kill, not started")
        case.check(case.lease_left_ms > 0, "the killed process held no lease that could be in the way")
        self._say(f"kill -9 {first.pid}: gone; its lease has {case.lease_left_ms / 1000:.1f} s to go")
        return killed_at

    def _next_lives(self, case: Case, mail: MailServer, killed_at: float, *, accepted: bool) -> None:
        told = self._life(case, mail, Exit.UNSETTLED if self._by_hand else Exit.DONE)
        self._tell_takeover(case, _event(told, "resumed"), killed_at, whole=accepted)
        if self._by_hand:
            stuck = _event(told, "stuck")
            self._say(f"it does not guess: {stuck['message']}")
            self._resolve_by_hand(case, int(stuck["seq"]), mail)
            told = self._life(case, mail, Exit.DONE)
        else:
            settled = _event(told, "settled")
            case.settled, case.settled_by = str(settled["status"]), "resolver"
            self._say(
                f"the resolver asks the server for the key: {settled['why']}; action {settled['seq']} is {case.settled}"
            )
        expected = "done" if accepted else "abandoned"
        case.check(case.settled == expected, f"the interrupted action was settled {case.settled!r}, not {expected}")
        names = _names(told)
        case.check("finished" in names, "the last process did not finish the work")
        if accepted:
            case.check("sent" not in names, "the email was sent again")
            self._say("so it is not sent again, and the agent finishes")
        else:
            case.check("sent" in names, "the email was not sent")
            self._say(f"so it is sent now, as action {_event(told, 'began')['seq']}, and the agent finishes")

    def _life(self, case: Case, mail: MailServer, code: Exit) -> list[dict[str, Any]]:
        """A later process's whole life; what it told."""
        with self._process(case.agent, mail.port) as process:
            told, errors = _ended(process)
        if process.returncode != code:
            raise DemoFailed(reason=f"process {process.pid} ended with {process.returncode}: {_last_line(errors)}")
        return told

    def _tell_takeover(self, case: Case, resumed: Mapping[str, Any], killed_at: float, *, whole: bool) -> None:
        case.takeover_ms = float(resumed["ms"])
        case.restart_ms = round((float(resumed["at"]) - killed_at) * 1000, 1)
        case.check(resumed["epoch"] == 2, f"the next process has epoch {resumed['epoch']}, not 2")
        case.check(case.restart_ms < case.lease_left_ms, "the next process waited for the lease to run out")
        self._say(f"process {resumed['pid']}, the same program: nobody waits for a holder that is provably dead;")
        self._say(f"resumed in {case.takeover_ms:.0f} ms, which is {case.restart_ms:.0f} ms after the kill")
        briefing = str(resumed["briefing"])
        heading = next((line for line in briefing.splitlines() if line.startswith("## ")), "")
        case.check("action" in heading.lower(), "the briefing does not begin with the interrupted call")
        if not whole:
            self._say(f"its briefing begins as above: {heading.removeprefix('## ')}")
            return
        self._say("its briefing, whole:")
        self._tell("")
        for line in briefing.splitlines():
            self._tell(f"     | {line}".rstrip())
        self._tell("")

    def _resolve_by_hand(self, case: Case, seq: int, mail: MailServer) -> None:
        there = mail.seen(message_id(case.key))
        status, reason = ("done", "the server has it") if there else ("abandoned", "the server does not have it")
        words = ["actions", "resolve", "-a", case.agent, str(seq), status, "--reason", reason, "--by", "operator"]
        self._say(f"so an operator looks it up, {reason}, and says so:")
        self._say(f"$ recall {shlex.join(words)}")
        done = subprocess.run(
            [sys.executable, "-m", "recall_cli", "--dir", str(self.store), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=self.store,
            env=_environment(),
            timeout=_PATIENCE,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(reason=f"recall actions resolve ended with {done.returncode}: {_last_line(done.stderr)}")
        with self._looking() as backend:
            action = View(backend, case.agent).action(seq)
        case.settled, case.settled_by = action.status, action.by
        self._say("and the program is started again")

    def without_records(self) -> int:
        """The number of emails from a program without records that is killed and started again."""
        self._number += 1
        self._tell("")
        self._tell(f"{self._number}. For comparison: the first case, by a program without records")
        with MailServer(hold="after") as mail:
            with self._process(AGENT, mail.port, mode="without-records") as first:
                _until_held(first, mail)
                first.kill()
                _ended(first)
            mail.go_on()
            with self._process(AGENT, mail.port, mode="without-records") as second:
                _ended(second)
            count = len(mail.messages)
        self._say(f"process {first.pid} is killed when the server has the message; process {second.pid} starts over")
        self._say(f"emails sent: {count}")
        return count

    def verified(self, agents: list[str]) -> tuple[int, list[str]]:
        """How many records there are, and what is wrong with them."""
        records, problems = 0, []
        with self._looking() as backend:
            for each in verify(backend, agents):
                if isinstance(each, Problem):
                    problems.append(f"{each.agent or 'store'}: {each.key} {each.reason}")
                else:
                    records += each.records
        return records, problems

    @contextmanager
    def _looking(self) -> Iterator[SqliteBackend]:
        backend = SqliteBackend(self.store, read_only=True)
        try:
            yield backend
        finally:
            backend.close()

    @contextmanager
    def _process(self, agent: str, port: int, *, mode: str = "") -> Iterator[subprocess.Popen[str]]:
        """One life of the agent's program; it does not outlive the block."""
        command = [sys.executable, "-m", "recall_cli.demo.worker"]
        command += [str(self.store), agent, str(port), mode or self._mode]
        try:
            with ExitStack() as stack:
                with self._ending.held_back():
                    process = stack.enter_context(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE,
                            text=True,
                            encoding="utf-8",
                            errors="replace",
                            cwd=self.store,
                            env=_environment(),
                        )
                    )
                    stack.callback(process.kill)
                yield process
        except subprocess.TimeoutExpired:
            raise DemoFailed(reason=f"process {process.pid} did not end within {_PATIENCE:g} s") from None

    def _say(self, text: str) -> None:
        self._tell(f"   {text}")


def _until_held(process: subprocess.Popen[str], mail: MailServer) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not mail.held.wait(0.02):
        if process.poll() is not None:
            _, errors = _ended(process)
            raise DemoFailed(reason=f"the first process ended with {process.returncode}: {_last_line(errors)}")
        if time.monotonic() > deadline:
            raise DemoFailed(reason=f"the first process sent nothing within {_PATIENCE:g} s")


def _ended(process: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], str]:
    """What a process told in its life, and its stderr, once it has ended."""
    out, errors = process.communicate(timeout=_PATIENCE)
    return [json.loads(line) for line in out.splitlines()], errors


def _event(told: list[dict[str, Any]], name: str) -> Mapping[str, Any]:
    for event in told:
        if event["event"] == name:
            return event
    raise DemoFailed(
        reason=f"the agent's program did not come to {name!r}, only to {', '.join(_names(told)) or 'nothing'}"
    )


def _names(told: list[dict[str, Any]]) -> list[str]:
    return [str(event["event"]) for event in told]


def _last_line(errors: str) -> str:
    return next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "it said nothing")


def _environment() -> dict[str, str]:
    """The user's, but for Recall's own variables: a lease or a store of theirs has no part in this."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
    if _ROOT.name not in ("site-packages", "dist-packages"):  # a checkout that may not be installed
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (kept.get("PYTHONPATH"), str(_ROOT))))
    return kept
