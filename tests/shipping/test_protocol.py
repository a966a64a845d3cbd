"""The decisions of the protocol, case by case, and heads that somebody has tampered with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from store.canonical import first_hash, next_hash
from store.clock import Instant
from store.lease import LeaseRequest
from store.process import Process
from store.records import ACTION, TURN, Draft
from store.remote_errors import BadHead, RemoteNewer
from store.shipping import protocol
from store.shipping.head import Ended, Head, moved_into
from store.shipping.protocol import Again, Durable, Lost, Stamp, Trouble, Unshipped
from store.shipping.segment import make_page, make_segment, read_page, read_segment

AGENT, LINEAGE, OTHER = "bot", "a" * 32, "b" * 32
PROCESS = Process("host", "boot", "ns", 7, "1")
NOW = Instant("boot", 1_000_000, 1_790_000_000_000_000)
LINES = [b"one", b"two", b"three", b"four"]
HASHES = [first_hash(LINEAGE, AGENT)]
for _line in LINES:
    HASHES.append(next_hash(HASHES[-1], _line))


def asked(inc: str = "i1", **more: Any) -> LeaseRequest:
    return LeaseRequest(AGENT, inc, "holder", PROCESS, 60_000, **more)


def head_of(lines: list[bytes], *, epoch: int = 1, inc: str = "i1", store: str = "d1") -> Head:
    """A live head with these lines inline."""
    blank = protocol.blank("r", asked(inc), LINEAGE, (), store=store, epoch=0)
    taken = protocol.taken(blank, asked(inc), Stamp("w1", NOW), store=store, highest=epoch - 1, ship="barrier")
    return protocol.extended(taken, lines)


def known(lsn: int) -> bytes | None:
    return HASHES[lsn] if lsn < len(HASHES) else None


HEAD = head_of(LINES[:2])
FENCE = HEAD.fence
NEXT = replace(protocol.extended(HEAD, LINES[2:3]), rev=2, wid="w2")
TAKEN = protocol.taken(HEAD, asked("i2"), Stamp("w2", NOW), store="d2", highest=0, ship="barrier")
FOREIGN = replace(protocol.extended(HEAD, [b"else"]), rev=2, wid="w2")


@pytest.mark.parametrize(
    ("read", "want", "verdict"),
    [
        (HEAD, 2, Durable()),
        (HEAD, 3, Again()),
        (NEXT, 3, Durable()),
        (TAKEN, 2, Lost(True)),
        (TAKEN, 3, Lost(False)),
        (protocol.extended(TAKEN, [LINES[2]]), 3, Lost(True)),
        (protocol.extended(TAKEN, [b"else"]), 3, Lost(False)),
        (FOREIGN, 3, Lost(False)),
        (replace(TAKEN, epoch=1, lease=replace(TAKEN.lease, inc="i9")), 2, Lost(True)),
    ],
    ids=[
        "it is there",
        "it is not there",
        "there, by a write whose answer was lost",
        "there, and fenced",
        "not there, and fenced",
        "carried by another",
        "another record at its lsn",
        "a clone of us wrote",
        "another incarnation",
    ],
)
def test_what_a_head_says_of_a_record(read: Head, want: int, verdict: object) -> None:
    """Durable only if the record is there and the lease is still ours; absence under our lease proves nothing."""
    assert protocol.judge(read, FENCE, HEAD, want=want, known=known) == verdict


def test_where_a_record_is_in_a_segment_the_end_of_its_epoch_tells() -> None:
    """A record that the head itself no longer shows is in the log if its epoch ended at or above it, by hash."""
    segment, _ = make_segment(LINES, epoch=1, first=1, hash=HASHES[4])
    whole = head_of(LINES)
    later = protocol.taken(moved_into(whole, segment), asked("i2"), Stamp("w", NOW), store="d", highest=0, ship="off")
    assert protocol.judge(later, FENCE, HEAD, want=3, known=known) == Lost(True)
    assert protocol.judge(replace(later, epochs=()), FENCE, HEAD, want=3, known=known) == Lost(None)
    other = replace(later, epochs=(Ended(1, 4, b"x" * 32),), segs=(replace(segment, hash=b"x" * 32),))
    assert protocol.judge(other, FENCE, HEAD, want=3, known=known) == Lost(False)


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (None, "head missing"),
        (replace(HEAD, lineage=OTHER), "forked"),
        (replace(HEAD, rev=0), "remote regressed"),
        (head_of(LINES[:1]), "remote regressed"),
        (replace(HEAD, epoch=0), "remote regressed"),
        (replace(HEAD, wid="w9"), "store broken"),
    ],
    ids=["gone", "another lineage", "an older revision", "a shorter log", "an older epoch", "one revision twice"],
)
def test_a_bucket_that_contradicts_itself_stops_everything(read: Head | None, kind: str) -> None:
    """What was seen once must still be so; else nobody writes until a person has looked."""
    found = protocol.judge(read, FENCE, HEAD, want=2, known=known)
    assert isinstance(found, Trouble)
    assert found.kind == kind


def test_a_lineage_that_names_ours_is_no_fork() -> None:
    """A repaired log goes on under a new lineage, and names the old one."""
    mended = replace(protocol.renewed_lineage(HEAD, OTHER), rev=2, wid="w2", epoch=2)
    assert protocol.regression(mended, HEAD) is None


def later(ms: int, *, wall_ms: int | None = None, boot: str = "boot") -> Instant:
    return Instant(boot, NOW.boot_ms + ms, NOW.wall_us + (ms if wall_ms is None else wall_ms) * 1000)


def reason(head: Head | None, request: LeaseRequest, **more: Any) -> str | None:
    given: dict[str, Any] = {"store": "d2", "highest": 0, "known": known, "since": None, "now": NOW, **more}
    return protocol.takeover_reason(head, request, **given)


AGAIN = asked("i1", again=FENCE)


@pytest.mark.parametrize(
    ("why", "head", "request_", "more"),
    [
        ("first", None, asked("i2"), {}),
        ("released", replace(HEAD, state="released"), asked("i2"), {}),
        ("released", replace(HEAD, state="deleted"), asked("i2"), {}),
        (None, HEAD, asked("i2"), {}),
        ("broken", HEAD, asked("i2", breaking=True), {}),
        ("dead", HEAD, asked("i2"), {"store": "d1", "dead": lambda process: process == PROCESS}),
        (None, HEAD, asked("i2"), {"store": "d1", "dead": lambda process: False}),
        (None, HEAD, asked("i2"), {"store": "d2", "dead": lambda process: True}),
        ("again", HEAD, asked("i1"), {"store": "d1", "highest": 0}),
        (None, HEAD, asked("i1"), {"store": "d1", "highest": 1}),
        (None, HEAD, asked("i1"), {"store": "d2", "highest": 0}),
        ("again", HEAD, AGAIN, {"store": "d1", "highest": 1}),
        ("again", replace(HEAD, state="released"), AGAIN, {"highest": 1}),
        (None, replace(HEAD, state="deleted"), AGAIN, {"highest": 1}),
        (None, TAKEN, AGAIN, {"highest": 1}),
        (None, None, AGAIN, {"highest": 1}),
        (None, FOREIGN, AGAIN, {"store": "d1", "highest": 1}),
        ("again", replace(HEAD, epoch=2), AGAIN, {"store": "d1", "highest": 1}),
        (None, replace(HEAD, epoch=2), AGAIN, {"store": "d2", "highest": 1}),
    ],
)
def test_who_may_have_the_lease(
    why: str | None, head: Head | None, request_: LeaseRequest, more: dict[str, Any]
) -> None:
    """A lease is taken where it is free, or provably nobody's, or the contender's own and nobody else acted."""
    assert reason(head, request_, **more) == why


@pytest.mark.parametrize(
    ("why", "more"),
    [
        ("expired", {"answered": 165.1, "modified": 100.0}),
        (None, {"answered": 165.0, "modified": 100.0}),
        (None, {"answered": 165.1, "modified": None}),
        (None, {"answered": None, "modified": 100.0}),
        ("expired", {"since": NOW, "now": later(60_000)}),
        (None, {"since": NOW, "now": later(59_999)}),
        (None, {"since": NOW, "now": later(1_000, wall_ms=600_000)}),
        (None, {"since": NOW, "now": later(600_000, wall_ms=1_000)}),
        (None, {"since": NOW, "now": later(70_000, wall_ms=-600_000)}),
        ("expired", {"since": NOW, "now": later(0, wall_ms=60_000, boot="boot-2")}),
    ],
)
def test_when_a_lease_has_expired(why: str | None, more: dict[str, Any]) -> None:
    """By one clock of the bucket, or by both of the contender's: a jump of either makes it late, never early."""
    assert reason(HEAD, asked("i2"), **more) == why


def test_a_holder_is_late_by_whichever_clock_says_so() -> None:
    """A frozen clock, or one set back, does not give the holder more time."""
    assert protocol.elapsed_ms(NOW, later(50_000, wall_ms=0)) == 50_000
    assert protocol.elapsed_ms(NOW, later(0, wall_ms=50_000)) == 50_000
    assert protocol.elapsed_ms(NOW, later(50_000, wall_ms=1), at_least=True) == 1
    assert protocol.holder_ttl_ms(60_000) == 40_000


@pytest.mark.parametrize(
    ("may", "store", "after", "link", "epochs"),
    [
        (True, "d1", 2, HASHES[2], {1}),
        (True, "d1", 2, HASHES[2], set()),
        (False, "d1", 2, HASHES[2], {1, 2}),
        (False, "d1", 2, HASHES[2], {0}),
        (False, "d2", 2, HASHES[2], {1}),
        (False, "d1", 1, HASHES[1], {1}),
        (False, "d1", 2, b"x" * 32, {1}),
    ],
)
def test_a_tail_rides_wholly_or_not_at_all(may: bool, store: str, after: int, link: bytes, epochs: set[int]) -> None:
    """It is carried only by its own directory, under its own epoch, on its own chain."""
    assert protocol.may_carry(HEAD, store, Unshipped(after, link, frozenset(epochs))) is may


def test_a_takeover_goes_above_every_epoch_that_is_known() -> None:
    """The new epoch is above the head's and above the highest here, and the head says where the old one ended."""
    for highest, epoch in ((0, 2), (1, 2), (7, 8)):
        found = protocol.taken(HEAD, asked("i2"), Stamp("w", NOW), store="d2", highest=highest, ship="lazy")
        assert (found.epoch, found.rev, found.lease.inc, found.lease.dir) == (epoch, 2, "i2", "d2")
        assert found.epochs[-1] == Ended(1, 2, HASHES[2])


def test_a_lease_keeps_the_weakest_mode_of_its_incarnation() -> None:
    """A successor must not take calls for shipped that were made in a weaker mode; what is unknown is the weakest."""
    now = HEAD
    for ship, kept in (("barrier", "barrier"), ("lazy", "lazy"), ("barrier", "lazy"), ("off", "off"), ("lazy", "off")):
        now = protocol.renewed(now, Stamp("w", NOW), ship=ship)  # type: ignore[arg-type]
        assert now.lease.ship == kept
    odd = replace(HEAD, lease=replace(HEAD.lease, ship="newer"))
    assert protocol.renewed(odd, Stamp("w", NOW), ship="barrier").lease.ship == "off"


@pytest.mark.parametrize(
    ("soon", "kind", "body"),
    [
        (True, ACTION, {"class": "external", "status": "done"}),
        (True, ACTION, {"class": "external", "status": "abandoned"}),
        (False, ACTION, {"class": "external", "status": "unknown"}),
        (False, ACTION, {"class": "external", "status": "started"}),
        (False, ACTION, {"class": "idempotent", "status": "done"}),
        (False, ACTION, {"class": "pure", "status": "done"}),
        (False, TURN, {"class": "external", "status": "done"}),
    ],
)
def test_the_close_of_an_external_call_is_shipped_at_once(soon: bool, kind: str, body: dict[str, Any]) -> None:
    """Everything else rides along with the next barrier."""
    assert protocol.is_urgent([Draft(TURN, {}), Draft(kind, body)]) is soon


@pytest.mark.parametrize(
    ("never", "action", "more"),
    [
        (True, {}, {}),
        (False, {"ship": "lazy"}, {}),
        (False, {"ship": ""}, {}),
        (False, {"status": "unknown"}, {}),
        (False, {}, {"epoch": 2}),
        (False, {}, {"lineage": OTHER}),
        (False, {}, {"lsn": 0}),
        (False, {}, {"on_chain": False}),
    ],
)
def test_what_may_be_called_never_executed(never: bool, action: dict[str, Any], more: dict[str, Any]) -> None:
    """Only an intent that waited for the bucket, absent from a later epoch of the same unbroken log."""
    body = {"status": "started", "ship": "barrier", **action}
    given: dict[str, Any] = {"lsn": 3, "epoch": 1, "lineage": LINEAGE, "on_chain": True, **more}
    assert protocol.never_executed(body, TAKEN, **given) is never


# -- heads as they come out of a bucket -----------------------------------------------------------


def test_a_head_is_read_back_as_it_was_written() -> None:
    """Everything in it, unknown fields of a newer version too."""
    segment, _ = make_segment(LINES[:1], epoch=1, first=1, hash=HASHES[1])
    head = replace(moved_into(NEXT, segment), more={"later": {"x": 1}}, open_more=3)
    assert Head.parse(head.encode(), AGENT) == head
    kept = Head.parse(Head.without_tail(head.encode()), AGENT, lambda it: LINES[it.tail_first - 1 : it.last])
    assert kept == head


def _with(*path: str | int) -> Callable[[Any], Callable[[dict[str, Any]], None]]:
    def given(value: Any) -> Callable[[dict[str, Any]], None]:
        def change(document: dict[str, Any]) -> None:
            at: Any = document
            for each in path[:-1]:
                at = at[each]
            at[path[-1]] = value

        return change

    return given


@pytest.mark.parametrize(
    "change",
    [
        _with("agent")("another"),
        _with("agent")(["bot"]),
        _with("state")("paused"),
        _with("state")(None),
        _with("rev")(0),
        _with("rev")(True),
        _with("rev")("2"),
        _with("rev")(1.5),
        _with("epoch")(-1),
        _with("epoch")(0),
        _with("lineage")(7),
        _with("lineage")("zz"),
        _with("lineage")("A" * 32),
        _with("rev")(2**70),
        _with("epoch")(10**30),
        _with("lease", "ttl_ms")(0),
        _with("lease", "ttl_ms")(10**15),
        _with("lease", "holder")("\ud800"),
        _with("lease")(None),
        _with("lease", "pid")(-1),
        _with("lease", "inc")(None),
        _with("log", "last")(3),
        _with("log", "last")(10**30),
        _with("log", "hash")("zz"),
        _with("log", "hash")("00" * 32),
        _with("log", "base")(1),
        _with("log", "tail_first")(2),
        _with("tail")([]),
        _with("tail")(["one", "changed"]),
        _with("tail")(["two", "one"]),
        _with("tail")([1, 2]),
        _with("tail")("one two"),
        _with("segs")([{}]),
        _with("segs")([{"k": "x", "e": 1, "f": 2, "l": 1, "hash": "", "sha": "", "n": 1}]),
        _with("index")({"k": "x"}),
        _with("epochs")([{"e": "1"}]),
        _with("open")({"lsn": 1}),
        _with("origins")([{"lineage": "zz", "last": 0}]),
        _with("origins")([{"lineage": OTHER, "last": 0}, {"lineage": "zz", "last": 1}]),
        _with("tail")(["\ud800", "two"]),
    ],
)
def test_a_head_that_somebody_tampered_with_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    """Whatever is wrong in it is one clear error, never a traceback of another kind."""
    document = json.loads(HEAD.encode())
    change(document)
    with pytest.raises(BadHead):
        Head.parse(json.dumps(document).encode(), AGENT)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"1", b'"x"', b"{}", b"[" * 100_000, b'{"format":"recall.head/1"}']
)
def test_what_is_no_head_is_refused(body: bytes) -> None:
    """An empty object, other JSON, no JSON, endless nesting."""
    with pytest.raises(BadHead):
        Head.parse(body, AGENT)


@pytest.mark.parametrize("change", [_with("format")("recall.head/2"), _with("min_reader")(2), _with("min_writer")(2)])
def test_a_head_of_a_newer_version_is_left_alone(change: Callable[[dict[str, Any]], None]) -> None:
    """It says that this version is too old, instead of reading it wrong."""
    document = json.loads(HEAD.encode())
    change(document)
    with pytest.raises(RemoteNewer):
        Head.parse(json.dumps(document).encode(), AGENT)


def test_a_damaged_segment_or_page_is_refused() -> None:
    """Neither damaged bytes, nor another content, nor lines of another chain pass for what the head names."""
    segment, body = make_segment(LINES, epoch=1, first=1, hash=HASHES[4])
    assert read_segment(HEAD, segment, body, HASHES[0]) == LINES
    _, other = make_segment(LINES[:3], epoch=1, first=1, hash=HASHES[3])
    for wrong in (b"", body[:-9], body[::-1], other):
        with pytest.raises(BadHead):
            read_segment(HEAD, segment, wrong, HASHES[0])
    with pytest.raises(BadHead):
        read_segment(HEAD, segment, body, HASHES[1])
    page, listed = make_page([segment], None, epoch=1)
    assert read_page(HEAD, page, listed) == ((segment,), None)
    for wrong in (b"", listed[:-9], body):
        with pytest.raises(BadHead):
            read_page(HEAD, page, wrong)
