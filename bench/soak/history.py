"""Everything that happened in a soak, seen from outside the processes: what the invariants are checked over."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.records import ACTION, LEASE, Record

_UID = re.compile(rb"\[\[([\w.-]+)\]\]")


@dataclass(frozen=True)
class Entry:
    """One record of a log.

    Attributes:
        uids: the marks that its writer put into it, by which acknowledgements name it.
        body: of actions and lease records; else empty.
    """

    lsn: int
    epoch: int
    kind: str
    key: str
    line: bytes
    hash: bytes
    uids: tuple[str, ...]
    body: Mapping[str, Any]

    @staticmethod
    def of(line: bytes, hash_: bytes) -> Entry:
        """From the canonical line and the hash that the chain is said to have after it."""
        fields = json.loads(line)
        body = json.loads(fields["body"]) if fields["kind"] in (ACTION, LEASE) else {}
        uids = tuple(each.decode() for each in _UID.findall(line))
        return Entry(fields["lsn"], fields["epoch"], fields["kind"], fields["key"], line, hash_, uids, body)

    @property
    def seq(self) -> int:
        """Its number, of a numbered kind."""
        return int(self.key.rpartition(":")[2])


def entry_of(record: Record) -> Entry:
    """From a record as the store gives it."""
    return Entry.of(record.line, record.hash)


@dataclass
class Log:
    """One agent's log as far as it was read.

    Attributes:
        first: the chain's hash before lsn 1.
        again: the whole of it, read once more at the end; None until then.
        before: up to which lsn it had been read before the world outside was last looked at.
    """

    first: bytes = b""
    entries: list[Entry] = field(default_factory=list)
    again: list[Entry] | None = None
    before: int = 0

    @property
    def last(self) -> tuple[int, bytes]:
        return (self.entries[-1].lsn, self.entries[-1].hash) if self.entries else (0, self.first)


@dataclass
class Life:
    """One process: what it was, and what it acknowledged, in its order.

    Attributes:
        lost: its machine's directory was deleted or put back to an old copy since, with what was only there.
        stopped: it was stopped for longer than its lease, and another process took over meanwhile.
    """

    worker: str
    agent: str
    place: str
    kind: str = "python"
    acks: list[dict[str, Any]] = field(default_factory=list)
    lost: bool = False
    overtaken: bool = False

    def of(self, what: str) -> Iterator[dict[str, Any]]:
        return (each for each in self.acks if each["what"] == what)


@dataclass
class History:
    """All of it.

    Attributes:
        store: ``sqlite`` or ``bucket``.
        lives: by worker.
        deeds: by agent, the lines of the world outside.
        kept: marks of records that were set aside and are shown as that, or wait on a machine that still has them.
        ended: nothing goes on any more.
    """

    store: str
    logs: dict[str, Log] = field(default_factory=dict)
    lives: dict[str, Life] = field(default_factory=dict)
    deeds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    ended: bool = False

    def log(self, agent: str) -> Log:
        return self.logs.setdefault(agent, Log())

    def effects(self) -> int:
        return sum(each["what"] == "effect" for deeds in self.deeds.values() for each in deeds)

    def acknowledged(self) -> int:
        """Records that some process was told are written."""
        return sum(each["what"] in ("record", "begun", "closed") for life in self.lives.values() for each in life.acks)


class Tail:
    """The lines that are appended to a file, as they come."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Those that are whole and were not read yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        self._at += len(data)
        return [json.loads(line) for line in data.splitlines()]


class Witness:
    """What the processes and the world outside have written down.

    Args:
        place: the directory with ``acks/`` and ``outside/``.
    """

    def __init__(self, history: History, place: Path) -> None:
        self.history, self._place = history, place
        self._acks: dict[str, Tail] = {}
        self._deeds: dict[str, Tail] = {}
        self.count = 0

    def born(self, life: Life) -> Path:
        """Take a new process in; where it is to write."""
        path = self._place / "acks" / life.worker
        self.history.lives[life.worker] = life
        self._acks[life.worker] = Tail(path)
        return path

    def outside(self, agent: str) -> Path:
        """Where the world outside is kept for an agent."""
        return self._place / "outside" / agent

    def poll(self, dead: Sequence[str] = ()) -> int:
        """Read what was acknowledged since; how much that was in all. Of ``dead`` nothing more will come."""
        for worker, tail in list(self._acks.items()):
            new = tail.read()
            self.history.lives[worker].acks += new
            self.count += len(new)
        for worker in dead:
            self._acks.pop(worker, None)
        return self.count

    def look_outside(self) -> None:
        """Read what happened outside since."""
        for agent, log in self.history.logs.items():
            log.before = log.last[0]
            tail = self._deeds.setdefault(agent, Tail(self.outside(agent)))
            self.history.deeds.setdefault(agent, []).extend(tail.read())
