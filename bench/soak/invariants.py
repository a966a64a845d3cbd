"""The invariants, each a function of its own that yields what breaks it. Pure: they see a ``History`` and nothing else.

The number before each is that of the invariant in section 3 of the design.
Two more (7 and 8) are no question of history, and are tried on the store that
is left at the end: ``probes.py``. Of 9 only the budget is checked here, and 11
as 6: what was acknowledged is there, whichever door it came through. That it
survives the loss of power is not tried.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from bench.soak.history import Entry, History, Life, Log
from store.records import ACTION, LEASE, TURN, WORKING_STATE

CLOSED = ("done", "failed", "abandoned")
Invariant = Callable[[History], Iterator[str]]


# -- 1: the fence -----------------------------------------------------------------------------------


def fence(history: History) -> Iterator[str]:
    """1. No record of an epoch comes after a later epoch's first, and each epoch's first is its own lease record."""
    for agent, log in history.logs.items():
        epoch = 0
        for each in log.entries:
            if each.epoch < epoch:
                yield f"{agent} lsn {each.lsn}: written under epoch {each.epoch} after epoch {epoch} had begun"
            elif each.epoch > epoch and each.kind != LEASE:
                yield f"{agent} lsn {each.lsn}: epoch {each.epoch} was never begun"
            epoch = max(epoch, each.epoch)


def only_the_holder_writes(history: History) -> Iterator[str]:
    """1. What a process was told is written stands under an epoch that was that process's own."""
    for agent, log in history.logs.items():
        holders = {each.epoch: each.body.get("holder") for each in _acquisitions(log)}
        marks = _marks(log)
        for life in _lives_of(history, agent):
            for ack in life.of("record"):
                entry = marks.get(ack["uid"])
                if entry is not None and holders.get(entry.epoch) != life.worker:
                    yield f"{agent} lsn {entry.lsn}: {life.worker} wrote under the epoch of {holders.get(entry.epoch)}"


def must_be_refused(life: Life) -> bool:
    """Whether it has to have been told that it was taken over: a Python program, that was not killed."""
    return life.overtaken and life.kind == "python" and any(life.of("ended"))


def the_overtaken_are_refused(history: History) -> Iterator[str]:
    """1. Who was stopped, taken over and woken up is told so before it ends, and writes nothing after that."""
    for life in history.lives.values():
        refused = late = False
        for ack in life.acks:
            if refused and ack["what"] in ("record", "begun", "closed"):
                yield f"{life.worker} was refused with lease_lost, and then a write of it was accepted: {ack}"
            refused = refused or (ack["what"] == "refused" and ack["code"] == "lease_lost")
            late = late or (ack["what"] == "released" and not ack["held"])
        if must_be_refused(life) and not (refused or late):
            yield f"{life.worker} was stopped and taken over, woke up, and was never refused"


# -- 2: append-only ----------------------------------------------------------------------------------


def lsns_are_dense(history: History) -> Iterator[str]:
    """2. lsn counts from 1 without gaps."""
    for agent, log in history.logs.items():
        for number, each in enumerate(log.entries, 1):
            if each.lsn != number:
                yield f"{agent}: lsn {each.lsn} is where {number} should be"
                break


def chains_hold(history: History) -> Iterator[str]:
    """2. Each record's hash follows from the one before it and its own line, derived here by hand."""
    for agent, log in history.logs.items():
        link = log.first
        for each in log.entries:
            link = hashlib.sha256(b"recall/1\0" + link + each.line).digest()
            if link != each.hash:
                yield f"{agent} lsn {each.lsn}: its hash does not follow"
                break


def numbers_are_dense(history: History) -> Iterator[str]:
    """2. Turns and versions count from 1 without gaps; a new action has the next number."""
    for agent, log in history.logs.items():
        last: Counter[str] = Counter()
        for each in log.entries:
            if each.kind not in (TURN, WORKING_STATE, ACTION):
                continue
            again = each.kind == ACTION and 0 < each.seq <= last[ACTION]
            if each.seq != last[each.kind] + 1 and not again:
                yield f"{agent} lsn {each.lsn}: {each.key} follows number {last[each.kind]}"
            last[each.kind] = max(last[each.kind], each.seq)


def nothing_is_rewritten(history: History) -> Iterator[str]:
    """2. What was read while it happened is there at the end, byte for byte and at its place."""
    for agent, log in history.logs.items():
        if log.again is None:
            continue
        for n, each in enumerate(log.entries):
            if n >= len(log.again) or log.again[n].line != each.line:
                yield f"{agent} lsn {each.lsn}: it was there, and now it is gone or another one"
                break


# -- 3: epochs ---------------------------------------------------------------------------------------


def epochs_rise(history: History) -> Iterator[str]:
    """3. Every acquisition has a higher epoch than the one before it."""
    for agent, log in history.logs.items():
        for one, two in pairwise(_acquisitions(log)):
            if two.epoch <= one.epoch:
                yield f"{agent} lsn {two.lsn}: epoch {two.epoch} was begun after {one.epoch}"


def epochs_are_given_once(history: History) -> Iterator[str]:
    """3. No two processes were ever granted the same epoch of an agent, and the log names the one that was."""
    for agent, log in history.logs.items():
        holders = {each.epoch: each.body.get("holder") for each in _acquisitions(log)}
        granted: dict[int, str] = {}
        for life in _lives_of(history, agent):
            for ack in life.of("lease"):
                if ack["event"] == "lost":
                    continue
                other = granted.setdefault(ack["epoch"], life.worker)
                if other != life.worker:
                    yield f"{agent}: epoch {ack['epoch']} was granted to {other} and to {life.worker}"
                known = holders.get(ack["epoch"], life.worker if history.store == "bucket" else "nobody")
                if known != life.worker:
                    yield f"{agent}: epoch {ack['epoch']} was granted to {life.worker}, and the log says {known}"


# -- 4: intent before effect, and never twice --------------------------------------------------------


def intents_come_first(history: History) -> Iterator[str]:
    """4. Whatever happened outside, the log (on a bucket: the bucket's) has the intent, under that key and fence."""
    for agent, deeds in history.deeds.items():
        intents = {
            (each.body.get("key"), each.epoch, each.lsn): each.body.get("class")
            for each in history.log(agent).entries
            if each.kind == ACTION and each.body.get("status") == "started"
        }
        for deed in deeds:
            place = (deed["key"], deed["epoch"], deed["lsn"])
            if deed["what"] == "effect" and intents.get(place) != deed["class"]:
                yield f"{agent}: {deed['step']} happened ({deed['key']}), and lsn {deed['lsn']} is no intent of it"


def nothing_happens_twice(history: History) -> Iterator[str]:
    """4. For one key there is one effect, and for one step; an external call is handed to one caller once."""
    for agent, deeds in history.deeds.items():
        effects = [each for each in deeds if each["what"] == "effect"]
        for name in ("key", "step"):
            for which, count in Counter(each[name] for each in effects).items():
                if count > 1:
                    yield f"{agent}: {count} effects of {name} {which}"
        runs = Counter(
            ack["key"] for life in _lives_of(history, agent) for ack in life.of("runs") if ack["class"] == "external"
        )
        yield from (f"{agent}: {key} was started {count} times" for key, count in runs.items() if count > 1)


# -- 5: first close wins -----------------------------------------------------------------------------


def first_close_wins(history: History) -> Iterator[str]:
    """5. What an action was closed with stays its outcome."""
    for agent, log in history.logs.items():
        shut: dict[int, tuple[object, ...]] = {}
        for each in _actions(log):
            if each.seq in shut and shut[each.seq] != _outcome(each):
                yield f"{agent} lsn {each.lsn}: {each.key} was {shut[each.seq]}, and is {_outcome(each)}"
            if each.body.get("status") in CLOSED:
                shut.setdefault(each.seq, _outcome(each))


def outcomes_are_true(history: History) -> Iterator[str]:
    """5. A call that the log calls done happened outside; one that it calls abandoned did not."""
    for agent, log in history.logs.items():
        happened = {each["key"] for each in history.deeds.get(agent, ()) if each["what"] == "effect"}
        for each in _actions(log):
            key, status = each.body.get("key"), each.body.get("status")
            if each.body.get("class") == "pure" or each.lsn > log.before:
                continue
            if status == "done" and key not in happened:
                yield f"{agent} lsn {each.lsn}: {each.key} is done, and nothing happened"
            if status == "abandoned" and key in happened and each.body.get("class") == "external":
                yield f"{agent} lsn {each.lsn}: {each.key} is abandoned, and it happened"


# -- 6: nothing is dropped ---------------------------------------------------------------------------


def nothing_acknowledged_is_lost(history: History) -> Iterator[str]:
    """6, 11. What a call said is written is in the log.

    On a bucket: everything before a barrier or a release that was
    acknowledged is in the bucket's log. The rest is there in the end, or is
    shown as set aside, unless the only directory that had it is gone.
    """
    for agent, log in history.logs.items():
        marks = _marks(log)
        starts = {(each.seq, each.body.get("key")) for each in _actions(log)}
        for life in _lives_of(history, agent):
            promised = _promised(history, life)
            for number, ack in enumerate(life.acks):
                if ack["what"] == "begun" and (ack["seq"], ack["key"]) not in starts:
                    yield f"{agent}: action {ack['seq']} was begun by {life.worker}, and is in no log"
                if ack["what"] not in ("record", "closed") or ack["uid"] in marks:
                    continue
                if number < promised:
                    yield f"{agent}: {ack['uid']} was acknowledged to {life.worker}, and is not in the log"
                elif history.ended and ack["uid"] not in history.kept and not life.lost:
                    yield f"{agent}: {ack['uid']} of {life.worker} is neither in the log nor shown as set aside"


def _promised(history: History, life: Life) -> int:
    """How many of a life's acknowledgements say that the record is where it has to be by now."""
    if history.store == "sqlite":
        return len(life.acks)
    barriers = [n for n, each in enumerate(life.acks) if _is_barrier(each)]
    return barriers[-1] if barriers else 0


def _is_barrier(ack: dict[str, object]) -> bool:
    return ack["what"] == "begun" or (ack["what"] == "released" and bool(ack["held"]))


def turns_are_there_once(history: History) -> Iterator[str]:
    """6. A turn is in the log once, however often its writer had to try."""
    for agent, log in history.logs.items():
        count = Counter(each.uids[0] for each in log.entries if each.kind == TURN and each.uids)
        for uid, times in count.items():
            if times > 1 and not uid.endswith(".end"):
                yield f"{agent}: the turn {uid} is there {times} times"


def no_action_vanishes(history: History) -> Iterator[str]:
    """6. Every interrupted external call was settled, or waits; in the end none is left as if it were running."""
    for agent, log in history.logs.items():
        now = {each.body.get("key"): each for each in _actions(log)}
        if history.ended:
            for each in now.values():
                if each.body.get("class") == "external" and each.body.get("status") == "started":
                    yield f"{agent}: {each.key} was interrupted, and nobody settled it"
        for deed in history.deeds.get(agent, ()):
            if deed["what"] == "effect" and deed["key"] not in now:
                yield f"{agent}: {deed['step']} happened, and the log does not know of it"


# -- 9 and 10: briefings -----------------------------------------------------------------------------


def briefings_keep_their_budget(history: History) -> Iterator[str]:
    """9. No briefing is larger than its budget. (What it costs to make is the latency bench's question.)"""
    for life in history.lives.values():
        for ack in life.of("briefing"):
            if ack["tokens"] > ack["budget"]:
                yield f"{life.worker}: a briefing of {ack['tokens']} tokens for a budget of {ack['budget']}"


def stored_text_is_data(history: History) -> Iterator[str]:
    """10. Every briefing reads back as one, whatever was stored: no heading, label or control sequence is forged."""
    for life in history.lives.values():
        yield from (f"{life.worker}: {ack['forged']}" for ack in life.of("briefing") if ack["forged"])


def nobody_fails_otherwise(history: History) -> Iterator[str]:
    """A process is only ever told what it can act upon: no other exception than those that say what to do next."""
    for life in history.lives.values():
        yield from (f"{life.worker}: {ack['problem']}" for ack in life.of("crashed"))


ALL: tuple[Invariant, ...] = (
    fence,
    only_the_holder_writes,
    the_overtaken_are_refused,
    lsns_are_dense,
    chains_hold,
    numbers_are_dense,
    nothing_is_rewritten,
    epochs_rise,
    epochs_are_given_once,
    intents_come_first,
    nothing_happens_twice,
    first_close_wins,
    outcomes_are_true,
    nothing_acknowledged_is_lost,
    turns_are_there_once,
    no_action_vanishes,
    briefings_keep_their_budget,
    stored_text_is_data,
    nobody_fails_otherwise,
)


def broken(history: History) -> list[str]:
    """What is wrong with a history, each with the name of the invariant."""
    return [f"{each.__name__}: {found}" for each in ALL for found in each(history)]


def _lives_of(history: History, agent: str) -> list[Life]:
    return [each for each in history.lives.values() if each.agent == agent]


def _acquisitions(log: Log) -> list[Entry]:
    return [each for each in log.entries if each.kind == LEASE and each.body.get("event") == "acquired"]


def _actions(log: Log) -> Iterator[Entry]:
    return (each for each in log.entries if each.kind == ACTION)


def _marks(log: Log) -> dict[str, Entry]:
    """The first record that has each mark; later ones carry it along (a state's notes, an action's arguments)."""
    marks: dict[str, Entry] = {}
    for each in log.entries:
        for uid in each.uids:
            marks.setdefault(uid, each)
    return marks


def _outcome(entry: Entry) -> tuple[object, ...]:
    names = ("key", "status", "result", "result_ref", "error", "resolution", "by")
    return tuple(json.dumps(entry.body.get(name)) if name == "result" else entry.body.get(name) for name in names)
