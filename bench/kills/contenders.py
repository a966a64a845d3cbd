"""What is killed: each program, the store it keeps its records in, and what a person does where it waits for one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import ROOT, recall_command
from store.backends.sqlite import SqliteBackend
from store.shipping.bucket import Location
from store.verify import Problem, verify
from store.views import View

PROGRAMS = Path(__file__).with_name("programs")
AGENT = "biller"
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
        environ: of every process of the trial.
    """

    world: Path
    store: Path
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
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """By which ``--only`` chooses it."""
        return "/".join(each.lower().replace(" ", "-") for each in (self.name, self.face, self.store) if each)


def _python(program: str) -> Callable[[str], list[str]]:
    return lambda setup: [sys.executable, "-m", f"bench.kills.programs.{program}", setup]


def _shell(setup: str) -> list[str]:
    return [recall_command(), "exec", AGENT, "--ttl", f"{TTL}s", "--wait", "60s", "--", str(PROGRAMS / "agent.sh"), setup]


TTL = 3  # seconds; what a machine whose directory is gone has to be waited for

FACES: dict[str, Callable[[str], list[str]]] = {"Python": _python("client"), "shell": _shell, "MCP": _python("host")}


def ours(bucket: Callable[[], Location] | None = None) -> list[Contender]:
    """Recall by each of its faces, on a directory; and where ``bucket`` makes places in one, on those."""
    made = [
        Contender("Recall", face, "SQLite", argv, environ=_environ, person=_person, check=_check)
        for face, argv in FACES.items()
    ]
    if bucket is None:
        return made

    def environ() -> dict[str, str]:
        from tests.shipping.servers import CREDENTIALS

        location = bucket()
        remote = f"{location.url}?endpoint_url={location.endpoint_url}&region={location.region}"
        return {**_environ(), **CREDENTIALS, "RECALL_REMOTE": remote}

    return made + [
        Contender(
            *("Recall", face, "bucket", argv),
            environ=environ,
            jobs=4,
            after_kill=lambda place: shutil.rmtree(place.store),
            person=_person,
            check=_check,
        )
        for face, argv in FACES.items()
    ]


def _environ() -> dict[str, str]:
    return {
        "RECALL": recall_command(),
        "RECALL_AGENT": AGENT,
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
            for each in View(backend, AGENT).actions()
            if each.class_ == "external" and each.status in ("started", "unknown", "failed")
        ]
    action = max(waiting, key=lambda each: each.seq)
    outbox = place.world / "emails"
    sent = outbox.exists() and action.key in outbox.read_text().split()
    subprocess.run(
        [
            *(recall_command(), "actions", "resolve", "-a", AGENT, str(action.seq)),
            *("done" if sent else "abandoned", "--reason", "looked into the outbox"),
        ],
        env=place.environ,
        check=True,
        capture_output=True,
    )


def _check(place: Place) -> None:
    with SqliteBackend(place.store, read_only=True) as backend:
        problems = [each for each in verify(backend) if isinstance(each, Problem)]
        pending = [each for each in View(backend, AGENT).actions() if each.open]
    assert not problems, problems
    assert not [each for each in pending if each.class_ == "external"], pending
