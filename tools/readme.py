"""Runs what README.md and docs/python.md show. ``--write`` puts the real outputs in; the test compares them.

Each section with a ``##`` heading is one session: an empty directory and one
bash. In a ``console`` block a line that starts with ``$ `` is typed (``> ``
goes on with it) and the lines after it are what a terminal then shows. A
``python`` block is a program, and a ``text`` block right after it what it
prints. Other blocks are not accepted, so that nothing shown is unrun.

What differs from run to run is compared by its place: the first key in the
README stands for the first key of the run, and so on; times, durations and
process numbers match any other of their form. All else must be equal.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCUMENTS = (README, ROOT / "docs" / "python.md")  # what is in them is run
_PATIENCE = 120.0  # seconds for one command
_MARK = "\x1e"
_HOME = "/home/you"


@dataclass
class Block:
    """A fenced block: its language, its lines without the fences, and where it stands."""

    language: str
    lines: list[str]
    first: int  # the index of its first line in the document
    section: str


@dataclass
class Exchange:
    """Something run and what the README says that it shows."""

    command: str
    expected: list[str]
    first: int  # the index of the first expected line
    status: int = 0
    shown: list[str] = field(default_factory=list)


class Unrunnable(Exception):
    """A block that this convention has no meaning for."""


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a Markdown document, in order."""
    found: list[Block] = []
    section, inside = "", False
    for number, line in enumerate(text.split("\n")):
        if line.startswith("```"):
            if not inside:
                found.append(Block(line[3:].strip(), [], number + 1, section))
            inside = not inside
        elif inside:
            found[-1].lines.append(line)
        elif line.startswith("## "):
            section = line[3:].strip()
    return found


def run(text: str, environment: Mapping[str, str], scratch: Path) -> Iterator[tuple[str, list[Exchange]]]:
    """Runs a document, one section at a time.

    Yields:
        a section's heading and all that was run in it.
    """
    sections: dict[str, list[Block]] = {}
    for block in blocks(text):
        sections.setdefault(block.section, []).append(block)
    for number, (section, its) in enumerate(sections.items()):
        directory = scratch / f"{number}"
        directory.mkdir()
        with Shell(directory, environment) as shell:
            yield section, list(_run_blocks(its, shell))


def _run_blocks(its: list[Block], shell: Shell) -> Iterator[Exchange]:
    program: Exchange | None = None
    for block in its:
        if block.language == "text" and program is not None:
            program.expected, program.first = block.lines, block.first
        elif block.language not in ("console", "python"):
            raise Unrunnable(f"line {block.first}: a block must be console, python, or text after python")
        if program is not None:
            yield program
            program = None
        if block.language == "console":
            for exchange in _exchanges(block):
                exchange.shown, exchange.status = shell.run(exchange.command)
                yield exchange
        elif block.language == "python":
            program = Exchange("(a Python program)", [], 0)
            program.shown, program.status = shell.run_python("\n".join(block.lines) + "\n")
    if program is not None:
        yield program


def _exchanges(block: Block) -> list[Exchange]:
    found: list[Exchange] = []
    for number, line in enumerate(block.lines, block.first):
        if line.startswith("$ "):
            found.append(Exchange(line[2:], [], number + 1))
        elif not found:
            raise Unrunnable(f"line {number + 1}: a console block starts with a command: $ …")
        elif line.startswith("> ") and not found[-1].expected:
            found[-1].command += "\n" + line[2:]
            found[-1].first = number + 1
        else:
            found[-1].expected.append(line)
    return found


class Shell:
    """One bash whose output goes to a terminal, in a directory of its own."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._environment = dict(environment, HOME=str(directory))
        self._ours, theirs = os.openpty()
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env=self._environment,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._bash.stdin is not None
        try:
            self._bash.stdin.close()
            self._bash.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self._bash.kill()
        self._bash.wait()
        os.close(self._ours)

    def run(self, command: str) -> tuple[list[str], int]:
        """Types a command; what the terminal shows, and its exit status."""
        assert self._bash.stdin is not None
        mark = f'_s=$?; printf "{_MARK}%d{_MARK}" $_s; (exit $_s)'
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\n{mark}\n".encode())
        self._bash.stdin.flush()
        seen = b""
        deadline = time.monotonic() + _PATIENCE
        while seen.count(_MARK.encode()) < 2:
            if time.monotonic() > deadline or self._bash.poll() is not None:
                raise TimeoutError(f"no end of: {command}\n{seen.decode(errors='replace')}")
            if select.select([self._ours], [], [], 0.2)[0]:
                seen += os.read(self._ours, 65536)
        shown, status, _ = seen.decode().replace("\r\n", "\n").split(_MARK)
        return self._lines(shown), int(status)

    def run_python(self, program: str) -> tuple[list[str], int]:
        """Runs a program; what it prints, and its exit status."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=self._environment,
            timeout=_PATIENCE,
            check=False,
        )
        return self._lines(done.stdout.decode()), done.returncode

    def _lines(self, shown: str) -> list[str]:
        # As a person's machine would show it: no path of this run, no name of this machine, no line of our input.
        shown = shown.replace(str(self.directory), _HOME)
        shown = re.sub(rf"\b{re.escape(os.uname().nodename)}\b([^ \n]*)( *)", _renamed, shown)
        shown = re.sub(r"(?m)^bash: line \d+: +\d+ (Killed|Terminated).*$", r"\1", shown)
        return [line.rstrip() for line in shown.rstrip("\n").split("\n")] if shown.strip() else []


def _renamed(match: re.Match[str]) -> str:
    """Another machine's name; the columns after it stay where they are."""
    name, gap = "dev" + match[1], match[2]
    return name + (" " * max(2, len(match.group()) - len(name)) if len(gap) > 1 else gap)


# -- comparing ---------------------------------------------------------------------------

_VARIABLE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)"
    r"|(?P<holder>\b[\w.-]+:\d+:[0-9a-f]{8}\b)"
    r"|(?P<hash>\b[0-9a-f]{64}\b)"
    r"|(?P<id>\b[0-9a-f]{32}\b)"
    r"|(?P<duration>\b\d+(?:\.\d+)? ?(?:ms|s|m|min)\b)"
    r"|(?P<size>\b[\d,]+ bytes\b)"
    r"|(?P<pid>(?<=process )\d+|(?<=pid )\d+|(?<=kill -9 )\d+|(?<=operator:)\d+)"
)
_NAMED = ("holder", "hash", "id")  # the same one again must be the same again
_WIDE = re.compile(r" {2,}")  # columns are as wide as what is in them


class Plain:
    """Lines with what differs from run to run replaced by what it is; one for each side of a comparison."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, line: str) -> str:
        line = _VARIABLE.sub(self._replace, line.rstrip())
        opening = len(line) - len(line.lstrip())
        return line[:opening] + _WIDE.sub("  ", line[opening:])

    def _replace(self, match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if kind not in _NAMED:
            return f"<{kind}>"
        return self._names.setdefault(match.group(), f"<{kind} {len(self._names) + 1}>")


def differences(section: str, exchanges: list[Exchange]) -> list[str]:
    """What a section shows that its run did not, in words."""
    expected_plain, shown_plain = Plain(), Plain()
    found: list[str] = []
    for at, exchange in enumerate(exchanges):
        expected = [expected_plain(line) for line in exchange.expected]
        shown = [shown_plain(line) for line in exchange.shown]
        if not _same(expected, shown):
            lines = "\n".join(["--- README", *expected, "--- run", *shown])
            found.append(f"{section}: {exchange.command}\n{lines}")
        asked_for = at + 1 < len(exchanges) and "$?" in exchanges[at + 1].command
        if exchange.status and not asked_for:
            found.append(f"{section}: {exchange.command}\nends with {exchange.status}, and the README does not say so")
    return found


def _same(expected: list[str], shown: list[str]) -> bool:
    """Equal, where a line of one ellipsis stands for any lines."""
    if "…" not in expected:
        return expected == shown
    at = expected.index("…")
    head, tail = expected[:at], expected[at + 1 :]
    enough = len(shown) >= len(head) + len(tail)
    return enough and shown[:at] == head and shown[len(shown) - len(tail) :] == tail


def environment() -> dict[str, str]:
    """What a reader has after the set-up: the command on the PATH, and nothing of ours in the way."""
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "TZ", "TMPDIR")}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return kept | {"PATH": path, "TERM": "dumb", "COLUMNS": "110", "LINES": "40", "USER": "you", "LOGNAME": "you"}


def _write(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    lines = text.split("\n")
    with tempfile.TemporaryDirectory(prefix="recall-readme-") as scratch:
        exchanges = [each for _, its in run(text, prepared(Path(scratch), text), Path(scratch)) for each in its]
    for exchange in sorted(exchanges, key=lambda each: -each.first):
        if exchange.first:
            lines[exchange.first : exchange.first + len(exchange.expected)] = _renewed(exchange)
    document.write_text("\n".join(lines), encoding="utf-8")


def _renewed(exchange: Exchange) -> list[str]:
    """What was shown, with as much left out as before."""
    if "…" not in exchange.expected:
        return exchange.shown
    at = exchange.expected.index("…")
    kept = len(exchange.shown) - (len(exchange.expected) - at - 1)
    return [*exchange.shown[:at], "…", *exchange.shown[kept:]]


def prepared(scratch: Path, text: str) -> dict[str, str]:
    """The environment for a document: this repository can be cloned from ``$URL``, a clone is set up already.

    A document with an address of S3 in it has a server, the bucket ``my-bucket``, and credentials.

    Setting up takes a network and a minute, and the wheel has a test of its
    own; what is seen here is that the README's commands are the Makefile's.
    """
    hooks = scratch / "template" / "hooks"
    hooks.mkdir(parents=True)
    venv = Path(sys.executable).parent.parent
    links = "".join(f"ln -s '{venv / name}' .venv/\n" for name in ("bin", "lib", "pyvenv.cfg"))
    (hooks / "post-checkout").write_text(f"#!/bin/sh\nmkdir .venv\n{links}touch .venv/.ready\n", encoding="utf-8")
    (hooks / "post-checkout").chmod(0o755)
    config = f"[safe]\n\tdirectory = *\n[init]\n\ttemplateDir = {hooks.parent}\n"
    (scratch / "gitconfig").write_text(config, encoding="utf-8")
    return (
        environment()
        | (_bucket(scratch) if "s3://" in text else {})
        | {
            "URL": str(ROOT),
            "GIT_CONFIG_GLOBAL": str(scratch / "gitconfig"),
            "TESTS": "--collect-only -q tests/cli/test_shell.py",  # all of them would run this one again
        }
    )


def _bucket(scratch: Path) -> dict[str, str]:
    from tests.shipping.servers import CREDENTIALS, own_server

    server = own_server("moto", scratch / "s3", "my-bucket")
    return {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": server.endpoint}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tools/readme.py --write")
    for each in DOCUMENTS:
        _write(each)
