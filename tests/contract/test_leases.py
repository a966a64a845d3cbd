"""Clauses 1 to 7: leases."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from typing import Any

import pytest

from store.errors import LeaseExpired, LeaseHeld, LeaseLost, LeaseNotHeld
from store.process import Process
from store.records import LEASE, TURN, Draft
from tests.contract.conftest import Two
from tests.engine import AGENT, finished, hold, python, request

ELSEWHERE = Process("another-host", "another-boot", "", 4711, "1")


def test_clause_1_one_contender_of_many_wins(two: Two) -> None:
    """Of eight processes that ask at one moment exactly one gets the lease, and the others are told who did."""
    script = two.preamble + textwrap.dedent("""
        from store.errors import LeaseHeld
        from store.lease import LeaseRequest
        from store.process import Process
        far = Process("x", "y", "", 1, "")
        request = LeaseRequest("raced", os.urandom(16).hex(), f"holder-{os.getpid()}", far, 60_000)
        print("ready", flush=True)
        sys.stdin.read()
        try:
            print("won", backend.acquire(request).lease.epoch, request.holder)
        except LeaseHeld as problem:
            print("held", problem.details["epoch"], problem.details["holder"])
    """)
    contenders = [python(script, two.place, stdin=-1) for _ in range(8)]
    for each in contenders:
        assert each.stdout is not None
        assert each.stdout.readline() == b"ready\n"
    for each in contenders:
        assert each.stdin is not None
        each.stdin.close()
        each.stdin = None
    told = [finished(each).split() for each in contenders]
    winners = [holder for what, _, holder in told if what == "won"]
    assert len(winners) == 1
    assert {holder for what, _, holder in told if what == "held"} == set(winners)
    assert {epoch for _, epoch, _ in told} == {"1"}


def test_clause_2_epochs_rise_by_one_and_survive_release(two: Two) -> None:
    """Every acquisition has the next epoch, whichever handle asks and however the one before it ended."""
    epochs = []
    for number in range(6):
        backend = (two.one, two.other)[number % 2]
        acquired = backend.acquire(request(incarnation=f"{number:032x}"))
        epochs.append(acquired.lease.epoch)
        if number % 3:
            assert backend.release(acquired.lease.fence)
        else:
            two.clock.move(61)
    assert epochs == [1, 2, 3, 4, 5, 6]


def test_clause_3_a_live_lease_is_not_granted(two: Two) -> None:
    """While a holder that may be alive is within its ttl, the other handle is refused, by holder and time."""
    two.one.acquire(request(holder="alice", process=ELSEWHERE))
    two.clock.move(59.999)
    with pytest.raises(LeaseHeld) as refused:
        two.other.acquire(request(holder="bob"))
    assert refused.value.details["holder"] == "alice"
    assert refused.value.details["until"] == "2026-11-03T18:55:43Z"
    assert refused.value.code == "lease_held"


@pytest.mark.parametrize(
    ("how", "reason"), [("wait", "expired"), ("release", "released"), ("break", "broken"), ("again", "again")]
)
def test_clause_3_it_is_granted_for_a_reason(two: Two, how: str, reason: str) -> None:
    """A lease is taken over when it expired, was released, or is broken; one's own lapsed one is acquired again."""
    first = two.one.acquire(request(process=ELSEWHERE)).lease
    if how in ("wait", "again"):
        two.clock.move(60)
    if how == "release":
        two.one.release(first.fence)
    again = first.fence if how == "again" else None
    acquired = two.other.acquire(request(incarnation="b" * 32, again=again, breaking=how == "break"))
    assert acquired.reason == reason
    assert acquired.lease.epoch == 2
    assert acquired.previous is not None
    assert acquired.previous.fence == first.fence


def test_clause_3_again_fails_for_good_once_somebody_else_had_the_lease(two: Two) -> None:
    """A lapsed lease is not acquired again after another epoch, even if that one has been released."""
    mine = two.one.acquire(request(process=ELSEWHERE)).lease.fence
    two.clock.move(60)
    theirs = hold(two.other, incarnation="b" * 32)
    two.other.release(theirs)
    with pytest.raises(LeaseLost):
        two.one.acquire(request(again=mine))


def test_clause_4_the_acquisition_is_in_the_log(two: Two) -> None:
    """The first record under an epoch says who acquired it and why; the first of all makes the lineage."""
    first = two.one.acquire(request(holder="alice")).lease
    two.one.release(first.fence)
    second = two.other.acquire(request(holder="bob", incarnation="b" * 32)).lease
    assert second.lineage == first.lineage
    assert len(first.lineage) == 32
    records = list(two.one.log(AGENT))
    assert [(each.kind, each.seq, each.epoch, each.lsn) for each in records] == [(LEASE, 1, 1, 1), (LEASE, 2, 2, 2)]
    bodies = [json.loads(each.body) for each in records]
    assert [(each["holder"], each["reason"]) for each in bodies] == [("alice", "first"), ("bob", "released")]
    assert bodies[1]["incarnation"] == "b" * 32


def test_clause_4_a_refused_acquisition_leaves_no_record(two: Two) -> None:
    """Whoever is refused has written nothing."""
    hold(two.one)
    with pytest.raises(LeaseHeld):
        two.other.acquire(request(process=ELSEWHERE))
    assert len(list(two.other.log(AGENT))) == 1


def test_clause_5_an_acquisition_is_there_for_everybody_when_it_returns(two: Two) -> None:
    """The other handle and a new process see the lease at once."""
    fence = hold(two.one)
    lease = two.other.lease(AGENT)
    assert lease is not None
    assert lease.fence == fence
    script = two.preamble + f"print(backend.lease({AGENT!r}).epoch, backend.lease({AGENT!r}).state)"
    assert finished(python(script, two.place)) == "1 held\n"


def test_clause_6_renewing_starts_the_ttl_anew(two: Two) -> None:
    """A renewal counts from now; without one the lease ends at its deadline, to the millisecond."""
    fence = hold(two.one)
    two.clock.move(two.holds - 10)
    two.one.renew(fence)
    two.clock.move(two.holds - 0.001)
    two.one.append(fence, [Draft(TURN, {"role": "user"}, seq=1)])
    two.clock.move(0.001)
    with pytest.raises(LeaseExpired):
        two.one.renew(fence)


@pytest.mark.parametrize("field", ["epoch", "incarnation", "lineage"])
def test_clause_6_renewing_with_another_fence_is_refused(two: Two, field: str) -> None:
    """A fence that differs in anything does not renew, and does not lengthen the holder's time."""
    fence = hold(two.one)
    value: Any = 2 if field == "epoch" else "c" * 32
    wrong = replace(fence, **{field: value})
    two.clock.move(30)
    with pytest.raises(LeaseLost):
        two.other.renew(wrong)
    two.clock.move(30)
    with pytest.raises(LeaseExpired):
        two.one.renew(fence)


def test_clause_6_a_released_lease_is_not_renewed(two: Two) -> None:
    """After a release the same fence is refused as not held."""
    fence = hold(two.one)
    two.one.release(fence)
    with pytest.raises(LeaseNotHeld):
        two.other.renew(fence)


def test_clause_7_releasing_twice_or_late_changes_nothing(two: Two) -> None:
    """A release by anybody but the present holder says False and leaves the present lease alone."""
    old = hold(two.one)
    assert two.one.release(old) is True
    assert two.one.release(old) is False
    new = hold(two.other, incarnation="b" * 32)
    assert two.one.release(old) is False
    lease = two.one.lease(AGENT)
    assert lease is not None
    assert (lease.fence, lease.state) == (new, "held")
