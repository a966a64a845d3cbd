"""Exports: agents' logs as lines of JSON, byte for byte, and the way back.

An export is a header line; for each agent an ``agent`` line, its records
branch by branch (each after the blobs that it is the first to name) and an
``agent_end`` line; and an ``end`` line with the SHA-256 of all bytes before it.
A record's ``line`` is its canonical line as text, so that chain and hashes can
be derived again; docs/json.md lists every field.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from store.audit import Row, Seen, Walk, blobs_named, body_of
from store.backend import Branch, all_leases
from store.clock import rfc3339
from store.errors import Corrupt, InvalidInput, NotFound
from store.lease import Lease
from store.text import json_for_display
from store.value import value
from store.verify import Inspectable

FORMAT = "recall.export/1"
ASIDE_FORMAT = "recall.aside/1"

Watch = Callable[[Iterable[Seen], int], Iterable[Seen]]


@value
class Transferred:
    """One agent that was exported or imported: what its ``agent_end`` line says."""

    agent: str
    records: int
    blobs: int
    lsn: int
    hash: str


class Lines:
    """Makes the lines of one file and its checksum."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def line(self, **fields: Any) -> bytes:
        """One line; control characters are escapes, so that showing it on a terminal is harmless."""
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = json_for_display(text).encode() + b"\n"
        self._sum.update(data)
        return data

    def end(self, agents: int) -> bytes:
        """The last line."""
        return self.line(type="end", agents=agents, sha256=self._sum.hexdigest())


def export(
    backend: Inspectable,
    agents: Sequence[str] = (),
    *,
    at: int | None = None,
    watch: Watch = lambda records, total: records,
    done: Callable[[Transferred], object] = lambda one: None,
) -> Iterator[bytes]:
    """The lines of an export.

    Each agent is exported as it is when its turn comes, up to the head it then
    has; no read transaction lasts longer than a page, so a large export does
    not stop the write-ahead log of a busy store from being recycled.

    Args:
        agents: which ones, in this order; all unless given.
        at: only each log up to this lsn, without what was set aside.
        done: told of each agent that is complete.

    Raises:
        NotFound: a named agent is not there.
        InvalidInput: its log does not have lsn ``at``.
        Corrupt: a log is damaged; what could not be imported is not exported.
    """
    for agent in agents:
        if backend.lease(agent) is None:
            raise NotFound(what="agent", name=agent, hint="list the agents with: recall agents list")
    lines, count = Lines(), 0
    now = rfc3339(backend.clock.now().wall_us)
    yield lines.line(type="header", format=FORMAT, store=backend.store_id, created=now)
    for agent in agents or (each.agent for each in all_leases(backend)):
        yield from _Exporter(backend, agent, lines, watch, at).run(done)
        count += 1
    yield lines.end(count)


class _Exporter:
    """One agent's lines."""

    def __init__(self, backend: Inspectable, agent: str, lines: Lines, watch: Watch, at: int | None) -> None:
        self._backend, self._agent, self._lines, self._watch, self._at = backend, agent, lines, watch, at
        self._named: set[str] = set()
        self._records = self._blobs = 0

    def run(self, done: Callable[[Transferred], object]) -> Iterator[bytes]:
        with self._backend.reading():
            lease, branches = self._backend.lease(self._agent), self._backend.branches(self._agent)
            numbers = {each.number: each.number for each in branches}
            if self._at is not None and lease is not None:
                lease, branches, numbers = self._up_to(self._at, lease, branches)
        assert lease is not None
        yield self._agent_line(lease, branches)
        walk = Walk(self._agent, branches, lease.epoch)
        head = (0, b"")
        for branch in branches:
            self._refuse(walk.begin(branch), f"branch {branch.number}")
            stored = self._backend.stored(self._agent, numbers[branch.number], branch.last)
            for found, _ in self._watch(stored, branch.last - branch.start):
                row = found._replace(branch=branch.number)
                self._refuse(walk.step(row), f"{row.key} (lsn {row.lsn})")
                yield from self._record(row)
            self._named.clear()
            if branch.number == lease.branch:
                head = (walk.at.lsn, walk.at.hash)
        end = Transferred(self._agent, self._records, self._blobs, head[0], head[1].hex())
        yield self._lines.line(type="agent_end", **vars(end))
        done(end)

    def _up_to(self, at: int, lease: Lease, branches: Sequence[Branch]) -> tuple[Lease, list[Branch], dict[int, int]]:
        """The branches that the log goes through up to an lsn, numbered anew, and which ones they are here."""
        known = {each.number: each for each in branches}
        path = self._backend.path(self._agent)
        last = known[lease.branch].last
        if not path or not path[0][1] < at <= last:
            reason = f"the log of {self._agent} has no lsn {at}: it goes from {path[0][1] + 1 if path else 0} to {last}"
            raise InvalidInput(field="--at", reason=reason)
        pieces = [(branch, min(high, at)) for branch, low, high in path if low < at]
        kept = [
            replace(known[branch], number=number, parent=number - 1, last=min(high, known[branch].last))
            for number, (branch, high) in enumerate(pieces, 1)
        ]
        numbers = {number: branch for number, (branch, _) in enumerate(pieces, 1)}
        return replace(lease, branch=len(kept), lineage=kept[-1].lineage), kept, numbers

    def _refuse(self, reasons: list[str], where: str) -> None:
        if reasons:
            raise Corrupt(
                reason=f"agent {self._agent}: {where}: {reasons[0]}; nothing after it was exported",
                hint=f"see all of it with: recall verify {self._agent}; what can be read: recall records {self._agent}",
            )

    def _agent_line(self, lease: Lease, branches: Sequence[Branch]) -> bytes:
        table = [
            {
                "branch": each.number,
                "lineage": each.lineage,
                "parent": each.parent,
                "start": each.start,
                "start_hash": each.start_hash.hex(),
                "last": each.last,
                "reason": each.reason,
                "at": each.at,
            }
            for each in branches
        ]
        return self._lines.line(
            type="agent",
            agent=self._agent,
            lineage=lease.lineage,
            branch=lease.branch,
            epoch=lease.epoch,
            acquired_at=lease.acquired_at,
            branches=table,
        )

    def _record(self, row: Row) -> Iterator[bytes]:
        yield from self._blob_lines(row)
        yield record_line(self._lines, row)
        self._records += 1

    def _blob_lines(self, row: Row) -> Iterator[bytes]:
        for name in blobs_named(body_of(row.line)[1]):
            if name not in self._named:
                self._named.add(name)
                self._blobs += 1
                yield blob_line(self._backend, self._lines, row, name)


def record_line(lines: Lines, row: Row) -> bytes:
    """The line of one record."""
    key = {"name": row.name} if row.name else {"seq": row.seq}
    return lines.line(type="record", branch=row.branch, **key, hash=row.hash.hex(), line=row.line.decode())


def blob_line(backend: Inspectable, lines: Lines, row: Row, name: str) -> bytes:
    """The line of one blob that ``row`` names.

    Raises:
        Corrupt: it is missing or has another content.
    """
    try:
        data = backend.blob(row.agent, name)
    except KeyError:
        data = b""
    if name.rpartition("-")[2] != hashlib.sha256(data).hexdigest():
        raise Corrupt(reason=f"agent {row.agent}: {row.key} (lsn {row.lsn}): its blob {name} is missing or changed")
    return lines.line(type="blob", name=name, data=base64.b64encode(data).decode())
