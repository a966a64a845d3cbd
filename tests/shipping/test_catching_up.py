"""What an acquisition does to a log here that went on otherwise than the bucket's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store.errors import LeaseHeld, LeaseLost
from store.keeper import Keeper
from store.lease import LeaseRequest
from store.process import this_process
from store.records import NEXT, TURN, Draft, Record
from store.shipping.backend import ShippingBackend
from store.shipping.packing import Limits
from store.verify import Problem, verify
from tests.engine import ShiftedClock
from tests.shipping.machines import AGENT, attach, machine
from tests.shipping.memory import MemoryBucket


def _turn(text: str) -> Draft:
    return Draft(TURN, {"role": "user", "content": text}, seq=NEXT)


def _keeper(store: ShippingBackend) -> Keeper:
    return Keeper(store, AGENT, ttl_ms=60_000, background=False)


def test_what_differs_from_the_first_line_of_a_segment_is_set_aside_there(tmp_path: Path) -> None:
    """A copy that shares a whole segment with the bucket goes on from the segment's end, and verifies."""
    bucket, limits = MemoryBucket(), Limits(inline=0)
    attach(tmp_path / "a")
    a = machine(tmp_path / "a", bucket=bucket, limits=limits)
    keeper = _keeper(a)
    fence = keeper.acquire().lease.fence
    a.shipper.push(fence)
    a.append(fence, [_turn("one"), _turn("two")])
    a.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    a, b = machine(tmp_path / "a", bucket=bucket, limits=limits), machine(tmp_path / "b", bucket=bucket, limits=limits)
    b.append(fence, [_turn("of b")])
    a.shipper.push(fence)
    a.append(fence, [_turn("of a")])
    a.shipper.push(fence)
    a.release(fence)

    _keeper(b).acquire()

    assert [each.fields().get("content") for each in b.log(AGENT)][1:4] == ["one", "two", "of a"]
    assert [each.start for each in b.branches(AGENT)][1:] == [3]
    assert [each for each in verify(b) if isinstance(each, Problem)] == []
    a.close()
    b.close()


def test_what_another_process_here_writes_during_a_takeover_is_set_aside(tmp_path: Path) -> None:
    """It has the old epoch, and the head says where that ended: it must not land under the new one."""
    bucket = MemoryBucket()
    attach(tmp_path / "a")
    old, new = machine(tmp_path / "a", bucket=bucket), machine(tmp_path / "a", bucket=bucket)
    fence = _keeper(old).acquire().lease.fence
    written: list[Record] = []

    def meanwhile(verb: str, key: str) -> str:
        if verb == "swap" and not written:
            written.extend(old.append(fence, [_turn("too late")]))
        return ""

    with pytest.raises(LeaseHeld):
        _keeper(new).acquire()
    bucket.now += 100
    bucket.before = meanwhile
    taken = _keeper(new).acquire().lease

    assert written
    with pytest.raises(LeaseLost):
        old.secure(fence, written[0])
    new.shipper.push(taken.fence)
    with pytest.raises(LeaseLost):  # another record is at its lsn now, and shipped
        new.secure(taken.fence, written[0])
    assert "too late" not in bucket.objects[f"agents/{AGENT}/head.json"][0].decode()
    assert [each.fields().get("content") for each in new.log(AGENT, branch=1)][-1] == "too late"
    old.close()
    new.close()


def test_a_lapsed_lease_is_lost_where_a_copy_has_acted_under_it(tmp_path: Path) -> None:
    """The fence is the same in both, and only the records tell: the one that does not know them stops."""
    bucket = MemoryBucket()
    attach(tmp_path / "a")
    a = machine(tmp_path / "a", bucket=bucket)
    keeper = _keeper(a)
    fence = keeper.acquire().lease.fence
    a.shipper.push(fence)
    a.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    a = machine(tmp_path / "a", bucket=bucket)
    b = machine(tmp_path / "b", bucket=bucket, clock=ShiftedClock(61))
    a.secure(fence, a.append(fence, [_turn("of a")])[0])
    with pytest.raises(LeaseLost):
        b.acquire(LeaseRequest(AGENT, fence.incarnation, "a copy", this_process(), 60_000, again=fence))
    with pytest.raises(LeaseLost):  # and it is kept: nothing more enters its log under that fence
        b.append(fence, [_turn("of b")])
    a.close()
    b.close()
