"""What the engine's tests share: a clock to set, a log re-derived by hand, processes to kill."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from store.backend import Backend
from store.clock import Instant, SystemClock, parse_rfc3339
from store.lease import Fence, LeaseRequest
from store.process import Process, this_process

ROOT = Path(__file__).resolve().parent.parent
AGENT = "billing-migrator"
SEED_TIME = "2026-11-03T18:54:43Z"


class SetClock:
    """A clock that stands still until it is moved; by itself it shows the time of the seed's example."""

    def __init__(self, at: str = SEED_TIME, boot: str = "boot-1") -> None:
        self.instant = Instant(boot, 1_000_000, int(parse_rfc3339(at).timestamp() * 1_000_000))

    def now(self) -> Instant:
        return self.instant

    def move(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        boot_ms = self.instant.boot_ms + round(seconds * 1000)
        self.instant = replace(self.instant, boot_ms=boot_ms)
        self.set_wall(seconds)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock, forward or back; the boot clock does not notice."""
        self.instant = replace(self.instant, wall_us=self.instant.wall_us + round(seconds * 1_000_000))

    def reboot(self, boot: str = "boot-2") -> None:
        self.instant = replace(self.instant, boot_id=boot, boot_ms=5_000)


class ShiftedClock(SystemClock):
    """The machine's clock with the wall clock set off by some seconds, as a person does it."""

    def __init__(self, seconds: float) -> None:
        self._micros = round(seconds * 1_000_000)

    def now(self) -> Instant:
        now = super().now()
        return replace(now, wall_us=now.wall_us + self._micros)


def request(
    agent: str = AGENT,
    *,
    incarnation: str = "a" * 32,
    holder: str = "tester",
    ttl_ms: int = 60_000,
    process: Process | None = None,
    again: Fence | None = None,
    breaking: bool = False,
) -> LeaseRequest:
    """A request for a lease that says only what a test is about."""
    return LeaseRequest(agent, incarnation, holder, process or this_process(), ttl_ms, again, breaking)


def hold(backend: Backend, agent: str = AGENT, *, ttl_ms: int = 60_000, incarnation: str = "a" * 32) -> Fence:
    """Acquire and return the fence."""
    return backend.acquire(request(agent, ttl_ms=ttl_ms, incarnation=incarnation)).lease.fence


def verified(directory: str | os.PathLike[str], agent: str | None = None) -> dict[str, list[dict[str, str]]]:
    """The logs of a store, every promise on their form checked anew from the bytes by hand.

    Dense lsn; the hash chain; lines that are canonical and say what the columns
    say; numbers dense in their kind; a projection that shows each key's newest
    record; blobs that are what their names say; SQLite's own check.

    Returns:
        per agent the lines, parsed.
    """
    connection = sqlite3.connect(f"file:{os.fspath(directory)}/recall.db?mode=ro", uri=True)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        logs: dict[str, list[dict[str, str]]] = {}
        for name, branch, lineage in connection.execute("SELECT agent, branch, lineage FROM leases").fetchall():
            if agent in (None, name):
                assert branch == 1, "only unbranched logs are checked by hand"
                logs[name] = _verified_log(connection, name, lineage)
        for name, data in connection.execute("SELECT name, data FROM blobs"):
            assert name.partition("-")[2] == hashlib.sha256(data).hexdigest()
        return logs
    finally:
        connection.close()


def _verified_log(connection: sqlite3.Connection, agent: str, lineage: str) -> list[dict[str, str]]:
    link = hashlib.sha256(bytes.fromhex(lineage) + agent.encode()).digest()
    heads: dict[tuple[str, int, str], int] = {}
    numbers: dict[str, int] = {}
    lines = []
    columns = "lsn, epoch, key, kind, seq, name, CAST(line AS BLOB), at, hash"
    found = connection.execute(f"SELECT {columns} FROM records WHERE agent = ? ORDER BY lsn", (agent,)).fetchall()
    epoch_before = 0
    for expected, (lsn, epoch, key, kind, seq, name, line, at, digest) in enumerate(found, 1):
        assert lsn == expected, "lsn has a gap"
        link = hashlib.sha256(b"recall/1\0" + link + line).digest()
        assert digest == link, f"the chain breaks at lsn {lsn}"
        parsed = json.loads(line)
        canonical = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert line == canonical
        body = parsed.pop("body")
        assert parsed == {"agent": agent, "at": at, "epoch": epoch, "key": key, "kind": kind, "lsn": lsn}
        json.loads(body)
        assert epoch >= epoch_before, "an old epoch wrote after a newer one"
        epoch_before = epoch
        heads[kind, seq, name] = lsn
        if kind in ("turn", "working_state"):
            assert seq == numbers.get(kind, 0) + 1, f"{kind} {seq} has a gap before it"
        numbers[kind] = max(seq, numbers.get(kind, 0))
        if kind == "action":
            assert seq <= len([each for each in heads if each[0] == "action"]), "actions have a gap"
        lines.append({**parsed, "body": body, "seq": seq})
    shown = connection.execute("SELECT kind, seq, name, lsn FROM heads WHERE agent = ?", (agent,)).fetchall()
    assert {(kind, seq, name): lsn for kind, seq, name, lsn in shown} == heads, "the projection is not that of the log"
    return lines


def python(
    script: str,
    *arguments: object,
    prefix: tuple[str, ...] = (),
    stdout: int | IO[bytes] | None = subprocess.PIPE,
    stdin: int | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: tuple[int, ...] = (),
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a Python process on ``script``, with ``arguments`` in sys.argv[1:]. Warnings are errors in it."""
    command = [*prefix, sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8", **(env or {})}
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=start_new_session,
    )


def finished(process: subprocess.Popen[bytes], *, code: int = 0, timeout: float = 60) -> str:
    """What it printed; it must end with ``code`` and say nothing on stderr if that is 0."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == code, (process.returncode, out.decode(), err.decode())
    if code == 0:
        assert not err, err.decode()
    return out.decode()


def run_python(script: str, *arguments: object, code: int = 0, timeout: float = 60, **options: object) -> str:
    """Run a Python process to its end and return what it printed."""
    return finished(python(script, *arguments, **options), code=code, timeout=timeout)  # type: ignore[arg-type]


def line_of(process: subprocess.Popen[bytes]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    if not line:
        _, err = process.communicate(timeout=30)
        raise AssertionError(f"it ended with {process.returncode}: {err.decode()}")
    return line
