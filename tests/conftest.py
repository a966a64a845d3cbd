"""What every test stands on: a scrubbed environment and the real ``recall`` command in real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from tests.interop.clients import NotInstalled, clients

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).with_name("recall")

# The person's own settings must not reach a test; the tests of one worker are one process,
# so this is done once, before any of them runs.
for _name in [name for name in os.environ if name.startswith(("RECALL_", "XDG_", "PYTEST_ADDOPTS", "LC_"))]:
    del os.environ[_name]
for _name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONUTF8", "PYTHONIOENCODING", "LANGUAGE"):
    os.environ.pop(_name, None)
os.environ.update(LANG="C.UTF-8", TERM="xterm-256color", TZ="UTC", HOME=os.devnull)

# A process inherits which signals are ignored: SIGINT in a shell's background job, SIGHUP under nohup. Nothing that
# the tests start could then be ended by them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline for one example: a loaded machine is slow, and a slow example is no fault.
settings.register_profile("recall", deadline=None, max_examples=60)
settings.load_profile("recall")


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code and what it printed. On a terminal all is in ``out``."""

    code: int
    out: str
    err: str = ""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables that a command under test starts with: a home and a store of its own."""
    assert COMMAND.exists(), f"{COMMAND} is missing: run the tests with make test, or make setup first"
    home = tmp_path / "home"
    home.mkdir()
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "TZ": "UTC",
        "RECALL_DIR": str(tmp_path / "recall-data"),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python that has the clients. Without them the tests are skipped; in CI, which can get them, they fail."""
    try:
        return clients()
    except NotInstalled as problem:
        if os.environ.get("CI"):
            pytest.fail(str(problem))
        pytest.skip(str(problem))


Run = Callable[..., Ended]


@pytest.fixture
def run_recall(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs the installed ``recall`` with pipes: ``run_recall(*args, env=..., input=...)``.

    ``env`` adds to the scrubbed environment; a value of None takes a variable away.
    ``program`` is run in the command's place.
    """

    def run(
        *arguments: str | bytes | Path,
        env: Mapping[str, str | None] | None = None,
        input: str | bytes = b"",
        program: Sequence[str | Path] = (COMMAND,),
        timeout: float = 60,
    ) -> Ended:
        given = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            [*program, *arguments],
            input=given,
            capture_output=True,
            env=_merged(environment, env),
            cwd=tmp_path,
            timeout=timeout,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


# Makes the terminal the controlling one, so that Ctrl-C and job control work as for a person.
_OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def run_on_terminal(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs it on a terminal of its own: stdin, stdout and stderr.

    ``dialogue`` holds pairs of a text to wait for and the keys to type then.
    """

    def run(
        *arguments: str,
        dialogue: Sequence[tuple[str, str]] = (),
        columns: int = 80,
        program: Sequence[str | Path] = (COMMAND,),
        env: Mapping[str, str | None] | None = None,
        timeout: float = 60,
    ) -> Ended:
        ours, theirs = os.openpty()
        size = {"COLUMNS": str(columns), "LINES": "24"}
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _OWN_TERMINAL, *program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=_merged({**environment, **size}, env),
            cwd=tmp_path,
            start_new_session=True,
        )
        os.close(theirs)
        seen = bytearray()
        turns, answered = list(dialogue), 0
        deadline = time.monotonic() + timeout
        try:
            while time.monotonic() < deadline:
                if not select.select([ours], [], [], 0.2)[0]:
                    continue
                try:
                    data = os.read(ours, 65536)
                except OSError:  # EIO: the last process has closed the terminal
                    break
                if not data:
                    break
                seen += data
                while turns and (found := seen.find(turns[0][0].encode(), answered)) >= 0:
                    answered = found + len(turns[0][0].encode())
                    os.write(ours, turns.pop(0)[1].encode())
            code = process.wait(timeout=max(1.0, deadline - time.monotonic()))
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        assert not turns, f"{turns[0][0]!r} never came; there was: {seen.decode()!r}"
        return Ended(code, seen.decode().replace("\r\n", "\n"))

    return run


def _merged(base: Mapping[str, str], changes: Mapping[str, str | None] | None) -> dict[str, str]:
    merged = {**base, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}
