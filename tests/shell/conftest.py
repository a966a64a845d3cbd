"""What the tests of run and exec share: a store, real processes under real signals, the actions that they leave."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from store.backends.sqlite import SqliteBackend
from store.values import Action
from store.views import View
from tests.conftest import COMMAND, Ended

AGENT = "night"


@dataclass
class Shell:
    """A store and a directory to work in.

    Attributes:
        environ: of every command; RECALL_AGENT is set, and ``recall`` is on the PATH.
        effects: a file to which commands under test append a line for each effect.
    """

    here: Path
    environ: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return Path(self.environ["RECALL_DIR"])

    @property
    def effects(self) -> Path:
        return self.here / "effects"

    def count(self) -> int:
        """How many effects there were."""
        return len(self.effects.read_text().splitlines()) if self.effects.exists() else 0

    def start(
        self, *argv: str | bytes | Path, env: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[bytes]:
        """Start ``recall`` with these words."""
        process = subprocess.Popen(
            [COMMAND, *argv],
            **{
                "env": {**self.environ, **(env or {})},
                "cwd": self.here,
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "start_new_session": True,
                **more,
            },
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes], timeout: float = 60) -> Ended:
        """Wait for it."""
        out, err = process.communicate(timeout=timeout)
        return Ended(process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode())

    def recall(self, *argv: str | bytes | Path, env: Mapping[str, str] | None = None, **more: Any) -> Ended:
        """Run ``recall`` with these words to its end."""
        return self.end(self.start(*argv, env=env, **more))

    def script(self, text: str, *options: str, **more: Any) -> Ended:
        """Run a bash script under ``recall exec``."""
        return self.recall("exec", AGENT, *options, "--", "bash", "-c", text, **more)

    def actions(self) -> list[Action]:
        """All actions, oldest first."""
        if not (self.store / "recall.db").exists():
            return []
        backend = SqliteBackend(self.store, read_only=True)
        try:
            return sorted(View(backend, AGENT).actions(), key=lambda each: each.seq)
        finally:
            backend.close()

    def statuses(self) -> list[str]:
        """Their states, oldest first."""
        return [each.status for each in self.actions()]

    def outcome(self, name: str = "outcome") -> dict[str, Any]:
        """What --outcome-file said."""
        said: dict[str, Any] = json.loads((self.here / name).read_text())
        return said

    def wait(self, *names: str) -> None:
        """Wait until files are there."""
        until(lambda: all((self.here / name).exists() for name in names))

    def pid(self, name: str) -> int:
        """The number that a command wrote to a file, once it is there."""
        until(lambda: (self.here / name).exists() and (self.here / name).read_text().endswith("\n"))
        return int((self.here / name).read_text())


def until(there: Callable[[], object], timeout: float = 30) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout
    while not there():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def below(pid: int) -> list[int]:
    """All descendants of a process that are there, children first."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    except OSError:
        pass  # it has ended
    return [*found, *(each for child in found for each in below(child))]


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Iterator[Shell]:
    environ = {**environment, "PATH": f"{COMMAND.parent}:{environment['PATH']}", "RECALL_AGENT": AGENT}
    it = Shell(tmp_path, environ)
    yield it
    for process in it.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def little_memory() -> None:
    """A process that starts with it may have 400 MB of address space."""
    resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))
