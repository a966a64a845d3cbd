"""SIGKILL against the 16-file example, at random, until it is done: ``python -m tests.shell.storm --runs 100``.

Each run is killed at least three times inside a step, and some of the runs
inside the email. What is killed: the script, ``recall run`` alone, the command
alone, ``recall exec``, or all at once.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from store.backends.sqlite import SqliteBackend
from store.values import Action
from store.verify import Problem, verify
from store.views import View
from tests.shell.conftest import alive

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "migrate"
RECALL = Path(sys.executable).with_name("recall")
FILES = 16
TEXTS = tuple(f"calls: charge{number}\n" for number in range(FILES))
AGENT = "migrator"
KINDS = ("script", "runner", "command", "exec", "all")
LIMIT = 400.0  # seconds for one run
_TRIES = 4  # until all the planned kills came in time


@dataclass
class Told:
    """What happened in one run.

    Attributes:
        inside: what was killed while an action was open, by kind.
        outside: what was killed at another moment.
        in_mail: kills inside the email.
        asked: how often a person had to find out about the email.
    """

    inside: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    in_mail: int = 0
    asked: int = 0
    starts: int = 0


@dataclass
class Place:
    """The repository, the mailbox and the store of one run."""

    root: Path
    environ: dict[str, str]
    mailbox: Path
    texts: Sequence[str]  # of the files, before

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    @property
    def store(self) -> Path:
        return self.root / "store"


@contextmanager
def place(root: Path, *, resolver: bool, slowness: float = 0.08, texts: Sequence[str] = TEXTS) -> Iterator[Place]:
    """A fresh repository of files with these texts, and a mail server of its own."""
    mailbox, port = root / "mailbox", root / "port"
    home = root / "home"
    home.mkdir(parents=True)
    environ = {
        "PATH": f"{RECALL.parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "RECALL_DIR": str(root / "store"),
        "MAILBOX": str(mailbox),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "agent@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    if not resolver:
        environ["RESOLVER"] = ""
    repository = root / "repository"
    (repository / "api").mkdir(parents=True)
    for number, text in enumerate(texts):
        (repository / "api" / f"f{number:02}.txt").write_text(text)
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "Start"]):
        subprocess.run(["git", *command], cwd=repository, env=environ, check=True)
    server = subprocess.Popen([sys.executable, str(EXAMPLE / "mail_server.py"), str(mailbox), str(port), str(slowness)])
    try:
        while not port.exists():
            time.sleep(0.01)
        environ["SMTP_PORT"] = port.read_text()
        yield Place(root, environ, mailbox, texts)
    finally:
        server.kill()
        server.wait()


def start(at: Place) -> subprocess.Popen[bytes]:
    """The script as a person starts it."""
    with (at.root / "log").open("ab") as log:
        return subprocess.Popen(
            [RECALL, "exec", AGENT, "--run", "v2", "--wait", "30s", "--", EXAMPLE / "migrate.sh", at.repository],
            env=at.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )


def children(pid: int) -> list[int]:
    """The children of a process; none if it is gone."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def words(pid: int) -> list[str]:
    """A process's command line; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def tree(exec_pid: int) -> dict[str, int]:
    """The processes of the example that exist now, by what they are."""
    found = {"exec": exec_pid}
    for script in children(exec_pid):
        if any(word.endswith("migrate.sh") for word in words(script)) and "exec" not in words(script):
            found["script"] = script
            for runner in children(script):
                if "run" in words(runner)[:4]:
                    found["runner"] = runner
                    for command in children(runner):
                        if "run" not in words(command)[:4]:  # else it is the fork that waits to be told
                            found["command"] = command
    return found


def mailing(there: dict[str, int]) -> bool:
    """Whether the step under way is the report."""
    return "runner" in there and "report" in words(there["runner"])


def actions(at: Place) -> list[Action]:
    """All actions of the agent, oldest first."""
    backend = SqliteBackend(at.store, read_only=True)
    try:
        return sorted(View(backend, AGENT).actions(), key=lambda each: each.seq)
    finally:
        backend.close()


def kill(pids: list[int]) -> None:
    """SIGKILL for all of them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Plan:
    """The kills that are still to come.

    Attributes:
        files: in a step that migrates a file.
        mail: in the email; what the files were too few for comes there too.
        steps_left: of the script, about.
    """

    chance: random.Random
    files: int
    mail: int
    steps_left: int = FILES
    skip: int = 0

    def __post_init__(self) -> None:
        self._next()

    def _next(self) -> None:
        self.skip = self.chance.randint(0, max(0, self.steps_left // (self.files + 1) - 1))

    def wants(self, mail: bool) -> bool:
        """Whether the step whose command was just seen at work is to be killed."""
        if mail:
            return self.mail + self.files > 0
        self.steps_left -= 1
        self.skip -= 1
        return self.files > 0 and self.skip < 0

    def hit(self, mail: bool) -> None:
        """It was, inside."""
        if mail and self.mail:
            self.mail -= 1
        else:
            self.files -= 1
        self._next()


def disturbed(at: Place, plan: Plan) -> Told:
    """Run the example, killing it as planned and starting it again, to its end."""
    told = Told()
    deadline = time.monotonic() + LIMIT
    process: subprocess.Popen[bytes] | None = None
    try:
        while True:
            assert time.monotonic() < deadline, f"it did not end: {(at.root / 'log').read_text()[-2000:]}"
            process = start(at)
            told.starts += 1
            code = _one_start(at, process, plan, told)
            if code == 0:
                return told
            if code == 8:
                _person(at, told)
    finally:
        if process is not None and process.poll() is None:
            kill([*tree(process.pid).values()])
            process.wait()


def _one_start(at: Place, process: subprocess.Popen[bytes], plan: Plan, told: Told) -> int:
    last_runner = 0
    while process.poll() is None:
        there = tree(process.pid)
        if "command" in there and there["runner"] != last_runner:
            last_runner = there["runner"]
            mail = mailing(there)
            if plan.wants(mail):
                time.sleep(plan.chance.uniform(0, 0.15 if mail else 0.02))
                _strike(at, process, plan, told)
        time.sleep(0.004)
    return process.returncode


def _strike(at: Place, process: subprocess.Popen[bytes], plan: Plan, told: Told) -> None:
    there = tree(process.pid)
    kind = plan.chance.choice(KINDS)
    victims = [*there.values()] if kind == "all" else [there[kind]] if kind in there else []
    mail = mailing(there)
    # Inside a step is: while its command is at work, whatever becomes of it a moment later.
    inside = "command" in there and alive(there["command"])
    kill(victims)
    if victims and inside:
        told.inside[kind] += 1
        told.in_mail += mail
        plan.hit(mail)
    else:
        told.outside[kind] += 1


def _person(at: Place, told: Told) -> None:
    """What a person does where there is no resolver: look into the mailbox, and say what is there."""
    waiting = [each for each in actions(at) if each.status in ("unknown", "failed") and each.tool == "python3"]
    assert waiting, "it asks for a person, and nothing waits"
    action = waiting[-1]
    told.asked += 1
    environ = {**at.environ, "RECALL_IDEMPOTENCY_KEY": action.key}
    sent = subprocess.run([str(EXAMPLE / "was_sent.sh")], env=environ, check=False, timeout=60).returncode == 0
    outcome = "done" if sent else "abandoned"
    subprocess.run(
        [str(RECALL), "actions", "resolve", "-a", AGENT, str(action.seq), outcome, "--reason", "looked"],
        env=at.environ,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def migrated(text: str) -> str:
    """A file's text as it has to become."""
    return re.sub("^calls: (.*)$", r"calls: v2(\1)", text, flags=re.MULTILINE)


def commits(at: Place) -> Counter[str]:
    """How many commits there are, by subject."""
    log = ["git", "log", "--format=%s"]
    told = subprocess.run(log, cwd=at.repository, env=at.environ, check=True, capture_output=True, text=True).stdout
    return Counter(told.splitlines())


def check(at: Place) -> None:
    """The outcome of an undisturbed run, and nothing else."""
    names = [f"f{number:02}" for number in range(len(at.texts))]
    for name, before in zip(names, at.texts, strict=True):
        text = (at.repository / "api" / f"{name}.txt").read_text()
        assert text == migrated(before), text
    assert commits(at) == {"Start": 1, **{f"Migrate api/{name}.txt": 1 for name in names}}
    status = ["git", "status", "--porcelain"]
    assert subprocess.run(status, cwd=at.repository, env=at.environ, check=True, capture_output=True).stdout == b""
    mails = list(at.mailbox.glob("*.eml"))
    assert len(mails) == 1, [each.read_text() for each in mails]
    every = actions(at)
    assert not [each for each in every if each.open]
    done = Counter(each.step for each in every if each.status == "done")
    assert done == {**{f"migrate-{name}": 1 for name in names}, "report": 1}
    backend = SqliteBackend(at.store, read_only=True)
    try:
        assert not [each for each in verify(backend) if isinstance(each, Problem)]
    finally:
        backend.close()


def run(seed: int, root: Path, *, resolver: bool, kills: int = 3, mail_kills: int = 0) -> Told:
    """One disturbed run and its checks; without a resolver only the email may have waited for a person."""
    # A kill may come too late, after the step: what it did is checked all the same, and the run is tried again.
    for attempt in range(_TRIES):
        with place(root / str(attempt), resolver=resolver) as at:
            told = disturbed(at, Plan(random.Random(seed + 1000 * attempt), kills, mail_kills))
            check(at)
        if told.inside.total() >= kills + mail_kills:
            break
    assert told.inside.total() >= kills + mail_kills
    if resolver:
        assert told.asked == 0
    else:
        assert told.asked <= told.in_mail
    return told


def report(every: list[Told]) -> str:
    """The distribution of the kills, for a person."""
    inside, outside = Counter[str](), Counter[str]()
    for told in every:
        inside += told.inside
        outside += told.outside
    lines = [
        f"{len(every)} runs, each ended with {FILES} files, {FILES} commits, 1 email and a log that verifies",
        *(f"  {kind:<8} killed {inside[kind]:>4} times inside a step, {outside[kind]:>3} outside" for kind in KINDS),
    ]
    mails = sum(told.in_mail > 0 for told in every)
    lines.append(
        f"  {mails} runs were killed inside the email; {sum(told.asked for told in every)} times a person looked"
    )
    lines.append(f"  {min(told.inside.total() for told in every)} kills inside a step at least in each run")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-resolver", action="store_true")
    given = parser.parse_args()
    every = []
    for seed in range(given.seed, given.seed + given.runs):
        with tempfile.TemporaryDirectory(prefix="recall-storm-") as root:
            mail_kills = 1 if seed % 3 == 0 else 0
            every.append(run(seed, Path(root), resolver=not given.without_resolver, kills=3, mail_kills=mail_kills))
        sys.stdout.write(f"\r{len(every)} of {given.runs}")
        sys.stdout.flush()
    sys.stdout.write("\n" + report(every) + "\n")


if __name__ == "__main__":
    main()
