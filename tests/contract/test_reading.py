"""Clauses 14 to 20: reading, and setting aside."""

from __future__ import annotations

import pytest

from store.backend import Counters
from store.errors import InvalidInput
from store.records import ACTION, CLASSES, NEXT, OUTPUT, POINTER, TURN, WORKING_STATE, Draft
from tests.contract.conftest import Two
from tests.engine import AGENT, hold


def turns(count: int) -> list[Draft]:
    return [Draft(TURN, {"role": "user", "content": str(each)}, seq=NEXT) for each in range(count)]


def action(seq: int, status: str) -> Draft:
    return Draft(ACTION, {"status": status}, seq=seq)


def test_clause_14_reads_inside_see_one_moment(two: Two) -> None:
    """What another handle commits during a reading block shows after it, not inside."""
    fence = hold(two.one)
    with two.other.reading():
        assert two.other.counters(AGENT).turns == 0
        two.one.append(fence, turns(3))
        assert two.other.counters(AGENT).turns == 0
        assert two.other.tail(AGENT, TURN, limit=5) == []
    assert two.other.counters(AGENT).turns == 3


def test_clause_15_counters_tell_how_far_each_kind_has_come(two: Two) -> None:
    """Counters are zero for an unknown agent and follow every handle's appends."""
    assert two.one.counters("nobody") == Counters(0, b"", 0, 0, 0)
    fence = hold(two.one)
    two.one.append(fence, [*turns(2), Draft(WORKING_STATE, {"goal": "g"}, seq=NEXT), action(NEXT, "started")])
    counters = two.other.counters(AGENT)
    assert (counters.lsn, counters.version, counters.turns, counters.actions) == (5, 1, 2, 1)


def test_clause_16_the_newest_record_of_a_key_now_and_then(two: Two) -> None:
    """A key shows its newest record, or with ``at`` the newest up to that lsn; none is None."""
    fence = hold(two.one)
    first, second = two.one.append(fence, [action(1, "started"), action(1, "done")])
    (pointer,) = two.one.append(fence, [Draft(POINTER, {"type": "env"}, name="wip")])
    assert two.other.newest(AGENT, ACTION, seq=1) == second
    assert two.other.newest(AGENT, ACTION, seq=1, at=first.lsn) == first
    assert two.other.newest(AGENT, ACTION, seq=1, at=1) is None
    assert two.other.newest(AGENT, POINTER, name="wip") == pointer
    assert two.other.newest(AGENT, POINTER, name="wip", at=second.lsn) is None
    assert two.other.newest(AGENT, ACTION, seq=2) is None
    assert two.other.newest("nobody", ACTION, seq=1) is None


@pytest.mark.parametrize("seq", [2**63, 10**30, -(10**30)])
def test_clause_16_a_number_that_no_key_can_have_is_not_there(two: Two, seq: int) -> None:
    """A number of any size and a name of any characters are looked up, not tripped over."""
    hold(two.one)
    assert two.other.newest(AGENT, ACTION, seq=seq) is None
    assert two.other.newest(AGENT, OUTPUT, name="\udcff\x00") is None


def test_clause_17_the_tail_goes_backwards_in_pages(two: Two) -> None:
    """Pages by falling seq, each below the last one's, give every key once."""
    fence = hold(two.one)
    two.one.append(fence, turns(25))
    seen: list[int] = []
    before = None
    while page := two.other.tail(AGENT, TURN, limit=10, before=before):
        seen += [each.seq for each in page]
        before = page[-1].seq
    assert seen == list(range(25, 0, -1))


def test_clause_17_with_a_position_the_tail_is_what_was_there_then(two: Two) -> None:
    """Turns after the position are not there yet; an action that changed later shows its state of then."""
    fence = hold(two.one)
    begun = two.one.append(fence, [action(1, "started"), action(2, "started")])
    two.one.append(fence, [*turns(2), action(1, "done")])
    then = two.other.tail(AGENT, ACTION, limit=10, at=begun[1].lsn)
    assert then == begun[::-1]
    assert two.other.tail(AGENT, ACTION, limit=1, at=begun[1].lsn) == begun[1:]
    assert two.other.tail(AGENT, ACTION, limit=10, before=2, at=begun[1].lsn) == begun[:1]
    assert two.other.tail(AGENT, TURN, limit=10, at=begun[1].lsn) == []
    assert [each.seq for each in two.other.tail(AGENT, TURN, limit=10, at=begun[1].lsn + 1)] == [1]


def test_clause_18_open_actions_of_one_agent_and_of_all(two: Two) -> None:
    """Open keys come by rising seq in pages, over all agents by agent and seq; closed ones do not."""
    mine, theirs = hold(two.one), hold(two.one, "another")
    two.one.append(mine, [action(seq, "started") for seq in range(1, 8)])
    two.one.append(mine, [action(2, "done"), action(5, "unknown"), action(6, "abandoned")])
    two.one.append(theirs, [action(1, "started")])
    assert [each.seq for each in two.other.in_force(AGENT, ACTION, limit=99)] == [1, 3, 4, 5, 7]
    assert [each.seq for each in two.other.in_force(AGENT, ACTION, limit=2, after=(AGENT, 3))] == [4, 5]
    of_all = two.other.in_force(None, ACTION, limit=99)
    assert [(each.agent, each.seq) for each in of_all] == [("another", 1), *((AGENT, seq) for seq in (1, 3, 4, 5, 7))]
    rest = two.other.in_force(None, ACTION, limit=2, after=("another", 1))
    assert [(each.agent, each.seq) for each in rest] == [(AGENT, 1), (AGENT, 3)]


def test_clause_18_with_a_position_what_was_open_then(two: Two) -> None:
    """An action that is closed now was open at the position before its close."""
    fence = hold(two.one)
    begun = two.one.append(fence, [action(1, "started"), action(2, "started")])
    two.one.append(fence, [action(1, "done")])
    assert two.other.in_force(AGENT, ACTION, limit=9, at=begun[1].lsn) == begun
    assert two.other.in_force(AGENT, ACTION, limit=9, at=begun[0].lsn) == begun[:1]
    assert [each.seq for each in two.other.in_force(AGENT, ACTION, limit=9)] == [2]


def test_clause_18a_what_a_new_incarnation_settles(two: Two) -> None:
    """Started ones whose class asks for it, in pages; not the unknown, the idempotent, the closed, or another's."""
    fence, other = hold(two.one), hold(two.one, "another")
    kinds = [(status, class_) for status in ("started", "unknown", "done") for class_ in CLASSES]
    bodies = [{"status": status, "class": class_} for status, class_ in kinds * 2]
    two.one.append(fence, [Draft(ACTION, each, seq=NEXT) for each in bodies])
    two.one.append(other, [Draft(ACTION, {"status": "started", "class": "pure"}, seq=NEXT)])
    assert [each.seq for each in two.other.to_settle(AGENT, limit=9)] == [1, 3, 10, 12]
    assert [each.seq for each in two.other.to_settle(AGENT, limit=2, after=1)] == [3, 10]
    two.one.append(fence, [Draft(ACTION, {"status": "unknown", "class": "pure"}, seq=3)])
    assert [each.seq for each in two.other.to_settle(AGENT, limit=9)] == [1, 10, 12]


def test_clauses_17_and_18_with_a_position_of_more_keys_than_a_page(two: Two) -> None:
    """Over a thousand keys, what was there then comes by seq or by lsn, whole and in order, and is counted."""
    fence = hold(two.one)
    two.one.append(fence, [action(NEXT, "started") for _ in range(1200)])
    two.one.append(fence, [Draft(POINTER, {"type": "env"}, name=f"p{each}") for each in range(1200)])
    then = two.one.counters(AGENT).lsn
    two.one.append(fence, [action(seq, "done") for seq in range(1, 1201)])
    two.one.append(fence, [Draft(POINTER, {"removed": True}, name="p7"), action(NEXT, "started")])
    assert [each.seq for each in two.other.tail(AGENT, ACTION, limit=9999, at=then)] == list(range(1200, 0, -1))
    assert [each.seq for each in two.other.tail(AGENT, ACTION, limit=2, before=600, at=then)] == [599, 598]
    assert [each.seq for each in two.other.in_force(AGENT, ACTION, limit=9999, at=then)] == list(range(1, 1201))
    assert [each.seq for each in two.other.in_force(AGENT, ACTION, limit=2, after=(AGENT, 600), at=then)] == [601, 602]
    assert two.other.in_force_newest(AGENT, ACTION, limit=0, at=then) == ([], 1200)
    newest, total = two.other.in_force_newest(AGENT, POINTER, limit=1100, at=then)
    assert ([each.name for each in newest], total) == ([f"p{each}" for each in range(1199, 99, -1)], 1200)
    below, _ = two.other.in_force_newest(AGENT, POINTER, limit=1, before=newest[-1].lsn, at=then)
    assert [each.name for each in below] == ["p99"]


def test_clause_18_named_records_in_force_are_newest_first_and_counted(two: Two) -> None:
    """Pointers that were removed are out; the count is of all, not of the page."""
    fence = hold(two.one)
    names = ["b", "a", "c", "d"]
    two.one.append(fence, [Draft(POINTER, {"type": "env"}, name=each) for each in names])
    two.one.append(fence, [Draft(POINTER, {"removed": True}, name="c"), Draft(POINTER, {"type": "object"}, name="b")])
    records, total = two.other.in_force_newest(AGENT, POINTER, limit=2)
    assert ([each.name for each in records], total) == (["b", "d"], 3)
    then, total = two.other.in_force_newest(AGENT, POINTER, limit=9, at=5)
    assert ([each.name for each in then], total) == (["d", "c", "a", "b"], 4)
    assert two.other.in_force_newest(AGENT, POINTER, limit=0) == ([], 3)


def test_history_has_every_record_of_a_key(two: Two) -> None:
    """The records of one key, oldest first; with a limit the newest ones."""
    fence = hold(two.one)
    states = ["started", "unknown", "done"]
    for status in states:
        two.one.append(fence, [action(1, status), action(2, status)])
    found = two.other.history(AGENT, ACTION, seq=1)
    assert [each.fields()["status"] for each in found] == states
    assert [each.fields()["status"] for each in two.other.history(AGENT, ACTION, seq=1, limit=2)] == states[1:]


def test_clause_19_the_log_is_read_in_steps_without_a_transaction(two: Two) -> None:
    """A reader in the middle of a long log neither blocks a writer nor misses what comes meanwhile."""
    fence = hold(two.one)
    two.one.append(fence, turns(1200))
    reader = two.other.log(AGENT)
    seen = [next(reader).lsn for _ in range(600)]
    two.one.append(fence, turns(1))
    seen += [each.lsn for each in reader]
    assert seen == list(range(1, 1203))


def test_clause_19_a_part_of_the_log(two: Two) -> None:
    """``after`` and ``limit`` name a part; an unknown agent has an empty log."""
    fence = hold(two.one)
    two.one.append(fence, turns(9))
    assert [each.lsn for each in two.other.log(AGENT, after=4, limit=3)] == [5, 6, 7]
    assert list(two.other.log(AGENT, after=10)) == []
    assert list(two.other.log("nobody")) == []


def test_leases_are_listed_by_agent_in_pages(two: Two) -> None:
    """Every agent that ever had a lease is listed once; ids that differ in case are different agents."""
    for name in ("b", "B", "a", "c"):
        hold(two.one, name)
    first = two.other.leases(limit=3)
    assert [each.agent for each in first] == ["B", "a", "b"]
    assert [each.agent for each in two.other.leases(after="b")] == ["c"]


def test_clause_20_setting_aside_moves_nothing(two: Two) -> None:
    """The tail stays readable on its old branch; the new branch shares the rest and goes on from there."""
    fence = hold(two.one)
    two.one.append(fence, [*turns(3), action(1, "started"), Draft(POINTER, {"type": "env"}, name="late")])
    old = list(two.one.log(AGENT))
    branch = two.one.set_aside(fence, 3, "diverged")
    assert (branch.number, branch.parent, branch.start, branch.reason) == (2, 1, 3, "diverged")
    assert branch.start_hash == old[2].hash
    assert list(two.other.log(AGENT)) == old[:3]
    assert list(two.other.log(AGENT, branch=1)) == old
    assert two.other.counters(AGENT).turns == 2
    assert two.other.counters(AGENT).actions == 0
    assert two.other.newest(AGENT, POINTER, name="late") is None
    (record,) = two.other.append(fence, turns(1))
    assert (record.lsn, record.seq, record.branch) == (4, 3, 2)
    assert [each.lsn for each in two.one.log(AGENT)] == [1, 2, 3, 4]
    assert list(two.one.log(AGENT, branch=1)) == old
    assert [(each.number, each.last) for each in two.one.branches(AGENT)] == [(1, 6), (2, 4)]


def test_clause_20_again_from_a_branch(two: Two) -> None:
    """A branch of a branch reads as one log, over all its pieces."""
    fence = hold(two.one)
    two.one.append(fence, turns(4))
    two.one.set_aside(fence, 4, "first time")
    two.one.append(fence, turns(3))
    two.one.set_aside(fence, 6, "second time")
    two.one.append(fence, turns(1))
    assert [(each.lsn, each.branch) for each in two.other.log(AGENT)] == [
        (1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3),
    ]  # fmt: skip
    assert [each.seq for each in two.other.tail(AGENT, TURN, limit=9)] == [6, 5, 4, 3, 2, 1]
    two.one.release(fence)
    assert hold(two.other, incarnation="b" * 32).epoch == 2


@pytest.mark.parametrize("keep", [0, 5, 99])
def test_clause_20_only_a_position_inside_the_log_can_be_kept(two: Two, keep: int) -> None:
    """Outside the log, or with nothing after it to set aside, nothing is changed."""
    fence = hold(two.one)
    two.one.append(fence, turns(4))
    with pytest.raises(InvalidInput):
        two.one.set_aside(fence, keep, "wrong")
    assert len(two.other.branches(AGENT)) == 1


def test_closing_twice_is_safe_and_the_other_handle_goes_on(two: Two) -> None:
    """A handle may be closed again; the other one reads and writes on."""
    fence = hold(two.one)
    two.one.close()
    two.one.close()
    two.other.append(fence, turns(1))
    assert two.other.counters(AGENT).turns == 1
