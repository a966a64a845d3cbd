"""Clauses 8 to 13: the one write path."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from dataclasses import replace
from typing import Any

import pytest

from store.canonical import BLOB_LIMIT, first_hash, next_hash
from store.clock import Instant
from store.errors import Fenced, InvalidInput, LeaseExpired, LeaseLost, LeaseNotHeld, Stale
from store.records import ACTION, NEXT, OUTPUT, POINTER, TURN, WORKING_STATE, Draft, Expect
from tests.contract.conftest import Two
from tests.engine import AGENT, SetClock, hold, line_of, python


def turn(content: str = "x", seq: int = NEXT) -> Draft:
    return Draft(TURN, {"role": "user", "content": content}, seq=seq)


@pytest.mark.parametrize("field", ["epoch", "incarnation", "lineage", "agent"])
def test_clause_8_a_wrong_fence_writes_nothing(two: Two, field: str) -> None:
    """Epoch, incarnation, lineage and agent must all be the lease's; otherwise nothing lands."""
    fence = hold(two.one)
    wrong: Any = {"epoch": 2, "incarnation": "c" * 32, "lineage": "c" * 32, "agent": "somebody-else"}[field]
    with pytest.raises(LeaseLost):
        two.other.append(replace(fence, **{field: wrong}), [turn()])
    assert two.one.counters(AGENT).lsn == 1
    assert two.one.counters("somebody-else").lsn == 0


def test_clause_8_a_late_write_is_refused_though_nobody_took_over(two: Two) -> None:
    """At the deadline the holder's own write is refused; the lease stays its own to acquire again."""
    fence = hold(two.one)
    two.clock.move(60)
    with pytest.raises(LeaseExpired) as refused:
        two.one.append(fence, [turn()])
    assert refused.value.code == "lease_expired"
    assert two.other.counters(AGENT).turns == 0


def test_clause_8_a_late_write_is_refused_after_a_takeover_and_a_release(two: Two) -> None:
    """An old epoch never writes again, whatever became of the newer ones."""
    old = hold(two.one)
    two.clock.move(60)
    new = hold(two.other, incarnation="b" * 32)
    with pytest.raises(LeaseLost):
        two.one.append(old, [turn()])
    two.other.release(new)
    with pytest.raises(LeaseLost):
        two.one.append(old, [turn()])
    with pytest.raises(LeaseNotHeld):
        two.other.append(new, [turn()])
    assert two.one.counters(AGENT).turns == 0


class RunsOut:
    """A clock by which the lease ends between an append's first look and its commit."""

    def __init__(self, clock: SetClock) -> None:
        self.clock, self.looks = clock, 0

    def now(self) -> Instant:
        self.looks += 1
        if self.looks == 2:
            self.clock.move(60)
        return self.clock.now()


def test_clause_8_the_deadline_is_checked_again_just_before_the_commit(two: Two) -> None:
    """A process that stalls inside its own append, past the lease, lands nothing."""
    fence = hold(two.one)
    slow = two.open(RunsOut(two.clock))
    with pytest.raises(LeaseExpired):
        slow.append(fence, [turn()], renew=True)
    assert two.other.counters(AGENT).lsn == 1


@pytest.mark.parametrize(
    "expected",
    [Expect(TURN, 0, seq=1), Expect(TURN, 5, seq=1), Expect(POINTER, 1, name="wip"), Expect(WORKING_STATE, 1, seq=1)],
)
def test_clause_9_a_broken_expectation_writes_nothing(two: Two, expected: Expect) -> None:
    """Stale names what was found, and the drafts stay out."""
    fence = hold(two.one)
    two.one.append(fence, [turn()])
    with pytest.raises(Stale):
        two.other.append(fence, [turn("second")], [Expect(TURN, 2, seq=1), expected])
    assert two.one.counters(AGENT).turns == 1


def test_clause_9_expectations_that_hold_let_the_append_through(two: Two) -> None:
    """The newest lsn of a key, or 0 where there is none, is what is expected."""
    fence = hold(two.one)
    (pointer,) = two.one.append(
        fence, [Draft(POINTER, {"type": "object"}, name="wip")], [Expect(POINTER, 0, name="wip")]
    )
    (newer,) = two.other.append(
        fence, [Draft(POINTER, {"type": "env"}, name="wip")], [Expect(POINTER, pointer.lsn, name="wip")]
    )
    assert newer.lsn == pointer.lsn + 1


def test_clause_9_two_racing_closers_have_one_winner(two: Two) -> None:
    """Of two handles that expect the same state of one key, from two threads, exactly one lands, every time."""
    fence = hold(two.one)
    (begun,) = two.one.append(fence, [Draft(ACTION, {"status": "started"}, seq=1)])
    for _ in range(20):
        outcomes: list[str] = []
        start = threading.Barrier(2)
        lsn = begun.lsn

        def close(backend: Any, lsn: int = lsn, outcomes: list[str] = outcomes, start: Any = start) -> None:
            start.wait()
            try:
                backend.append(fence, [Draft(ACTION, {"status": "done"}, seq=1)], [Expect(ACTION, lsn, seq=1)])
                outcomes.append("landed")
            except Stale:
                outcomes.append("stale")

        threads = [threading.Thread(target=close, args=(each,)) for each in (two.one, two.other)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(outcomes) == ["landed", "stale"]
        newest = two.one.newest(AGENT, ACTION, seq=1)
        assert newest is not None
        begun = newest


def test_clause_10_numbers_are_dense_over_handles_and_drafts(two: Two) -> None:
    """lsn and seq go on without a gap from one handle to the other, in the drafts' order."""
    fence = hold(two.one)
    made = []
    for number in range(5):
        backend = (two.one, two.other)[number % 2]
        made += backend.append(fence, [turn(), Draft(ACTION, {"status": "started"}, seq=NEXT), turn()])
    assert [each.lsn for each in made] == list(range(2, 17))
    assert [each.seq for each in made if each.kind == TURN] == list(range(1, 11))
    assert [each.seq for each in made if each.kind == ACTION] == list(range(1, 6))


def test_clause_10_the_chain_goes_over_the_stored_bytes(two: Two) -> None:
    """Each hash is that of the one before it and the line, from the lineage on."""
    fence = hold(two.one)
    two.one.append(fence, [turn("a"), turn("b")])
    two.other.append(fence, [turn("c")])
    link = first_hash(fence.lineage, AGENT)
    for record in two.one.log(AGENT):
        link = next_hash(link, record.line)
        assert record.hash == link
    counters = two.other.counters(AGENT)
    assert (counters.lsn, counters.hash) == (4, link)


def test_clause_11_what_was_acknowledged_survives_sigkill(two: Two) -> None:
    """Every record that a process told of before it was killed is in the log."""
    script = two.preamble + textwrap.dedent("""
        from store.lease import LeaseRequest
        from store.process import this_process
        from store.records import Draft
        fence = backend.acquire(LeaseRequest("killed", "a" * 32, "h", this_process(), 60_000)).lease.fence
        while True:
            print(backend.append(fence, [Draft("turn", {"role": "user"}, seq=-1)])[0].lsn, flush=True)
    """)
    victim = python(script, two.place)
    told = [int(line_of(victim)) for _ in range(50)]
    os.kill(victim.pid, signal.SIGKILL)
    out, _ = victim.communicate(timeout=30)
    told += [int(each) for each in out.decode().split("\n")[:-1]]
    assert {each.lsn for each in two.one.log("killed")} >= set(told)


@pytest.mark.parametrize("bad", ["nan", "too large", "surrogate"])
def test_clause_12_a_draft_that_cannot_be_stored_takes_the_others_with_it(two: Two, bad: str) -> None:
    """If one draft of several is refused, none has landed, no blob is left, and the next append goes on densely."""
    fence = hold(two.one)
    wrong: Any = {"nan": float("nan"), "too large": "x" * (BLOB_LIMIT + 1), "surrogate": "\udc80"}[bad]
    spilled = Draft(OUTPUT, {"content": "y" * 50_000}, name="kept-out")
    with pytest.raises((InvalidInput, ValueError)):
        two.one.append(fence, [turn(), spilled, Draft(OUTPUT, {"content": wrong}, name="wrong")], renew=True)
    assert two.other.counters(AGENT).lsn == 1
    assert two.other.newest(AGENT, OUTPUT, name="kept-out") is None
    (record,) = two.one.append(fence, [turn()])
    assert (record.lsn, record.seq) == (2, 1)


def test_clause_12_a_failing_clock_leaves_nothing(two: Two) -> None:
    """Whatever is raised inside the transaction, even at its very end, nothing is left of it."""

    class Breaks(SetClock):
        looks = 0

        def now(self) -> Instant:
            self.looks += 1
            if self.looks == 2:
                raise KeyboardInterrupt
            return super().now()

    fence = hold(two.one)
    with pytest.raises(KeyboardInterrupt):
        two.open(Breaks()).append(fence, [turn()])
    assert two.other.counters(AGENT).lsn == 1
    two.one.append(fence, [turn()])


def test_clause_13_later_writes_leave_earlier_records_alone(two: Two) -> None:
    """After changes of the same key, a takeover and a release, the old records read the same, byte for byte."""
    fence = hold(two.one)
    two.one.append(fence, [Draft(POINTER, {"type": "object", "fields": {"uri": "a"}}, name="wip"), turn()])
    before = [(each.lsn, each.line, each.hash) for each in two.other.log(AGENT)]
    two.other.append(fence, [Draft(POINTER, {"removed": True}, name="wip")])
    two.clock.move(60)
    two.other.release(hold(two.other, incarnation="b" * 32))
    after = [(each.lsn, each.line, each.hash) for each in two.one.log(AGENT)]
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2


def test_clause_13_a_blob_is_kept_whole_beside_its_record(two: Two) -> None:
    """A large field comes back as it was, from the other handle, also after its key was replaced."""
    fence = hold(two.one)
    text = "größe €\n" * 20_000
    (record,) = two.one.append(fence, [Draft(OUTPUT, {"tool": "t", "content": text}, name="big")])
    two.one.append(fence, [Draft(OUTPUT, {"content": "small"}, name="big")])
    first = two.other.history(AGENT, OUTPUT, name="big")[0]
    assert first.line == record.line
    assert len(first.line) < 1000
    assert first.fields(lambda name: two.other.blob(AGENT, name)) == {"tool": "t", "content": text}
    with pytest.raises(KeyError):
        two.other.blob(AGENT, "1-none")


def test_no_fence_no_write(two: Two) -> None:
    """There is no agent whose log can be written without having acquired its lease."""
    fence = hold(two.one)
    with pytest.raises(Fenced):
        two.other.append(replace(fence, agent="new-agent"), [turn()])
    assert two.one.lease("new-agent") is None
