"""What a log must look like, record by record. Pure; verify, export and import rest on it.

It finds damage, reordering and loss inside a log. A log whose tail is gone, or
that was written anew from some point on, is a sound log too: only a head that
was saved earlier tells (``store.verify``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from store.backend import Branch
from store.canonical import LINE_LIMIT, encode_line, first_hash, key_of, next_hash
from store.records import (
    ACTION,
    CARRIED,
    LEASE,
    LIFECYCLE,
    OUTPUT,
    POINTER,
    PRUNED,
    RUN,
    STEP,
    TOOL,
    TURN,
    WORKING_STATE,
    FetchBlob,
    Record,
)
from store.text import quoted
from store.value import value
from store.values import Action, Output, Pointer, Turn, WorkingState

NUMBERED = (WORKING_STATE, TURN, ACTION, LEASE, RUN)
NAMED = (POINTER, OUTPUT, STEP, TOOL, LIFECYCLE)
_DENSE = (WORKING_STATE, TURN, ACTION, RUN)
_CHANGING = (ACTION, RUN)  # of the dense ones: a number may come again, with the next state of the same thing
_READERS: dict[str, Callable[[Record, FetchBlob | None], object]] = {
    WORKING_STATE: WorkingState.read,
    TURN: Turn.read,
    POINTER: Pointer.read,
    OUTPUT: Output.read,
    ACTION: Action.read,
}

_canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode


class Row(NamedTuple):
    """A record as it is stored. In a damaged store a column may hold anything."""

    agent: Any
    branch: Any
    lsn: Any
    epoch: Any
    key: Any
    kind: Any
    seq: Any
    name: Any
    line: bytes
    at: Any
    hash: Any


class Seen(NamedTuple):
    """A stored record and the newest lsn that the projection has for its key, or None."""

    row: Row
    head_lsn: int | None


class Head(NamedTuple):
    """A row of the projection beside the record that it stands for.

    Attributes:
        there: the record exists and has this key.
        should_be_open: what its body says, where it exists.
    """

    kind: Any
    seq: Any
    name: Any
    branch: Any
    lsn: Any
    open: Any
    there: bool
    should_be_open: int


@value
class Position:
    """How far a log has come: what the next record is checked against.

    Attributes:
        seqs: the highest number of each dense kind; a kind is left out where it is not known.
        pruned: the log begins above this lsn and has not said so yet. Until then what was written
            before the prune, and again for it, stands in it, with numbers left out.
    """

    lsn: int
    hash: bytes
    epoch: int
    seqs: Mapping[str, int] = field(default_factory=dict)
    pruned: int = 0


@lru_cache(maxsize=4)  # each step of a check asks again for the line that it is at
def body_of(line: bytes) -> tuple[Mapping[str, Any] | None, str]:
    """A line's fields and its body; None for a line that is not a JSON object with a body."""
    try:
        fields = json.loads(line.decode())
        body = fields["body"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None, ""
    return (fields, body) if isinstance(fields, dict) and isinstance(body, str) else (None, "")


def blobs_named(body: str) -> dict[str, int]:
    """The blobs that a body says its fields were moved to, with their sizes in bytes."""
    if '"blobs"' not in body:
        return {}
    try:
        moved = json.loads(body)["blobs"]
        return {str(blob): int(size) for blob, size, _form in moved.values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return {}


def carried_from(body: str) -> tuple[int, bytes] | None:
    """The lsn and the hash of the record that a prune wrote again as this one; None for any other."""
    if f'"{CARRIED}"' not in body:
        return None
    try:
        cited = json.loads(body)[CARRIED]
        return int(cited["lsn"]), bytes.fromhex(cited["hash"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def check_body(record: Record, fetch: FetchBlob) -> None:
    """Read a known kind's body as the rest of the code would.

    Raises:
        BadRecord: it cannot be read.
    """
    if record.kind in _READERS:
        _READERS[record.kind](record, fetch)


class Walk:
    """The check of one agent's log, branch after branch by rising number.

    Args:
        branches: all of the agent's.
        lease_epoch: the epoch of its lease row, which no record's is above.
    """

    def __init__(self, agent: str, branches: Sequence[Branch], lease_epoch: int) -> None:
        self.agent = agent
        self.at = Position(0, b"", 0)
        self._lease_epoch = lease_epoch
        self._branches = {each.number: each for each in branches}
        self._branch: Branch | None = None
        self._newest_root = max((each.number for each in branches if not each.parent), default=0)
        self._loose = False  # the next record may be of a later epoch without its lease record before it
        self._needs_origin = ""
        self._starts: dict[tuple[int, int], Position] = {}
        self._wanted = {(each.parent, each.start) for each in branches if each.parent}
        # Only where branches run side by side can two lease records of one epoch be
        # far apart; elsewhere the rising epochs tell, and nothing need be remembered.
        self._forks = _first_forks(branches)
        self._incarnations: dict[int, object] = {}

    # -- branches ---------------------------------------------------------------------

    def begin(self, branch: Branch) -> list[str]:
        """Go to a branch's start; what is wrong with it."""
        self._branch, self._loose, self._needs_origin = branch, False, ""
        reasons = []
        try:
            origin = first_hash(branch.lineage, self.agent)
        except (ValueError, TypeError):
            origin = branch.start_hash
            reasons.append(f"its lineage {quoted(branch.lineage)} is not 32 hexadecimal digits")
        if not branch.parent and branch.start:  # what came before was pruned
            self.at, self._loose = Position(branch.start, branch.start_hash, 0, pruned=branch.start), True
        elif not branch.parent:
            self.at = Position(branch.start, branch.start_hash, 0, dict.fromkeys(_DENSE, 0))
            if branch.start_hash != origin:
                reasons.append("it does not start where its lineage does")
        else:
            reasons += self._begin_at_parent(branch, origin)
        self._remember()
        return reasons

    def _begin_at_parent(self, branch: Branch, origin: bytes) -> list[str]:
        parent = self._branches.get(branch.parent) if branch.parent < branch.number else None
        found = self._starts.get((branch.parent, branch.start))
        if parent is None or found is None:
            self.at, self._loose = Position(branch.start, branch.start_hash, 0), True
            if self._is_left:
                return []
            return [f"it goes on from lsn {branch.start} of branch {branch.parent}, which is not there"]
        self.at = replace(found, hash=branch.start_hash)
        if parent.lineage == branch.lineage:
            self._loose = True  # what was set aside may have held it
            return [] if found.hash == branch.start_hash else ["its start is not the record that it goes on from"]
        self._needs_origin = json.dumps({"lineage": parent.lineage, "lsn": branch.start, "hash": found.hash.hex()})
        return [] if branch.start_hash == origin else ["it does not start where its lineage does"]

    def _remember(self) -> None:
        assert self._branch is not None
        place = (self._branch.number, self.at.lsn)
        if place in self._wanted:
            self._starts[place] = self.at

    # -- records -------------------------------------------------------------------------

    def step(self, row: Row) -> list[str]:
        """Go past one record; what is wrong with it. After a fault the check goes on from what is stored."""
        assert self._branch is not None
        reasons, next_lsn = [], self.at.lsn + 1
        in_place = row.lsn == next_lsn
        if not in_place and self._begins_after_a_prune(row.lsn):
            self.at, self._loose = replace(self.at, seqs={}), True
        elif not in_place:
            reasons.append(_misplaced(row.lsn, next_lsn))
            self.at, self._loose = replace(self.at, seqs={}), True  # no second complaint about the same gap
        fields, body = body_of(row.line)
        reasons += self._line(row, fields, body)
        if in_place and next_hash(self.at.hash, row.line) != row.hash:
            reasons.append("its hash does not follow from its line and the record before it")
        if not isinstance(row.epoch, int) or not isinstance(row.lsn, int) or not isinstance(row.hash, bytes):
            return reasons
        reasons += self._epoch(row, body)
        seqs = self.at.seqs
        if row.kind in _DENSE and isinstance(row.seq, int):
            last = seqs.get(row.kind, row.seq - 1)
            again = row.kind in _CHANGING or carried_from(body) is not None
            left_out = row.kind in _CHANGING and self.at.pruned > 0
            if row.seq != last + 1 and not (again and row.seq > 0 and (row.seq <= last or left_out)):
                reasons.append(f"{row.kind} {row.seq} follows {row.kind} {last}")
            seqs = {**seqs, row.kind: max(last, row.seq)}
        pruned = 0 if _says_pruned(row, body, self.at.pruned) else self.at.pruned
        self.at = Position(max(row.lsn, self.at.lsn), row.hash, max(row.epoch, self.at.epoch), seqs, pruned)
        self._loose = False
        self._remember()
        return reasons

    @property
    def _is_left(self) -> bool:
        """Whether a later branch without a parent took over: of this one only what was set aside need be there."""
        assert self._branch is not None
        return self._branch.number < self._newest_root

    def _begins_after_a_prune(self, lsn: object) -> bool:
        """Whether a record is the first one left of its branch."""
        assert self._branch is not None
        return self._is_left and isinstance(lsn, int) and self.at.lsn == self._branch.start < lsn

    def _line(self, row: Row, fields: Mapping[str, Any] | None, body: str) -> list[str]:
        if fields is None:
            return ["its line is not a JSON object with a body"]
        reasons = [f"its line has {len(row.line):,} bytes"] if len(row.line) > LINE_LIMIT else []
        try:
            # One comparison holds the columns to the line and the line to its form.
            same = row.line == encode_line(
                agent=self.agent, at=row.at, body=body, epoch=row.epoch, key=row.key, kind=row.kind, lsn=row.lsn
            )
        except (TypeError, ValueError):
            same = False
        if not same:
            reasons += _differences(row, fields)
        if row.agent != self.agent:
            reasons.append("its agent is another one")
        named = isinstance(row.name, str) and row.name != "" and row.seq == 0
        numbered = row.name == "" and isinstance(row.seq, int) and row.seq > 0
        wrong = (row.kind in NUMBERED and not numbered) or (row.kind in NAMED and not named)
        if wrong or not (named or numbered) or key_of(row.kind, row.seq, row.name) != row.key:
            reasons.append(f"its key is not made of its kind and its number or name ({row.seq!r}, {quoted(row.name)})")
        return reasons

    def _epoch(self, row: Row, body: str) -> list[str]:
        assert self._branch is not None
        reasons, before = [], self.at.epoch
        if row.epoch < before:
            reasons.append(f"its epoch {row.epoch} is below {before}, that of the record before it")
        if row.epoch > self._lease_epoch:
            reasons.append(f"its epoch {row.epoch} is above the lease's, {self._lease_epoch}")
        if row.kind != LEASE:
            if row.epoch > before and not self._loose:
                reasons.append(f"its epoch rises to {row.epoch} without a lease record")
        elif row.seq != row.epoch:
            reasons.append(f"it is the lease record of epoch {row.seq} but was written under {row.epoch}")
        elif row.epoch == before:
            reasons.append(f"it is a second lease record of epoch {row.epoch}")
        if row.kind == LEASE or self._needs_origin:
            reasons += self._acquisition(row, body)
        return reasons

    def _acquisition(self, row: Row, body: str) -> list[str]:
        assert self._branch is not None
        try:
            fields = json.loads(body)
            incarnation, origin = fields.get("incarnation"), fields.get("from")
        except (ValueError, AttributeError, RecursionError):
            return ["its body is not a JSON object"]
        reasons = []
        fork = self._forks.get(self._branch.number)
        if row.kind == LEASE and fork is not None and row.lsn > fork:
            known = self._incarnations.setdefault(row.epoch, incarnation)
            if known != incarnation:
                reasons.append(f"epoch {row.epoch} has two incarnations")
        if self._needs_origin:
            if row.kind != LEASE or origin != json.loads(self._needs_origin):
                reasons.append("it does not name the lineage, lsn and hash that its lineage goes on from")
            self._needs_origin = ""
        return reasons


def _says_pruned(row: Row, body: str, base: int) -> bool:
    """Whether this is the record that says that the log begins above ``base``."""
    if not base or row.kind != LIFECYCLE or row.name != PRUNED:
        return False
    try:
        return bool(json.loads(body).get("lsn") == base)
    except (ValueError, AttributeError, RecursionError):
        return False


def _first_forks(branches: Sequence[Branch]) -> dict[int, int]:
    """Of each branch that has another beside it, the lsn from which on."""
    forks: dict[int, int] = {}
    last = {each.number: each.last for each in branches}
    for each in branches:
        if each.parent and isinstance(last.get(each.parent), int) and each.start < last[each.parent]:
            for number in (each.parent, each.number):
                forks[number] = min(each.start, forks.get(number, each.start))
    for each in branches:  # what goes on from a forked branch is beside the other ones too
        if each.parent in forks:
            forks.setdefault(each.number, each.start)
    return forks


def _misplaced(lsn: object, expected: int) -> str:
    if not isinstance(lsn, int) or lsn < expected:
        return f"its lsn is not above the one before it, {expected - 1}"
    gap = f"lsn {expected} is" if lsn == expected + 1 else f"lsn {expected} to {lsn - 1} are"
    return f"{gap} missing before it"


def _differences(row: Row, fields: Mapping[str, Any]) -> list[str]:
    """Why a row is not what its line says; nothing for a newer line with further fields."""
    reasons = []
    for name in ("agent", "at", "epoch", "key", "kind", "lsn"):
        if name not in fields:
            reasons.append(f"its line has no {name}")
        elif fields[name] != getattr(row, name) or isinstance(fields[name], bool):
            reasons.append(f"its {name} is {quoted(getattr(row, name))}, but its line says {quoted(fields[name])}")
    try:
        canonical = _canonical(fields).encode()
    except (ValueError, RecursionError):
        canonical = b""
    if canonical != row.line:
        reasons.append("its line is not in the canonical form")
    return reasons
