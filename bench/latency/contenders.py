"""Who is measured: a process of its own for each, which is told what to do, and what it takes of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.latency.recall_program import recall
from bench.latency.serving import message
from bench.measure import ROOT, end_all, family, recall_command

STRACE = ("strace", "-f", "-qq", "--trace=fsync,fdatasync,sync_file_range,msync,syncfs")
ENDED = 3.0  # seconds to give a program to end by itself


class Contender:
    """A program of this folder, on a store of its own.

    Args:
        operations: what it can do, beside ``open`` and ``resume``.
        dies: it is killed before it resumes, since only what was left open is there to be resumed.
        traced: strace writes its syncs, and those of all its processes, to ``log``.
    """

    def __init__(
        self,
        name: str,
        program: str,
        python: Path,
        directory: Path,
        operations: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        dies: bool = False,
        traced: bool = False,
    ) -> None:
        directory.parent.mkdir(exist_ok=True)
        self.log = directory.with_suffix(".strace")
        self._errors = directory.with_suffix(".stderr")
        before = [*STRACE, "-o", str(self.log)] if traced else []
        self.name, self.directory, self.operations = name, directory, (*operations, "resume")
        self._command = [*before, str(python), "-m", f"bench.latency.{program}", str(directory)]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
        self._environ = {**plain, **(environ or {})}
        self._dies = dies
        self._process: subprocess.Popen[str] | None = None

    def open(self) -> float:
        """Milliseconds until the agent can go on, the program already running and its modules loaded."""
        if self._process is None:
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=ROOT,
                    env=self._environ,
                    start_new_session=True,  # a Ctrl-C is the bench's, which ends all of them
                )
        return self._ask("open")

    def close(self) -> None:
        self._ask("close")
        if self._dies and self._process is not None:
            self._process.kill()
            self._forget()

    def do(self, operation: str) -> float:
        """Milliseconds of one operation."""
        if operation == "resume":
            self.close()
            return self.open()
        return self._ask(operation)

    def fill(self, until: int, seconds: float) -> int:
        """How many turns the history has got."""
        return int(self._ask("fill", until, seconds))

    def _ask(self, *asked: Any) -> float:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name}: the program ended at {asked}: {self._errors.read_text()[-1000:]}")
        return float(json.loads(answer))

    def bytes(self) -> int:
        """What its files take of the disk when it is closed."""
        if not self._dies:  # whose file is whole without
            self.close()
        total = 0
        for each in self.directory.rglob("*"):
            with suppress(OSError):
                total += each.stat().st_blocks * 512
        if not self._dies:
            self.open()
        return total

    def processes(self) -> list[int]:
        """The program, those below it, and a server that it started for its directory and let go."""
        return family(self._process.pid if self._process is not None else None, self.directory)

    def end(self) -> None:
        """End the program, and whatever it left running."""
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDED)
            self._forget()
        end_all(self.processes)

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            if process.poll() is None:
                process.kill()
            process.wait()


class Shell:
    """``recall`` as whole processes, on a store that a program of ours has filled, and a process that does nothing."""

    name = "recall, shell"

    def __init__(self, directory: Path) -> None:
        recall = recall_command()
        self._commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "recall turns add": [recall, "turns", "add", "-a", "a", "--role", "assistant", message(0)],
            "recall state set": [recall, "state", "set", "-a", "a", "--progress", "3 files migrated"],
            "recall run -- true": [recall, "run", "-a", "a", "--class", "external", "--", "true"],
            "recall resume": [recall, "resume", "a"],
            "recall briefing": [recall, "briefing", "a"],
        }
        self.directory, self.operations = directory, tuple(self._commands)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
        self._environ = {**plain, "RECALL_DIR": str(directory)}

    def do(self, operation: str) -> float:
        """Milliseconds of a command, from its start to its end."""
        begun = time.perf_counter()
        done = subprocess.run(self._commands[operation], env=self._environ, capture_output=True, text=True, check=False)
        taken = (time.perf_counter() - begun) * 1e3
        if done.returncode:
            raise RuntimeError(f"{operation}: {done.stderr}")
        return taken

    def fill(self, until: int, seconds: float) -> int:
        program = recall(self.directory)
        program.open()
        program.fill(until, time.monotonic() + seconds)
        program.close()
        return program.turns


ACTIONS = ("turn", "state", "begin", "end", "brief")


def everybody(directory: Path, python: Path | None, *, traced: bool = False) -> list[Contender]:
    """Recall in Python, and under the Python that has them the peers; under the client of one also our MCP server."""
    here = Path(sys.executable)
    made = [Contender("recall, Python", "recall_program", here, directory / "python", ACTIONS, traced=traced)]
    if python is not None:
        own = {"RECALL_BIN": recall_command()}
        events = ("turn", "state", "action")
        made += [
            Contender("recall, MCP", "polign_program", python, directory / "mcp", ACTIONS, environ=own, traced=traced),
            Contender("polign-recall", "polign_program", python, directory / "polign", ACTIONS, traced=traced),
            Contender("LangGraph", "langgraph_program", python, directory / "langgraph", ACTIONS[:2], traced=traced),
            Contender("DBOS", "dbos_program", python, directory / "dbos", events, dies=True, traced=traced),
        ]
    return made


@contextmanager
def opened(contenders: Sequence[Contender]) -> Iterator[None]:
    """All of them running; ended in any case."""
    with ExitStack() as stack:
        for each in contenders:
            stack.callback(each.end)
            each.open()
        yield
