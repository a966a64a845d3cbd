"""The rules of leases and the fence, without a store."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.clock import Instant
from store.errors import Fenced, InvalidInput, LeaseExpired, LeaseLost, LeaseNotHeld, TokenMismatch
from store.lease import Fence, Lease, check_fence, check_ttl, takeover_reason
from store.process import Process
from tests.engine import request

THEN = Instant("boot", 1_000_000, 1_700_000_000_000_000)
LEASE = Lease("a", "f" * 32, 1, 5, "c" * 32, "held", "h", Process("x", "b", "", 1, "2"), 60_000, THEN, "at")
TIMES = st.integers(-(10**9), 10**9)


def later(milliseconds: int, wall: int | None = None, boot: str = "boot") -> Instant:
    return Instant(boot, THEN.boot_ms + milliseconds, THEN.wall_us + (milliseconds if wall is None else wall) * 1000)


@given(passed=TIMES, wall=TIMES)
def test_within_a_boot_the_boot_clock_alone_decides(passed: int, wall: int) -> None:
    """Whatever the wall clock says."""
    assert LEASE.left_ms(later(passed, wall)) == 60_000 - passed


@given(passed=TIMES, wall=TIMES)
def test_across_boots_the_wall_clock_decides(passed: int, wall: int) -> None:
    """The boot clock of another boot says nothing; an unknown boot is another one."""
    assert LEASE.left_ms(later(passed, wall, boot="other")) == 60_000 - wall
    assert replace(LEASE, renewed=replace(THEN, boot_id="")).left_ms(later(passed, wall, boot="")) == 60_000 - wall


@given(passed=TIMES)
def test_at_no_moment_may_both_write(passed: int) -> None:
    """Either the holder is in time, or another one may take over; never both, never neither."""
    now = later(passed)
    try:
        check_fence(LEASE, LEASE.fence, now)
        may_write = True
    except LeaseExpired:
        may_write = False
    assert may_write is (takeover_reason(LEASE, request("a"), now, dead=False) is None)
    assert may_write is LEASE.live(now)


@pytest.mark.parametrize(("dead", "breaking", "reason"), [
    (False, False, None), (True, False, "dead"), (False, True, "broken"), (True, True, "broken"),
])  # fmt: skip
def test_why_a_live_lease_is_taken(dead: bool, breaking: bool, reason: str | None) -> None:
    """A dead holder or an operator's decision."""
    assert takeover_reason(LEASE, request("a", breaking=breaking), later(1), dead=dead) == reason


def test_why_others_are_taken() -> None:
    """No lease yet, a released one, and an expired one."""
    assert takeover_reason(None, request("a"), THEN, dead=False) == "first"
    assert takeover_reason(replace(LEASE, state="released"), request("a"), THEN, dead=False) == "released"
    assert takeover_reason(LEASE, request("a"), later(60_000), dead=False) == "expired"


@given(passed=TIMES, epoch=st.integers(1, 9), same=st.booleans(), released=st.booleans())
def test_again_succeeds_for_the_very_same_lease_only(passed: int, epoch: int, same: bool, released: bool) -> None:
    """Only while no other epoch came in between and it was not released; dead or expired does not matter."""
    fence = Fence("a", LEASE.lineage, epoch, LEASE.incarnation if same else "d" * 32)
    present = replace(LEASE, state="released") if released else LEASE
    found = takeover_reason(present, request("a", again=fence), later(passed), dead=True)
    assert found == ("again" if epoch == 5 and same and not released else None)
    assert takeover_reason(None, request("a", again=fence), later(passed), dead=True) is None


@pytest.mark.parametrize("changes", [c for n in (1, 2, 4) for c in itertools.combinations(
    [("agent", "b"), ("lineage", "e" * 32), ("epoch", 4), ("incarnation", "d" * 32)], n)])  # fmt: skip
def test_a_fence_that_differs_in_anything_is_lost(changes: tuple[tuple[str, Any], ...]) -> None:
    """Also when the lease is released or expired: a foreign fence is never merely late."""
    fence: Fence = replace(LEASE.fence, **dict(changes))
    for lease in (LEASE, replace(LEASE, state="released"), None):
        for now in (THEN, later(70_000)):
            with pytest.raises(LeaseLost):
                check_fence(lease, fence, now)


def test_ones_own_fence_late_or_released() -> None:
    """At the deadline it is expired, said with how long ago; released is not held."""
    assert check_fence(LEASE, LEASE.fence, later(59_999)) is LEASE
    with pytest.raises(LeaseExpired, match=r"expired 1\.5 s ago"):
        check_fence(LEASE, LEASE.fence, later(61_500))
    with pytest.raises(LeaseNotHeld):
        check_fence(replace(LEASE, state="released"), LEASE.fence, THEN)


def test_a_token_names_store_lineage_epoch_and_incarnation() -> None:
    """It is read back by the store and agent that it is for."""
    token = LEASE.fence.token("0123456789abcdef")
    assert token == f"0123456789abcdef:{'f' * 32}:5:{'c' * 32}"
    assert Fence.parse(token, agent="a", store_id="0123456789abcdef") == LEASE.fence


@pytest.mark.parametrize(
    "token",
    [
        "",
        "5",
        ":::",
        "s:l:5",
        "s:l:5:i:x",
        "s:l:x:i",
        "s:l:-5:i",
        "s:l:٣:i",
        "s:l:5.0:i",
        "other:l:5:i",
        f"s:l:{'9' * 5000}:i",
    ],
)
def test_what_is_no_token_of_this_store_is_a_mismatch(token: str) -> None:
    """A bare epoch, another store's token or any other text is refused as fenced, never taken for no token."""
    with pytest.raises(TokenMismatch) as refused:
        Fence.parse(token, agent="a", store_id="s")
    assert isinstance(refused.value, Fenced)


@given(token=st.text(st.characters()))
def test_any_text_is_a_token_or_a_mismatch(token: str) -> None:
    """No text makes parsing fail in another way."""
    with contextlib.suppress(TokenMismatch):
        assert Fence.parse(token, agent="a", store_id="s").epoch >= 0


@pytest.mark.parametrize("bad", [0, 0.999, -1, 86_401, float("nan"), float("inf"), True, "60", None, 10**400])
def test_a_ttl_is_a_number_of_seconds_within_bounds(bad: Any) -> None:
    """From one second to a day."""
    with pytest.raises(InvalidInput):
        check_ttl(bad)
    assert [check_ttl(each) for each in (1, 1.5, 86_400)] == [1000, 1500, 86_400_000]
