"""What people use today, under the same harness: each as its own documentation would have one use it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.kills.contenders import PROGRAMS, Contender, Place, key_of
from bench.measure import scratch
from bench.report import peer_versions
from tests.interop.clients import clients

_TTL = 5  # seconds: the shortest lease of polign-recall

# Program, face and store of each.
_POLIGN = ("polign-recall", "Python", "its server")
_LANGGRAPH = ("LangGraph", "Python", "SQLite checkpointer")
_DBOS = ("DBOS", "Python", "SQLite")
KEYS = tuple(key_of(*each) for each in (_POLIGN, _LANGGRAPH, _DBOS))

# For whoever reads their rows.
NOTES = (
    f"polign-recall: a resume waits until the lease of the killed program has run out: {_TTL} s, its shortest.",
    "polign-recall: one server of its own for all trials, each of which is another agent.",
    'LangGraph: durability="sync", its safest. A tool has returned when its result is in a checkpoint.',
    "LangGraph: the key is the id of the tool call, which is in a checkpoint before the tool runs.",
    "DBOS: launching it recovers the workflow. A step has returned when its result is recorded.",
    "DBOS: the key is the id of the workflow.",
)


def peers() -> list[Contender]:
    """Theirs, in the form of ``ours``.

    Raises:
        NotInstalled: their environment cannot be made here.
    """
    python = clients()
    program = functools.partial(_program, python)
    versions = functools.partial(peer_versions, python)
    server = _Server(program("polign"))
    return [
        Contender(
            *_POLIGN,
            program("polign"),
            jobs=12,
            environ=server.environ,
            person=server.person,
            versions=versions(["polign-recall", "polign_db"]),
        ),
        Contender(
            *_LANGGRAPH,
            program("checkpointer"),
            setups=("ordinary", "keyed"),
            environ=lambda: {"LANGSMITH_TRACING": "false"},
            versions=versions(["langgraph", "langgraph-checkpoint-sqlite"]),
        ),
        Contender(
            *_DBOS,
            program("dbos_steps"),
            setups=("steps",),
            jobs=3,  # a second or two of each goes in polling for the workflow
            versions=versions(["dbos"]),
        ),
    ]


def _program(python: Path, name: str) -> Callable[[str], list[str]]:
    return lambda setup: [str(python), str(PROGRAMS / f"{name}.py"), setup]


class _Server:
    """polign-recall's server: one for all trials, each of which is another agent; ended with this process.

    Its client starts one for a directory that has none, as its own child: it
    would be killed with the first program.
    """

    def __init__(self, argv: Callable[[str], list[str]]) -> None:
        self._argv = argv
        self._starting = threading.Lock()
        self._directory: Path | None = None

    def environ(self) -> dict[str, str]:
        """What a trial's processes need."""
        with self._starting:
            if self._directory is None:
                self._directory = self._start()
        return {"POLIGN_DIR": str(self._directory), "AGENT": uuid.uuid4().hex, "TTL": str(_TTL)}

    def person(self, place: Place) -> None:
        """Looks into the outbox, and says what is there."""
        subprocess.run(self._argv("person"), env=place.environ, check=True, capture_output=True)

    def _start(self) -> Path:
        stack = ExitStack()
        atexit.register(stack.close)
        directory = stack.enter_context(scratch()) / "polign"
        subprocess.run(self._argv("start"), env={**os.environ, "POLIGN_DIR": str(directory)}, check=True)
        stack.callback(_end, json.loads((directory / "runtime.json").read_text())["pid"])
        return directory


def _end(pid: int) -> None:
    """End a process that is not our child, and wait for it."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not select.select([handle], [], [], 10)[0]:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
