"""Importing an export: every byte of it is checked before any of it is kept."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Protocol, TypeVar

from store.audit import Row, Walk, blobs_named, body_of
from store.backend import Branch
from store.canonical import BLOB_LIMIT
from store.clock import Instant
from store.errors import BadImport
from store.lease import Lease
from store.process import Process
from store.text import AGENT_ID, quoted
from store.transfer import ASIDE_FORMAT, FORMAT, Transferred
from store.value import value

T = TypeVar("T")

_MOST = 2**53  # of any number in an export: exact in every reader's JSON, far from SQLite's end
# An acquisition raises the epoch by one and writes a record, so that what the store itself exports after an
# import stays within this bound; a repair may leap, but never by so much.
_EPOCHS_LEAPT = 2**40
_LINE_MOST = 4 * 1024 * 1024  # bytes of a line that is not a blob's
_BLOB_MOST = BLOB_LIMIT * 4 // 3 + 1024
_BLOB_START = b'{"type":"blob"'
_BLOB_NAME = re.compile(r"[1-9]\d{0,15}-[0-9a-f]{64}", re.ASCII)
_HEX = re.compile(r"(?:[0-9a-f]{2})*", re.ASCII)


class Sink(Protocol):
    """Where an import's agents go: a backend's import under way."""

    def agent(self, lease: Lease, branches: list[Branch]) -> None: ...
    def blob(self, name: str, data: bytes) -> None: ...
    def blob_size(self, name: str) -> int | None: ...
    def record(self, row: Row) -> None: ...


class Importable(Protocol):
    """A backend that takes imports."""

    def importing(self, work: Callable[[Sink], T]) -> T: ...


def restore(
    backend: Importable,
    file: BinaryIO,
    *,
    watch: Callable[[Iterator[Any]], Iterator[Any]] = lambda lines: lines,
) -> list[Transferred]:
    """Import every agent of an export, or none; the file is read once, in bounded memory.

    The imported agents are released. The first acquisition of one starts a new
    lineage that names the old one, with an epoch above all that it had.

    Args:
        file: from the beginning of its header line.
        watch: sees the lines pass, for a progress bar.

    Raises:
        AgentExists: the store has one of the agents.
        BadImport: the file is cut, changed or not an export; it names the line.
    """
    return backend.importing(lambda sink: _Importer(sink).run(watch(_lines(file))))


def check_header(file: BinaryIO) -> None:
    """Read the first line and refuse what is no export, before a store is touched. Raises BadImport."""
    first = next(_lines(file), None)
    if first is None:
        raise BadImport(line=1, reason="the file is empty")
    _check_format(first)


@value
class _Line:
    """One line: its number, its fields, and the sum of the bytes before it."""

    number: int
    fields: dict[str, Any]
    before: str

    def bad(self, reason: str, hint: str = "") -> BadImport:
        return BadImport(line=self.number, reason=reason, hint=hint)

    @property
    def type(self) -> str:
        value = self.fields.get("type")
        return value if isinstance(value, str) else ""

    def text(self, name: str) -> str:
        return _text(self, self.fields, name)

    def count(self, name: str) -> int:
        return _count(self, self.fields, name)

    def data(self, name: str) -> bytes:
        return _data(self, self.fields, name)


def _text(line: _Line, fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise line.bad(f"{name} is missing or not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise line.bad(f"{name} has a lone surrogate") from None
    return value


def _count(line: _Line, fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise line.bad(f"{name} is missing or not a whole number from 0 to {_MOST:,}")
    return value


def _data(line: _Line, fields: Mapping[str, Any], name: str) -> bytes:
    value = _text(line, fields, name)
    if not _HEX.fullmatch(value):
        raise line.bad(f"{name} is not hexadecimal")
    return bytes.fromhex(value)


def _lines(file: BinaryIO) -> Iterator[_Line]:
    """The file's lines, each whole, of bounded length, and a JSON object."""
    total = hashlib.sha256()
    number = 0
    while True:
        number += 1
        raw = file.readline(_LINE_MOST)
        if len(raw) == _LINE_MOST and not raw.endswith(b"\n") and raw.startswith(_BLOB_START):
            raw += file.readline(_BLOB_MOST - _LINE_MOST)
        if not raw:
            return
        yield _Line(number, _fields(number, raw), total.hexdigest())
        total.update(raw)


def _fields(number: int, raw: bytes) -> dict[str, Any]:
    def bad(reason: str) -> BadImport:
        return BadImport(line=number, reason=reason)

    if number == 1 and not raw.startswith(b"{"):
        mark = raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
        raise bad(
            "the file starts with a byte order mark; some program changed it" if mark else "not an export of recall"
        )
    if not raw.endswith(b"\n"):
        raise bad("it is too long" if len(raw) >= _LINE_MOST else "the file is cut in the middle of this line")
    if raw.endswith(b"\r\n"):
        raise bad("it ends with CR LF; some program changed the file's line ends")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise bad("not an export of recall" if number == 1 else "it is not a JSON object")
    return fields


def _check_format(line: _Line) -> None:
    found = line.fields.get("format")
    if line.type == "header" and found == FORMAT:
        return
    if line.type == "header" and found == ASIDE_FORMAT:
        raise line.bad(
            "this is what was set aside; it is kept to be looked at and never merged", "read it with any JSON tool"
        )
    if line.type == "header" and isinstance(found, str) and found.startswith("recall.export/"):
        raise line.bad(f"format {quoted(found)} is not known to this recall", "upgrade recall on this machine")
    raise line.bad("not an export of recall")


class _Importer:
    """One import: what line may come next, and what each must say."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._done: list[Transferred] = []
        self._agents: set[str] = set()

    def run(self, lines: Iterator[_Line]) -> list[Transferred]:
        number = 0
        header = next(lines, None)
        if header is None:
            raise BadImport(line=1, reason="the file is empty")
        _check_format(header)
        for line in lines:
            number = line.number
            if line.type == "end":
                self._check_end(line)
                extra = next(lines, None)
                if extra is not None:
                    raise extra.bad("something follows the end line")
                return self._done
            if line.type != "agent":
                raise line.bad(f"an agent or end line must come here, not {quoted(line.type)}")
            _AgentImport(self._sink, line, self._agents).run(lines, self._done.append)
        raise BadImport(line=number + 1, reason="the file is cut: its end line is missing")

    def _check_end(self, line: _Line) -> None:
        if line.count("agents") != len(self._done):
            raise line.bad(f"it says {line.count('agents'):,} agents, but the file has {len(self._done):,}")
        if line.text("sha256") != line.before:
            raise line.bad("the checksum does not match: some byte before it was changed")


class _AgentImport:
    """One agent's lines; its id joins ``earlier``, those that came before it."""

    def __init__(self, sink: Sink, line: _Line, earlier: set[str]) -> None:
        self._sink = sink
        self._agent = line.text("agent")
        if not AGENT_ID.fullmatch(self._agent):
            raise line.bad(f"{quoted(self._agent)} is not an agent id")
        if self._agent in earlier:
            raise line.bad(f"agent {self._agent} comes twice")
        earlier.add(self._agent)
        self._branches = _branches(line, self._agent)
        self._lease = _lease(line, self._agent, self._branches)
        self._walk = Walk(self._agent, self._branches, self._lease.epoch)
        self._at = -1
        self._waiting: dict[str, int] = {}
        self._records = self._blobs = 0
        self._head = (0, b"")
        sink.agent(self._lease, self._branches)
        self._next_branch(line)

    def run(self, lines: Iterator[_Line], done: Callable[[Transferred], object]) -> None:
        number = 0
        for line in lines:
            number = line.number
            if line.type == "record":
                self._record(line)
            elif line.type == "blob":
                self._blob(line)
            elif line.type == "agent_end":
                done(self._end(line))
                return
            else:
                raise line.bad(f"a record, blob or agent_end line must come here, not {quoted(line.type)}")
        raise BadImport(line=number + 1, reason=f"the file is cut: agent {self._agent} is not complete")

    def _next_branch(self, line: _Line) -> None:
        """Go to the next branch that has records of its own."""
        while self._at < 0 or self._walk.at.lsn >= self._branches[self._at].last:
            if self._at >= 0 and self._branches[self._at].number == self._lease.branch:
                self._head = (self._walk.at.lsn, self._walk.at.hash)
            if self._at + 1 == len(self._branches):
                self._at += 1
                return
            self._at += 1
            self._refuse(line, self._walk.begin(self._branches[self._at]), f"branch {self._branches[self._at].number}")

    def _record(self, line: _Line) -> None:
        row = _row(line, self._agent)
        if self._at >= len(self._branches) or row.branch != self._branches[self._at].number:
            raise line.bad(f"a record of branch {row.branch} does not belong here")
        self._refuse(line, self._walk.step(row), row.key)
        named = blobs_named(body_of(row.line)[1])
        if set(self._waiting) - set(named):
            raise line.bad(f"{row.key}: it does not name the blob before it")
        for name, size in named.items():
            if self._sink.blob_size(name) != size:
                raise line.bad(f"{row.key}: its blob {quoted(name)} is missing or of another size")
        self._waiting.clear()
        self._sink.record(row)
        self._records += 1
        self._next_branch(line)

    def _blob(self, line: _Line) -> None:
        name = line.text("name")
        try:
            data = base64.b64decode(line.text("data"), validate=True)
        except (binascii.Error, ValueError):
            raise line.bad("a blob's data is not base64") from None
        if not _BLOB_NAME.fullmatch(name) or name.partition("-")[2] != hashlib.sha256(data).hexdigest():
            raise line.bad(f"blob {quoted(name)} has another content than its name says")
        self._waiting[name] = len(data)
        self._sink.blob(name, data)
        self._blobs += 1

    def _end(self, line: _Line) -> Transferred:
        end = Transferred(self._agent, self._records, self._blobs, self._head[0], self._head[1].hex())
        if self._at < len(self._branches) or self._waiting:
            raise line.bad(f"agent {self._agent} is not complete")
        said = {name: line.fields.get(name) for name in vars(end)}
        if said != vars(end):
            raise line.bad(f"agent {self._agent}: its end line does not match what came before it")
        return end

    def _refuse(self, line: _Line, reasons: list[str], where: str) -> None:
        if reasons:
            raise line.bad(f"{where}: {reasons[0]}")


def _row(line: _Line, agent: str) -> Row:
    text = line.text("line").encode()
    fields, _ = body_of(text)
    if fields is None:
        raise line.bad("its record is not a JSON object with a body")
    seq = line.count("seq") if "seq" in line.fields else 0
    name = line.text("name") if "name" in line.fields else ""
    return Row(
        agent=agent,
        branch=line.count("branch"),
        lsn=_count(line, fields, "lsn"),
        epoch=_count(line, fields, "epoch"),
        key=_text(line, fields, "key"),
        kind=_text(line, fields, "kind"),
        seq=seq,
        name=name,
        line=text,
        at=_text(line, fields, "at"),
        hash=line.data("hash"),
    )


def _branches(line: _Line, agent: str) -> list[Branch]:
    table = line.fields.get("branches")
    if not isinstance(table, list) or not table or not all(isinstance(each, dict) for each in table):
        raise line.bad("branches is missing or not a list of objects")
    found = [
        Branch(
            agent=agent,
            number=_count(line, each, "branch"),
            lineage=_text(line, each, "lineage"),
            parent=_count(line, each, "parent"),
            start=_count(line, each, "start"),
            start_hash=_data(line, each, "start_hash"),
            last=_count(line, each, "last"),
            last_hash=b"",
            reason=_text(line, each, "reason"),
            at=_text(line, each, "at"),
        )
        for each in table
    ]
    _check_tree(line, found)
    return found


def _check_tree(line: _Line, branches: list[Branch]) -> None:
    """Refuse branches that are no tree: a reader who goes from parent to parent has to arrive at the first one."""
    known: dict[int, Branch] = {}
    for number, each in enumerate(branches, 1):
        parent = known.get(each.parent)
        left = any(not one.parent for one in branches[number:])  # of its parent only what was set aside need be there
        grows = parent is not None and parent.start <= each.start and (each.start <= parent.last or left)
        rooted = not each.parent and (number == 1 or each.start > 0)
        if each.number != number or each.last < each.start or not (grows or rooted):
            raise line.bad(f"branch {each.number} is out of order, or does not grow from one before it")
        known[number] = each
    if not any(each.last > each.start for each in branches):
        raise line.bad(f"agent {branches[0].agent} has no record")


def _lease(line: _Line, agent: str, branches: list[Branch]) -> Lease:
    branch = line.count("branch")
    if (branch, line.text("lineage")) not in [(each.number, each.lineage) for each in branches]:
        raise line.bad(f"branch {branch} with its lineage is not among its branches")
    epoch = line.count("epoch")
    if epoch < 1:
        raise line.bad("its epoch is below 1")
    if epoch > _EPOCHS_LEAPT + sum(each.last - each.start for each in branches):
        raise line.bad(f"its epoch {epoch:,} is beyond what any log reaches")
    return Lease(
        agent=agent,
        lineage=line.text("lineage"),
        branch=branch,
        epoch=epoch,
        incarnation="",
        state="released",
        holder="import",
        process=Process("", "", "", 0, ""),
        ttl_ms=0,
        renewed=Instant("", 0, 0),
        acquired_at=line.text("acquired_at"),
        imported=True,
    )
