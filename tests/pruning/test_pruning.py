"""Retention: what a prune takes away, what it must not, and what stops it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from store import asides
from store.access import once
from store.backends.sqlite import SqliteBackend
from store.errors import BadRecord, Corrupt, NotFound, Stale
from store.pruning import base_before, plan, prune
from store.records import ACTION, LIFECYCLE, PRUNED, STEP
from store.restore import restore
from store.transfer import export
from store.verify import Saved
from tests.engine import SetClock
from tests.keeping import checked, problems, set_aside, tampering
from tests.pruning.conftest import AGENT, acting, prune_stopped


def test_what_is_needed_survives_and_the_rest_goes(backend: SqliteBackend, directory: Path) -> None:
    """After a prune of everything the agent goes on as before: state, pointers, outputs, actions, numbers, keys."""
    before = acting(backend)
    state, pointers, turns = before.view.working_state(), before.pointers(), before.recent_turns(5)
    pending = {each.seq: each for each in before.view.pending()}
    outputs, _ = before.view.outputs()
    before.release()
    counters, whole = backend.counters(AGENT), sum(1 for _ in backend.log(AGENT))

    done = prune(backend, AGENT, counters.lsn, keep_turns=5, by="ops@host", reason="retention")

    assert done.base == counters.lsn
    assert done.going.records == whole
    assert next(backend.log(AGENT)).lsn == counters.lsn + 1
    assert problems(directory) == []
    after = acting(backend)
    assert after.view.working_state() == state
    assert after.pointers() == pointers
    assert after.recent_turns(100) == turns
    assert {each.seq: each for each in after.view.pending()} == pending
    gone = {"act-3-result"}  # of the call that was closed, and no step
    assert [each for each in outputs if each.ref not in gone] == after.view.outputs()[0]
    assert after.fetch_output("report").content == "o" * 50_000
    assert after.open_run() == "run-1"
    assert after.tool_class("deploy") == "external"
    assert after.view.action(1).result_ref
    assert after.fetch_output(after.view.action(1).result_ref).content.startswith("deployed")
    with pytest.raises(NotFound):
        after.view.action(3)  # closed, and no step
    turn = after.record_turn("user", "next")
    assert turn.seq == counters.turns + 1
    assert after.begin_action("x", "pure").seq == counters.actions + 1
    assert after.update_working_state(step=2).version == counters.version + 1
    after.release()
    assert problems(directory) == []


def test_a_pruned_step_replays_and_is_not_run_again(backend: SqliteBackend) -> None:
    """A step whose every record was pruned still answers with its outcome; a failed one still waits for a decision."""
    prune(backend, AGENT, backend.counters(AGENT).lsn, keep_turns=0)
    one = acting(backend)
    again = one.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2")
    assert (again.status, again.seq) == ("done", 1)
    with pytest.raises(Exception, match="failed before"):
        one.begin_action("notify", "external", step="notify")
    idempotent = next(each for each in one.view.pending() if each.tool == "charge")
    one.release()
    assert idempotent.key
    assert [each.status for each in one.view.pending()] == ["unknown", "started"]


def test_a_pruned_step_would_run_again_if_it_were_not_carried(backend: SqliteBackend) -> None:
    """The cut itself refuses while anything that is needed lies below it, so that no caller can forget to carry."""
    base = backend.counters(AGENT).lsn - 1

    def before() -> None:
        if plan(backend, AGENT, base).kept.get(STEP):
            raise Stale(key="step", expected="none", found="one")

    with pytest.raises(Stale):
        once(backend, AGENT, lambda one: backend.cut(one._keeper.fence, base, before, lambda: None))
    assert next(backend.log(AGENT)).lsn == 1


def test_each_record_that_is_written_again_cites_the_first(backend: SqliteBackend, directory: Path) -> None:
    """It names lsn, hash and time of the record that it stands for; after more prunes still the first one's time."""
    hashes = {each.lsn: (each.hash.hex(), each.key) for each in backend.log(AGENT)}
    prune(backend, AGENT, 20)
    carried = [each for each in backend.log(AGENT) if "carried" in each.fields()]
    assert len(carried) > 5
    for each in carried:
        cited = each.fields()["carried"]
        assert hashes[cited["lsn"]] == (cited["hash"], each.key)
    written = acting(backend)
    at = written.view.working_state().updated_at
    written.release()
    prune(backend, AGENT, backend.counters(AGENT).lsn)
    assert acting(backend).view.working_state().updated_at == at
    assert problems(directory) == []


def test_a_record_that_cites_another_one_is_found(backend: SqliteBackend, directory: Path) -> None:
    """A record that claims to stand for one that says something else is damage."""
    last = backend.counters(AGENT).lsn
    with pytest.raises(Stale):  # so that the log is whole, and carries
        prune_stopped(backend, last)
    assert problems(directory) == []
    with tampering(directory) as connection:
        (lsn, line) = connection.execute(
            "SELECT lsn, line FROM records WHERE kind = 'step' AND instr(line, 'carried') LIMIT 1"
        ).fetchone()
        other = connection.execute("SELECT hash FROM records WHERE lsn = 3").fetchone()[0].hex()
        import json
        import re

        parsed = json.loads(line)
        parsed["body"] = re.sub(r'"hash":"[0-9a-f]{64}"', f'"hash":"{other}"', parsed["body"])
        text = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        connection.execute("UPDATE records SET line = ? WHERE lsn = ?", (text, lsn))
    assert any("which is another record" in each for each in problems(directory))


def test_a_dry_run_tells_what_happens_and_changes_nothing(backend: SqliteBackend) -> None:
    """The plan's counts are those of the prune, and planning writes nothing."""
    before = list(backend.log(AGENT))
    base = before[-1].lsn
    planned = plan(backend, AGENT, base, keep_turns=3)
    assert list(backend.log(AGENT)) == before
    done = prune(backend, AGENT, base, keep_turns=3)
    assert (planned.base, planned.kept) == (done.base, done.kept)
    assert planned.going == done.going
    assert done.going.blobs > 0
    assert planned.kept["turn"] == 3


def test_a_time_says_which_records_go(tmp_path: Path) -> None:
    """What was written before a time goes; the first record at or after it stays."""
    clock = SetClock()
    backend = SqliteBackend(tmp_path / "s", clock=clock)
    with_days = []
    for _ in range(5):
        once(backend, AGENT, lambda one: one.record_turn("user", "x"))
        with_days.append(backend.counters(AGENT).lsn)
        clock.move(86_400)
    assert base_before(backend, AGENT, "2026-11-05T00:00:00Z") == with_days[1]
    assert base_before(backend, AGENT, "2020-01-01T00:00:00Z") == 0
    assert base_before(backend, AGENT, "2030-01-01T00:00:00Z") == with_days[-1]
    backend.close()


def test_a_damaged_log_is_not_pruned(backend: SqliteBackend, directory: Path) -> None:
    """Nothing is taken away from a log that is not sound: what is wrong may be in what would go."""
    backend.close()
    with tampering(directory) as connection:
        connection.execute("UPDATE records SET line = replace(line, 'turn 7', 'turn 8') WHERE kind = 'turn'")
    again = SqliteBackend(directory)
    with pytest.raises(Corrupt, match="nothing was pruned"):
        prune(again, AGENT, 20)
    assert next(again.log(AGENT)).lsn == 1
    again.close()


def test_space_is_given_back(backend: SqliteBackend, directory: Path) -> None:
    """After a shrink the file is smaller, and every record is there."""
    once(backend, AGENT, lambda one: one.store_output("s" * 3_000_000, ref="large"))
    once(backend, AGENT, lambda one: one.store_output("small", ref="large", replace=True))
    done = prune(backend, AGENT, backend.counters(AGENT).lsn)
    assert done.going.blob_bytes >= 3_000_000
    assert backend.shrink() > 2_500_000
    once(backend, AGENT, lambda one: one.record_turn("user", "after"))
    assert problems(directory) == []


def test_what_was_set_aside_is_kept(backend: SqliteBackend, directory: Path) -> None:
    """Evidence from before the new beginning stays, is listed, read and exported as before."""
    backend.close()
    set_aside(directory, AGENT, 30, "diverged")
    again = SqliteBackend(directory)
    before = asides.asides(again, AGENT)
    records = list(asides.records(again, before[0]))
    prune(again, AGENT, again.counters(AGENT).lsn)
    assert problems(directory) == []
    assert asides.asides(again, AGENT) == before
    assert [each.line for each in asides.records(again, before[0])] == [each.line for each in records]
    assert b"".join(asides.export(again, before[0]))
    again.close()


def test_a_pruned_log_is_exported_and_imported(backend: SqliteBackend, directory: Path, tmp_path: Path) -> None:
    """An export of a pruned log, with what was set aside before, is imported into a store that goes on with it."""
    backend.close()
    set_aside(directory, AGENT, 30, "diverged")
    again = SqliteBackend(directory)
    prune(again, AGENT, again.counters(AGENT).lsn - 1)
    prune(again, AGENT, again.counters(AGENT).lsn - 1)
    lines = [each.line for each in again.log(AGENT)]
    file = io.BytesIO(b"".join(export(again)))
    again.close()
    other = SqliteBackend(tmp_path / "other")
    restore(other, file)
    assert [each.line for each in other.log(AGENT)] == lines
    one = acting(other)
    assert one.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2").status == "done"
    one.release()
    assert problems(tmp_path / "other") == []
    prune(other, AGENT, other.counters(AGENT).lsn)
    other.close()
    assert problems(tmp_path / "other") == []


def test_where_two_lineages_meet_the_older_ones_last_record_stays(
    backend: SqliteBackend, directory: Path, tmp_path: Path
) -> None:
    """A log that was imported and went on is pruned on either side of the seam, and at it."""
    seam = backend.counters(AGENT).lsn
    data = b"".join(export(backend))
    for base in (seam - 2, seam, seam + 1):
        place = tmp_path / str(base)
        other = SqliteBackend(place)
        restore(other, io.BytesIO(data))
        for text in "abc":
            once(other, AGENT, lambda one, text=text: one.record_turn("user", text))  # type: ignore[misc]
        done = prune(other, AGENT, base)
        assert done.base == base - (base == seam)
        assert next(other.log(AGENT)).lsn == done.base + 1
        other.close()
        assert problems(place) == []


def test_verify_says_where_a_log_begins(backend: SqliteBackend, directory: Path) -> None:
    """A head that was saved before the beginning cannot be checked, and verify says so; the beginning's own can."""
    hashes = {each.lsn: each.hash.hex() for each in backend.log(AGENT)}
    prune(backend, AGENT, 20)
    assert checked(directory, AGENT).base == 20
    assert problems(directory, AGENT, head=Saved(20, hashes[20])) == []
    assert problems(directory, AGENT, head=Saved(21, hashes[21])) == []
    assert "in what was pruned" in problems(directory, AGENT, head=Saved(19, hashes[19]))[0]
    assert "goes on from" in problems(directory, AGENT, head=Saved(20, hashes[19]))[0]
    said = backend.newest(AGENT, LIFECYCLE, name=PRUNED)
    assert said is not None
    assert (said.fields()["lsn"], said.fields()["hash"]) == (20, hashes[20])


def test_a_hole_in_a_pruned_log_is_found(backend: SqliteBackend, directory: Path) -> None:
    """A record that is missing right after the beginning is a loss, whatever was pruned before it."""
    prune(backend, AGENT, 20)
    with tampering(directory) as connection:
        connection.execute("DELETE FROM records WHERE lsn = 21")
    assert any("missing before it" in each for each in problems(directory))


def test_no_bad_record_stands_in_the_way_of_a_reader(backend: SqliteBackend) -> None:
    """Nothing that a prune writes is bad to those who read it."""
    bad: list[BadRecord] = []
    prune(backend, AGENT, backend.counters(AGENT).lsn)
    backend.on_bad_record = bad.append
    one = acting(backend)
    assert one.refresh().briefing
    assert list(one.view.actions())
    assert list(one.view.states())
    assert backend.history(AGENT, ACTION, seq=1)
    one.release()
    assert not bad
