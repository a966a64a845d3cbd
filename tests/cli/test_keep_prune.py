"""``recall prune``, ``restore`` and ``export --at`` as people meet them, and what refuses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.client import Client
from tests.conftest import Run
from tests.keeping import problems

AGENT = "billing"


@pytest.fixture
def store(environment: dict[str, str]) -> Path:
    """A store whose agent changed its mind once, with a step that is done and a call that is open."""
    directory = Path(environment["RECALL_DIR"])
    with Client(local_dir=directory) as client, client.resume(AGENT) as one:
        one.update_working_state(goal="first goal")
        one.set_pointer("wip", "git_ref", {"repo": "r", "branch": "one"})
        done = one.begin_action("deploy", "external", step="deploy-v2")
        one.end_action(done.seq, "done", "deployed")
        one.begin_action("email", "external", {"to": "a@example.org"})
        for number in range(30):
            one.record_turn("assistant", f"turn {number}")
        one.update_working_state(goal="second goal")
        one.set_pointer("wip", "git_ref", {"repo": "r", "branch": "two"})
        one.set_pointer("new", "external", {"id": "7"})
    return directory


def lsns(directory: Path) -> tuple[int, int]:
    """The first and the last lsn of the log."""
    with SqliteBackend(directory, read_only=True) as backend:
        return next(backend.log(AGENT)).lsn, backend.counters(AGENT).lsn


def test_a_dry_run_shows_what_goes_and_what_is_kept(store: Path, run_recall: Run) -> None:
    """Counts, bytes, and per kind what is written again; nothing is changed, and without a terminal --yes is needed."""
    before = lsns(store)
    ended = run_recall("prune", AGENT, "--before", "40", "--keep-turns", "3", "--dry-run", "--json")
    said = json.loads(ended.out)
    assert (ended.code, said["base"], said["records"]) == (0, 39, 39)
    assert said["kinds"]["turn"]["kept"] <= 3
    assert said["kinds"]["step"]["kept"] == 1
    assert said["bytes"] > 1000
    shown = run_recall("prune", AGENT, "--before", "40", "--dry-run")
    assert [line.split("\t")[0::3] for line in shown.out.splitlines() if line.startswith("step")] == [["step", "1"]]
    assert "nothing was changed" in shown.err
    refused = run_recall("prune", AGENT, "--before", "40")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert lsns(store) == before


def test_a_pruned_log_is_read_as_before(store: Path, run_recall: Run) -> None:
    """After a prune every look command works, the briefing has what it needs, and the log says where it begins."""
    _, last = lsns(store)
    ended = run_recall("prune", AGENT, "--before", "0s", "--reason", "retention", "--yes", "--shrink")
    assert ended.code == 0, ended.err
    assert f"begins above lsn {last}" in ended.err
    assert problems(store) == []
    for words in (
        ("state", "show", AGENT),
        ("state", "history", AGENT),
        ("turns", "list", AGENT),
        ("log", AGENT, "--all"),
        ("log", AGENT, "--since", "1"),
        ("records", AGENT),
        ("actions", "list", AGENT),
        ("agents", "show", AGENT),
        ("doctor",),
    ):
        looked = run_recall(*words)
        assert looked.code == 0, words
        if words[0] == "log" or words[:2] == ("state", "history"):
            assert looked.err.startswith(f"what was written up to lsn {last} was pruned by "), words
        else:
            assert looked.err == "", words
    briefing = run_recall("briefing", AGENT).out
    assert "Goal: second goal" in briefing
    assert "email" in briefing
    assert "verbatim\n(the first 10 were pruned: `recall turns list billing`)\n[assistant #11] turn 10\n" in briefing
    assert f"begins above lsn {last} (pruned)" in run_recall("verify").out
    said = json.loads(run_recall("log", AGENT, "--kind", "lifecycle", "--jsonl").out)
    assert json.loads(json.loads(said["line"])["body"])["reason"] == "retention"
    again = run_recall("prune", AGENT, "--before", str(last), "--yes")
    assert (again.code, "nothing is that old" in again.err) == (0, True)


def test_a_pruned_step_is_replayed_by_run(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """A step that was done before everything was pruned does not run its command again."""
    ran = tmp_path / "ran"
    words = ("run", "-a", AGENT, "--class", "external", "--step", "touch", "--", "touch", str(ran))
    assert run_recall(*words).code == 0
    ran.unlink()
    assert run_recall("prune", AGENT, "--before", "0s", "--yes").code == 0
    assert run_recall(*words).code == 0
    assert not ran.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("prune", "nobody", "--before", "5", "--yes"), 3, "nobody"),
        (("prune", AGENT, "--before", "soon", "--yes"), 2, "neither a time nor a duration"),
        (("prune", AGENT, "--before", "1", "--yes"), 0, "nothing is that old"),
        (("prune", AGENT, "--yes"), 2, "--before"),
        (("restore", AGENT, "--at", "9999", "--yes"), 2, "has no lsn 9999"),
        (("export", "--at", "3"), 2, "name that agent"),
        (("export", AGENT, "--at", "9999"), 2, "has no lsn 9999"),
        (("verify", "--remote"), 3, "not attached"),
        (("verify", "--remote", "--head", "1:" + "0" * 64), 2, "--remote"),
        (("sync", "collect"), 3, "not attached"),
        (("sync", "collect", "--grace", "1s"), 2, "at least 1h"),
    ],
)
def test_refusals_are_one_line(store: Path, run_recall: Run, words: tuple[str, ...], code: int, said: str) -> None:
    """What cannot be done is said with what to do, and changes nothing."""
    before = lsns(store)
    ended = run_recall(*words)
    assert (ended.code, said in ended.err) == (code, True), ended
    assert lsns(store) == before


def test_notes_of_an_earlier_record_come_back(store: Path, run_recall: Run) -> None:
    """State and pointers of then are written again; actions, turns and later pointers stay as they are."""
    with SqliteBackend(store, read_only=True) as backend:
        at = next(each.lsn for each in backend.log(AGENT) if each.kind == "turn")
    before = run_recall("actions", "list", AGENT).out
    dry = run_recall("restore", AGENT, "--at", str(at), "--dry-run", "--json")
    assert json.loads(dry.out) == {"agent": AGENT, "at": at, "version": 1, "pointers": ["wip"], "later": ["new"]}
    ended = run_recall("restore", AGENT, "--at", str(at), "--yes")
    assert ended.code == 0, ended.err
    state = json.loads(run_recall("state", "show", AGENT, "--json").out)
    assert (state["goal"], state["version"], state["turn_seq"]) == ("first goal", 3, 30)
    pointers = json.loads(run_recall("pointers", "list", AGENT, "--json").out)
    assert {each["name"]: each["fields"] for each in pointers} == {
        "new": {"id": "7"},
        "wip": {"repo": "r", "branch": "one"},
    }
    assert run_recall("actions", "list", AGENT).out == before
    again = run_recall("restore", AGENT, "--at", str(lsns(store)[1]), "--yes")
    assert (again.code, "they are the present ones" in again.err) == (0, True)
    assert problems(store) == []


def test_a_copy_up_to_a_record_is_read_elsewhere(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """The copy ends at that record, byte for byte, of a pruned log too, and is imported into another directory."""
    assert run_recall("prune", AGENT, "--before", "10", "--yes").code == 0
    file, other = str(tmp_path / "copy.jsonl"), str(tmp_path / "other")
    assert run_recall("export", AGENT, "--at", "20", "-o", file).code == 0
    assert run_recall("import", file, "--dir", other).code == 0
    assert problems(Path(other)) == []
    with SqliteBackend(store, read_only=True) as a, SqliteBackend(other, read_only=True) as b:
        lines = [each.line for each in a.log(AGENT) if each.lsn <= 20]
        assert [each.line for each in b.log(AGENT)] == lines
        assert len(lines) == 11
