"""Exports that somebody made up: each line is in order, and the whole is none that a store ever wrote."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

from store.audit import Row
from store.backend import Branch
from store.backends.sqlite import SqliteBackend
from store.canonical import encode_line, first_hash, key_of, next_hash
from store.client import Client
from store.clock import Instant
from store.errors import BadImport
from store.lease import Lease
from store.process import Process
from store.restore import Sink, restore
from store.transfer import FORMAT, export
from tests.keeping import problems

T = TypeVar("T")

_LINEAGE = "0" * 32
_AT = "2026-01-01T00:00:00.000000Z"


def branch(number: int, parent: int, *, start: int = 0, last: int = 1, agent: str = "x") -> dict[str, Any]:
    """A row of an agent line's branches, all of one lineage."""
    return {
        "branch": number,
        "lineage": _LINEAGE,
        "parent": parent,
        "start": start,
        "start_hash": first_hash(_LINEAGE, agent).hex(),
        "last": last,
        "reason": "first",
        "at": _AT,
    }


def agent_lines(agent: str = "x", *, epoch: int = 1, branches: Sequence[dict[str, Any]] = ()) -> list[bytes]:
    """An agent with one lease record, hashes right; ``branches`` says something else of it where given."""
    body = json.dumps({"event": "acquired", "reason": "first", "holder": "h", "incarnation": "i"})
    key = key_of("lease", epoch, "")
    line = encode_line(agent=agent, at=_AT, body=body, epoch=epoch, key=key, kind="lease", lsn=1)
    linked = next_hash(first_hash(_LINEAGE, agent), line).hex()
    table = list(branches) or [branch(1, 0, agent=agent)]
    about = {"agent": agent, "branch": table[0]["branch"], "lineage": _LINEAGE, "epoch": epoch, "acquired_at": _AT}
    return [
        dump(type="agent", **about, branches=table),
        dump(type="record", branch=1, seq=epoch, hash=linked, line=line.decode()),
        dump(type="agent_end", agent=agent, records=1, blobs=0, lsn=1, hash=linked),
    ]


def dump(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def whole(*agents: list[bytes]) -> bytes:
    """An export of these agents' lines, its checksum true."""
    data = dump(type="header", format=FORMAT) + b"".join(line for lines in agents for line in lines)
    return data + dump(type="end", agents=len(agents), sha256=hashlib.sha256(data).hexdigest())


def import_into(directory: Path, data: bytes) -> None:
    backend = SqliteBackend(directory)
    try:
        restore(backend, io.BytesIO(data))
    finally:
        backend.close()


def test_a_made_up_agent_that_is_in_order_is_imported(tmp_path: Path) -> None:
    """What the other tests here spoil is sound as it is."""
    import_into(tmp_path, whole(agent_lines()))
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    "branches",
    [
        [branch(1, 1)],
        [branch(1, 2), branch(2, 1)],
        [branch(1, 0), branch(2, 3), branch(3, 2)],
        [branch(1, 0), branch(2, 2)],
        [branch(1, 0), branch(2, 7)],
        [branch(1, 0), branch(2, 0)],
        [branch(1, 0), branch(2, 1, start=2, last=2)],
        [branch(1, 0), branch(2, 1, start=1), branch(3, 2, start=0)],
        [branch(1, 0), branch(3, 1)],
        [branch(2, 0)],
        [branch(1, 0, start=2)],
        [branch(2, 1), branch(1, 0)],
    ],
    ids=lambda branches: " ".join(f"{each['branch']}<{each['parent']}@{each['start']}" for each in branches),
)
def test_branches_that_are_no_tree_are_refused_at_once(tmp_path: Path, branches: list[dict[str, Any]]) -> None:
    """A parent that is later, missing, itself, or shorter than where the branch starts: one line, no endless walk."""
    with pytest.raises(BadImport, match=r"line 2: branch [123] is out of order, or does not grow from one before it"):
        import_into(tmp_path, whole(agent_lines(branches=branches)))


def test_the_write_path_itself_does_not_go_round_in_a_circle_of_branches(tmp_path: Path) -> None:
    """Even if a reader of exports let one through, no write transaction would be held for ever."""
    circle = [Branch("x", n, _LINEAGE, 3 - n, 0, first_hash(_LINEAGE, "x"), 1, b"", "first", _AT) for n in (1, 2)]
    nobody, never = Process("", "", "", 0, ""), Instant("", 0, 0)
    free = Lease("x", _LINEAGE, 1, 1, "", "released", "import", nobody, 0, never, _AT, imported=True)
    backend = SqliteBackend(tmp_path)

    def work(sink: Sink) -> None:
        sink.agent(free, circle)
        raise ZeroDivisionError  # nothing of it is to be kept

    try:
        with pytest.raises(ZeroDivisionError):
            backend.importing(work)
        assert backend.branches("x") == []
    finally:
        backend.close()


def test_an_agent_without_a_record_is_refused(tmp_path: Path) -> None:
    """No store exports one: an agent begins with the record of its first lease."""
    lines = agent_lines(branches=[branch(1, 0, last=0)])
    with pytest.raises(BadImport, match="line 2: agent x has no record"):
        import_into(tmp_path, whole([lines[0], lines[2]]))


@pytest.mark.parametrize("epoch", [2**40 + 2, 2**53])
def test_an_epoch_that_no_log_reaches_is_refused(tmp_path: Path, epoch: int) -> None:
    """There has to be room above it, or the store could not read its own export again."""
    with pytest.raises(BadImport, match=f"its epoch {epoch:,} is beyond what any log reaches"):
        import_into(tmp_path, whole(agent_lines(epoch=epoch)))


def test_the_highest_epoch_that_is_taken_leaves_room(tmp_path: Path) -> None:
    """An agent at the bound goes on, and its export is imported again, and goes on there."""
    data = whole(agent_lines(epoch=2**40 + 1))
    for copy in range(4):
        directory = tmp_path / str(copy)
        import_into(directory, data)
        with Client(local_dir=directory) as client, client.resume("x") as agent:
            assert agent.epoch == 2**40 + 2 + copy
        reader = SqliteBackend(directory, read_only=True)
        data = b"".join(export(reader))
        reader.close()


class Nowhere:
    """A backend that keeps nothing, so that only the reading of the file costs."""

    def importing(self, work: Callable[[Any], T]) -> T:
        return work(self)

    def agent(self, lease: Lease, branches: list[Branch]) -> None: ...
    def blob(self, name: str, data: bytes) -> None: ...
    def blob_size(self, name: str) -> int | None: ...
    def record(self, row: Row) -> None: ...


def test_an_import_costs_each_agent_the_same() -> None:
    """Twelve times the agents make twelve times the steps, and not a hundred and forty-four."""

    def cost(count: int) -> int:
        data = io.BytesIO(whole(*(agent_lines(f"agent-{number}") for number in range(count))))
        steps = 0

        def step(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal steps
            steps += 1
            return step

        sys.settrace(step)
        try:
            assert len(restore(Nowhere(), data)) == count
        finally:
            sys.settrace(None)
        return steps

    assert cost(1200) < 15 * cost(100)
