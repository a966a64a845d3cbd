"""What is killed: each program, the store it keeps its records in, and what a person does where it waits for one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.kills.programs.world import lines, result_of
from bench.measure import ROOT, recall_command
from store.backends.sqlite import SqliteBackend
from store.shipping.bucket import Location
from store.verify import Problem, verify
from store.views import View
from tests.shipping.servers import CREDENTIALS

PROGRAMS = Path(__file__).with_name("programs")
SETUPS = ("ordinary", "durable", "resolved")
TITLES = {
    "ordinary": "ordinary tools",
    "durable": "durable tools, no resolver",
    "resolved": "durable tools, resolver",
    "keyed": "tools with a key",
}


@dataclass
class Place:
    """Where one trial happens.

    Attributes:
        world: what the tools touch; the witness.
        store: the directory that the program keeps its records in.
        agent: its id, of this trial alone.
        environ: of every process of the trial.
    """

    world: Path
    store: Path
    agent: str
    environ: dict[str, str]


def _no_check(place: Place) -> None:
    pass


@dataclass
class Contender:
    """One kind of program.

    Attributes:
        argv: its command line, by setup.
        setups: those that it knows.
        jobs: how many trials at once: more than there are processors where a trial mostly waits.
        environ: what its processes need beside the common.
        after_kill: what becomes of the machine: nothing, or its directory is gone.
        person: settles what a program left to a person, having looked at the world.
        share: of ``--moments`` and of ``--calls``; none of those for whom it is 0.
        parts: whether it has several processes, of which one alone may be killed.
        check: raises if the records are not sound at the end.
    """

    name: str
    face: str
    store: str
    argv: Callable[[str], list[str]]
    setups: tuple[str, ...] = SETUPS
    jobs: int = 2
    environ: Callable[[], Mapping[str, str]] = dict
    after_kill: Callable[[Place], None] = _no_check
    person: Callable[[Place], None] = _no_check
    check: Callable[[Place], None] = _no_check
    share: tuple[float, float] = (0.0, 0.0)
    parts: bool = False
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """By which ``--only`` chooses it."""
        return key_of(self.name, self.face, self.store)


def key_of(name: str, face: str, store: str) -> str:
    """By which a contender is known on the command line."""
    return "/".join(each.lower().replace(" ", "-") for each in (name, face, store))


def _python(program: str) -> Callable[[str], list[str]]:
    return lambda setup: [sys.executable, "-m", f"bench.kills.programs.{program}", setup]


def _shell(setup: str) -> list[str]:
    # The run is named, as for all that is started again blindly: a kill between the script's end and exec's is no end.
    options = ["--run", "job", "--ttl", f"{TTL}s", "--wait", "60s"]
    return [recall_command(), "exec", *options, "--", str(PROGRAMS / "agent.sh"), setup]


TTL = 5  # seconds; what a machine whose directory is gone has to be waited for. The least over MCP

# Each face's program, whether it has several processes, and its share of the kills at random, by store: of those that
# take long there are fewer.
FACES: dict[str, tuple[Callable[[str], list[str]], bool, dict[str, tuple[float, float]]]] = {
    "Python": (_python("client"), False, {"SQLite": (0.4, 0.4), "bucket": (0.1, 0.1)}),
    "shell": (_shell, True, {"SQLite": (0.1, 0.1), "bucket": (0.04, 0.03)}),
    "MCP": (_python("host"), True, {"SQLite": (0.3, 0.32), "bucket": (0.06, 0.05)}),
}


def ours(bucket: Location | None = None) -> list[Contender]:
    """Recall by each of its faces, on a directory; and, if there is a ``bucket``, on directories that do not last."""
    return [_ours(face, None) for face in FACES] + ([_ours(face, bucket) for face in FACES] if bucket else [])


def _ours(face: str, bucket: Location | None) -> Contender:
    argv, parts, share = FACES[face]
    store = "bucket" if bucket else "SQLite"
    made = Contender("Recall", face, store, argv, share=share[store], parts=parts, person=_person, check=_check)
    if bucket is None:
        made.environ = _environ
        return made
    remote = f"{bucket.url}?endpoint_url={bucket.endpoint_url}&region={bucket.region}"
    made.environ = lambda: {**_environ(), **CREDENTIALS, "RECALL_REMOTE": remote}
    made.after_kill = lambda place: shutil.rmtree(place.store, ignore_errors=True)
    made.jobs = 6
    return made


def _environ() -> dict[str, str]:
    return {
        "RECALL": recall_command(),
        "WORLD_TOOL": f"{sys.executable} -IS {PROGRAMS / 'world.py'}",
        "PATH": f"{Path(recall_command()).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TTL": str(TTL),
    }


def _person(place: Place) -> None:
    """Looks into the outbox, and says what is there."""
    with SqliteBackend(place.store, read_only=True) as backend:
        waiting = [
            each
            for each in View(backend, place.agent).actions()
            if each.class_ == "external" and each.status in ("started", "unknown", "failed")
        ]
    action = max(waiting, key=lambda each: each.seq)
    sent = action.key in lines(place.world / "emails")
    subprocess.run(
        [
            *(recall_command(), "actions", "resolve", "-a", place.agent, str(action.seq)),
            *(("done", "--result", result_of("email")) if sent else ("abandoned",)),
            *("--reason", "looked into the outbox"),
        ],
        env=place.environ,
        check=True,
        capture_output=True,
    )


def _check(place: Place) -> None:
    with SqliteBackend(place.store, read_only=True) as backend:
        problems = [each for each in verify(backend) if isinstance(each, Problem)]
        pending = [each for each in View(backend, place.agent).actions() if each.open]
    assert not problems, problems
    assert not [each for each in pending if each.class_ == "external"], pending
