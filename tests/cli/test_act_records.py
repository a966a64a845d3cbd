"""state set, milestone, turns add, pointers set and rm, outputs put."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cli.acting import document, looking, lsn, session
from tests.conftest import COMMAND, Run


def test_fields_left_out_are_kept_and_lists_are_replaced(run_recall: Run, tmp_path: Path) -> None:
    """A new version of the working state keeps what the command does not name, and replaces a list as a whole."""
    run_recall("state", "set", "-a", "x", "--goal", "g", "--plan", "a", "--plan", "b", "--step", "3")
    done = run_recall("state", "set", "-a", "x", "--plan", "c", "--decision", "d", "--question", "q")
    assert (done.code, done.out) == (0, "")
    assert "working state of x is now version 2: plan, decisions, open_questions" in done.err
    assert "→ recall state show x" in done.err
    with looking(tmp_path) as view:
        state = view.working_state()
    assert (state.goal, state.plan, state.decisions, state.open_questions, state.step) == (
        "g",
        ("c",),
        ("d",),
        ("q",),
        3,
    )


def test_clear_empties_fields(run_recall: Run) -> None:
    """--clear empties exactly the fields that it names."""
    run_recall("state", "set", "-a", "x", "--goal", "g", "--plan", "a", "--step", "3", "--notes", "n")
    state = document(run_recall("state", "set", "-a", "x", "--clear", "plan", "--clear", "step", "--json"))
    assert (state["goal"], state["plan"], state["step"], state["notes"], state["version"]) == ("g", [], 0, "n", 2)


def test_fields_come_from_json_standard_input_and_files(run_recall: Run, tmp_path: Path) -> None:
    """A JSON object sets fields beside the flags; a text may come from a file."""
    (tmp_path / "notes").write_text("two\nlines\n")
    given = json.dumps({"goal": "ü", "plan": ["1", "2"]})
    done = run_recall(
        "state", "set", "-a", "x", "--json-fields", "-", "--notes", "@notes", "--focus", "@@f", "--json", input=given
    )
    state = document(done)
    assert (state["goal"], state["plan"], state["notes"], state["focus"]) == ("ü", ["1", "2"], "two\nlines\n", "@f")


def test_processes_that_add_to_one_list_lose_nothing(
    run_recall: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """--add-plan appends to what is there at the moment of the write, whoever wrote it."""
    env = {**environment, **session(run_recall)}
    writers = [
        subprocess.Popen([COMMAND, "state", "set", "--add-plan", str(n), "--add-question", "?"], env=env, stderr=-3)
        for n in range(6)
    ]
    assert [each.wait() for each in writers] == [0] * 6
    with looking(tmp_path) as view:
        state = view.working_state()
    assert sorted(state.plan) == [str(n) for n in range(6)]
    assert state.open_questions == ("?",) * 6


def test_a_milestone_is_a_version_with_progress(run_recall: Run) -> None:
    """milestone sets the last milestone and, if told, the progress, and keeps the rest."""
    run_recall("state", "set", "-a", "x", "--goal", "g")
    state = document(run_recall("milestone", "half way", "-a", "x", "--progress", "6 of 12", "--json"))
    assert (state["goal"], state["last_milestone"], state["progress"]) == ("g", "half way", "6 of 12")
    assert state["is_milestone"] is True


def test_a_turn_is_recorded_verbatim(run_recall: Run, tmp_path: Path) -> None:
    """A turn from standard input keeps every byte, with its name, id and brief."""
    content = "line\r\n\ttab \x1b[31m ü\n\n"
    run_recall(
        *("turns", "add", "-a", "x", "--role", "tool", "--name", "grep", "--message-id", "m 1", "--brief", "b", "-"),
        input=content,
    )
    with looking(tmp_path) as view:
        turn = view.turn(1)
    assert (turn.role, turn.content, turn.name, turn.message_id, turn.brief) == ("tool", content, "grep", "m 1", "b")


def test_a_large_turn_becomes_an_output(run_recall: Run, tmp_path: Path) -> None:
    """A turn over the threshold says where it is whole."""
    done = run_recall("turns", "add", "-a", "x", "--role", "user", "-", input="x" * 10_000_000)
    assert (done.code, "whole in output out-1-1" in done.err) == (0, True)
    with looking(tmp_path) as view:
        assert len(view.output("out-1-1").content) == 10_000_000


def test_pointers_are_set_replaced_and_removed(run_recall: Run, tmp_path: Path) -> None:
    """A pointer keeps its fields, those of its own and others; a removed one is gone from those in force."""
    made = document(
        run_recall(
            "pointers", "set", "wip", "git_ref", "repo=a=b", "branch=m", "more=1", "-a", "x", "--note", "n", "--json"
        )
    )
    assert (made["type"], made["fields"], made["note"]) == ("git_ref", {"repo": "a=b", "branch": "m", "more": "1"}, "n")
    assert run_recall("pointers", "rm", "wip", "-a", "x").code == 0
    again = run_recall("pointers", "rm", "wip", "-a", "x")
    assert (again.code, again.err) == (3, "recall: no pointer 'wip' of x\n  → list them with: recall pointers list x\n")
    with looking(tmp_path) as view:
        assert view.pointers() == ([], 0)


def test_an_output_prints_its_ref_and_is_not_replaced_unasked(run_recall: Run, tmp_path: Path) -> None:
    """outputs put prints the ref alone on stdout; an existing ref needs --replace."""
    assert run_recall("outputs", "put", "-a", "x", "-", input="big").out == "out-1-1\n"
    assert run_recall("outputs", "put", "-a", "x", "--ref", "r", "--tool", "make", "--summary", "s", "one").out == "r\n"
    taken = run_recall("outputs", "put", "-a", "x", "--ref", "r", "two")
    assert (taken.code, taken.out) == (6, "")
    assert "--replace" in taken.err
    assert run_recall("outputs", "put", "-a", "x", "--ref", "r", "--replace", "two").code == 0
    with looking(tmp_path) as view:
        assert (view.output("r").content, view.output("out-1-1").content) == ("two", "big")


def test_ids_that_differ_in_case_are_two_agents(run_recall: Run, tmp_path: Path) -> None:
    """Agent ids are compared byte for byte."""
    run_recall("turns", "add", "-a", "Bot", "--role", "user", "hi")
    run_recall("turns", "add", "-a", "bot", "--role", "user", "hi")
    assert (lsn(tmp_path, "Bot"), lsn(tmp_path, "bot")) == (2, 2)


def test_the_agent_comes_from_the_environment(run_recall: Run, tmp_path: Path) -> None:
    """RECALL_AGENT names the agent, and the option beats it."""
    run_recall("turns", "add", "--role", "user", "hi", env={"RECALL_AGENT": "x"})
    run_recall("turns", "add", "-a", "y", "--role", "user", "hi", env={"RECALL_AGENT": "x"})
    assert (lsn(tmp_path, "x"), lsn(tmp_path, "y")) == (2, 2)
