"""The soak in a few seconds, and the proof that what checks it is not blind."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.soak.__main__ import COLUMNS, kept, soak, table
from bench.soak.ground import Ground, Machines
from bench.soak.history import Entry, History, Life, Log
from bench.soak.invariants import ALL, broken
from bench.soak.outside import UNSURE, Fence, Outside, main
from bench.soak.plan import events
from store.canonical import encode_line, first_hash, key_of, next_hash
from tests.shipping.servers import shared_server

SEED, SECONDS = 7, 4.0
AGENT = "bot"


# -- the quick form -----------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite", "bucket"])
def test_a_few_seconds_of_it_break_nothing(
    store: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Real processes are killed, stopped and overtaken; every invariant holds, and the table has all its columns."""
    if store == "sqlite":
        done = soak(Ground(tmp_path), SEED, SECONDS)
    else:
        with Machines(tmp_path, shared_server("seaweedfs", tmp_path_factory)) as ground:
            done = soak(ground, SEED, SECONDS)
    found = table(done, SECONDS / 60)
    [row] = found.rows
    assert len(row) == len(COLUMNS)
    told = dict(zip(COLUMNS, row, strict=True))
    assert (told["store"], told["seed"], told["violations"]) == (store, str(SEED), 0)
    for column in ("processes started", "records acknowledged", "external effects", "invariant checks"):
        assert int(told[column]) > 0, column
    assert all(any(life.acks for life in done.history.lives.values() if life.agent == each) for each in done.agents)


def test_a_seed_is_a_plan() -> None:
    """The same events for the same seed, others for another one; all kinds come."""
    first = list(itertools.islice(events(1, "bucket"), 2000))
    assert first == list(itertools.islice(events(1, "bucket"), 2000))
    assert first != list(itertools.islice(events(2, "bucket"), 2000))
    assert {"kill", "stop", "stop and take over", "lose", "restore", "fault"} <= {each.kind for each in first}
    assert "fault" not in {each.kind for each in itertools.islice(events(1, "sqlite"), 500)}


def test_the_directory_of_a_violation_stays_beside_that_of_an_earlier_one(tmp_path: Path) -> None:
    """One seed may break twice; each is kept whole."""
    for number in (1, 2, 3):
        place = tmp_path / "place"
        place.mkdir()
        (place / f"file-{number}").touch()
        kept(place, "sqlite-7")
    found = {each.name: [file.name for file in each.iterdir()] for each in tmp_path.iterdir()}
    assert found == {
        ".bench-soak-sqlite-7": ["file-1"],
        ".bench-soak-sqlite-7-2": ["file-2"],
        ".bench-soak-sqlite-7-3": ["file-3"],
    }


# -- the world outside --------------------------------------------------------------------------------


def test_the_world_outside_refuses_who_was_overtaken_and_nobody_else(tmp_path: Path) -> None:
    """Its fence is the highest that acted or asked; a second external call with one key it does not hide."""
    world = Outside(tmp_path / "outside")
    assert world.call("k", Fence(1, 5), step="s", class_="external") == "effect"
    assert world.call("k", Fence(1, 5), step="s", class_="external") == "effect"
    assert world.call("i", Fence(1, 6), step="t", class_="idempotent") == "effect"
    assert world.call("i", Fence(2, 9), step="t", class_="idempotent") == "again"
    assert world.asked("k", Fence(3)) and not world.asked("other", Fence(3))
    assert world.call("late", Fence(2, 10), step="u", class_="external") == "refused"
    assert world.call("new", Fence(3, 1), step="v", class_="external") == "effect"
    told = [json.loads(line)["what"] for line in (tmp_path / "outside").read_text().splitlines()]
    assert told == ["effect", "effect", "effect", "again", "asked", "asked", "refused", "effect"]


def test_a_resolver_of_a_shell_cannot_always_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it knows, or 2, as the seed has it; and then it has not asked, so that nothing is fenced."""
    file = tmp_path / "outside"
    monkeypatch.setenv("RECALL_IDEMPOTENCY_KEY", "k")
    monkeypatch.setenv("RECALL_LEASE", "store:lineage:3:incarnation")
    codes = []
    for seed in range(40):
        monkeypatch.setenv("SEED", str(seed))
        codes.append(main(["asked", str(file)]))
    assert set(codes) == {1, 2} and 2 <= codes.count(2) <= 80 // UNSURE
    assert len(file.read_text().splitlines()) == codes.count(1)


# -- doctored histories -------------------------------------------------------------------------------


class Made:
    """A history that is made by hand, sound unless it is doctored: two lives, one action, a takeover."""

    first: Life
    second: Life

    def __init__(self, store: str = "sqlite") -> None:
        self.history = History(store, ended=True)
        self.log = self.history.log(AGENT)
        self.log.first = first_hash("ab" * 16, AGENT)
        self.add("lease", 1, {"event": "acquired", "holder": "w1"}, epoch=1)
        self.add("turn", 1, {"content": "[[w1.1]]"}, epoch=1)
        self.add("action", 1, {**CALL, "status": "started"}, epoch=1)
        self.add("lease", 2, {"event": "acquired", "holder": "w2"}, epoch=2)
        self.add("action", 1, {**CALL, "status": "unknown"}, epoch=2)
        self.add("action", 1, {**CALL, "status": "done", "result": "[[w2.1]]"}, epoch=2)
        self.add("turn", 2, {"content": "[[w2.2]]"}, epoch=2)
        self.first = self.life("w1", [
            {"what": "lease", "event": "acquired", "epoch": 1},
            {"what": "briefing", "tokens": 500, "budget": 512, "forged": ""},
            {"what": "record", "uid": "w1.1", "kind": "turn"},
            {"what": "begun", "seq": 1, "key": "k1", "class": "external", "step": "job-1"},
            {"what": "runs", "seq": 1, "key": "k1", "class": "external"},
            {"what": "refused", "code": "lease_lost"},
            {"what": "ended"},
        ])  # fmt: skip
        self.first.overtaken = True
        self.second = self.life("w2", [
            {"what": "lease", "event": "acquired", "epoch": 2},
            {"what": "resolved", "seq": 1, "key": "k1", "status": "done"},
            {"what": "record", "uid": "w2.2", "kind": "turn"},
            {"what": "released", "held": True},
            {"what": "ended"},
        ])  # fmt: skip
        self.history.deeds[AGENT] = [
            {"what": "effect", "key": "k1", "epoch": 1, "lsn": 3, "step": "job-1", "class": "external"}
        ]
        self.log.before = len(self.log.entries)
        self.log.again = list(self.log.entries)

    def add(self, kind: str, seq: int, body: dict[str, Any], *, epoch: int) -> None:
        """A record at the end, as the store would write it."""
        lsn, link = self.log.last
        line = encode_line(
            agent=AGENT, at="t", body=json.dumps(body), epoch=epoch, key=key_of(kind, seq, ""), kind=kind, lsn=lsn + 1
        )
        self.log.entries.append(Entry.of(line, next_hash(link, line)))
        self.log.before = len(self.log.entries)

    def life(self, worker: str, acks: list[dict[str, Any]]) -> Life:
        self.history.lives[worker] = Life(worker, AGENT, "machine-0.0", acks=acks)
        return self.history.lives[worker]

    def deed(self, **changed: Any) -> None:
        self.history.deeds[AGENT].append({**self.history.deeds[AGENT][0], **changed})


CALL = {"tool": "email", "class": "external", "key": "k1", "args": "{}"}


def drop(log: Log, lsn: int) -> None:
    del log.entries[lsn - 1]


def change(log: Log, lsn: int) -> None:
    entry = log.entries[lsn - 1]
    log.entries[lsn - 1] = dataclasses.replace(entry, line=entry.line.replace(b"w1.1", b"w9.9"))


DOCTORED: list[tuple[str, Callable[[Made], Any]]] = [
    ("fence", lambda it: it.add("turn", 3, {"content": "late"}, epoch=1)),
    ("fence", lambda it: it.add("turn", 3, {"content": "never begun"}, epoch=3)),
    ("only_the_holder_writes", lambda it: it.second.acks.append({"what": "record", "uid": "w1.1", "kind": "turn"})),
    ("the_overtaken_are_refused", lambda it: it.first.acks.remove({"what": "refused", "code": "lease_lost"})),
    ("the_overtaken_are_refused", lambda it: it.first.acks.append({"what": "record", "uid": "w1.1", "kind": "turn"})),
    ("lsns_are_dense", lambda it: drop(it.log, 2)),
    ("chains_hold", lambda it: change(it.log, 2)),
    ("numbers_are_dense", lambda it: it.add("turn", 4, {}, epoch=2)),
    ("numbers_are_dense", lambda it: it.add("action", 3, {**CALL, "status": "started"}, epoch=2)),
    ("nothing_is_rewritten", lambda it: it.log.again.pop() if it.log.again else None),
    ("epochs_rise", lambda it: it.add("lease", 1, {"event": "acquired", "holder": "w3"}, epoch=1)),
    ("epochs_rise", lambda it: it.add("lease", 2, {"event": "acquired", "holder": "w3"}, epoch=2)),
    ("epochs_are_given_once", lambda it: it.first.acks.append({"what": "lease", "event": "again", "epoch": 2})),
    ("epochs_are_given_once", lambda it: it.first.acks.append({"what": "lease", "event": "again", "epoch": 9})),
    ("intents_come_first", lambda it: it.deed(key="k2", step="job-2")),
    ("intents_come_first", lambda it: it.history.deeds[AGENT][0].update(lsn=2)),
    ("nothing_happens_twice", lambda it: it.deed()),
    ("nothing_happens_twice", lambda it: it.deed(key="k2")),
    (
        "nothing_happens_twice",
        lambda it: it.second.acks.append({"what": "runs", "seq": 1, "key": "k1", "class": "external"}),
    ),
    ("first_close_wins", lambda it: it.add("action", 1, {**CALL, "status": "abandoned"}, epoch=2)),
    ("first_close_wins", lambda it: it.add("action", 1, {**CALL, "status": "started"}, epoch=2)),
    ("outcomes_are_true", lambda it: it.history.deeds[AGENT].clear()),
    ("outcomes_are_true", lambda it: it.add("action", 1, {**CALL, "status": "abandoned"}, epoch=2)),
    ("nothing_acknowledged_is_lost", lambda it: it.first.acks.insert(3, {"what": "record", "uid": "w1.2"})),
    ("nothing_acknowledged_is_lost", lambda it: it.first.acks.append({"what": "begun", "seq": 2, "key": "k2"})),
    (
        "nothing_acknowledged_is_lost",
        lambda it: it.second.acks.insert(3, {"what": "closed", "uid": "w2.9", "seq": 1, "key": "k1"}),
    ),
    ("turns_are_there_once", lambda it: it.add("turn", 3, {"content": "[[w2.2]]"}, epoch=2)),
    ("no_action_vanishes", lambda it: it.deed(key="k2", step="job-2")),
    ("no_action_vanishes", lambda it: it.add("action", 2, {**CALL, "key": "k2", "status": "started"}, epoch=2)),
    (
        "briefings_keep_their_budget",
        lambda it: it.second.acks.append({"what": "briefing", "tokens": 513, "budget": 512, "forged": ""}),
    ),
    (
        "stored_text_is_data",
        lambda it: it.second.acks.append({"what": "briefing", "tokens": 5, "budget": 512, "forged": "a heading"}),
    ),
    ("nobody_fails_otherwise", lambda it: it.first.acks.append({"what": "crashed", "problem": "Traceback"})),
]


@pytest.mark.parametrize("store", ["sqlite", "bucket"])
def test_a_sound_history_is_found_sound(store: str) -> None:
    """Nothing is reported where nothing is wrong, or no other test here would mean anything."""
    assert broken(Made(store).history) == []


@pytest.mark.parametrize(("name", "doctor"), DOCTORED, ids=[f"{n}-{name}" for n, (name, _) in enumerate(DOCTORED)])
def test_a_doctored_history_is_reported(name: str, doctor: Callable[[Made], Any]) -> None:
    """Whatever an invariant forbids is found by the function of its name."""
    it = Made()
    doctor(it)
    assert name in {each.partition(":")[0] for each in broken(it.history)}


def test_every_invariant_is_doctored() -> None:
    """None is left whose eyes nobody has tried."""
    assert {each.__name__ for each in ALL} == {name for name, _ in DOCTORED}


def test_on_a_bucket_only_what_was_promised_has_to_be_there() -> None:
    """After its last barrier a record may be set aside, if that is shown, or go with its machine; before it, never."""
    lazy = {"what": "record", "uid": "w1.2", "kind": "turn"}
    it = Made("bucket")
    it.first.acks.insert(4, lazy)  # after the barrier of job-1
    assert "neither in the log nor shown as set aside" in broken(it.history)[0]
    it.history.kept.add("w1.2")
    assert broken(it.history) == []
    it.history.kept.clear()
    it.first.lost = True
    assert broken(it.history) == []
    it.first.acks.remove(lazy)
    it.first.acks.insert(3, lazy)  # before it
    assert "is not in the log" in broken(it.history)[0]
