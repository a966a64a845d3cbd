"""Naming the agent: as an argument or as an option, wherever that leaves no doubt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.client import Client
from tests.conftest import Run


@pytest.fixture
def stored(tmp_path: Path) -> None:
    """An agent x with a turn, an output, two versions of its state and a closed action."""
    with Client(local_dir=tmp_path / "recall-data") as client, client.resume("x") as it:
        it.record_turn("user", "hello")
        it.store_output("whole", ref="out")
        it.update_working_state(goal="one")
        it.update_working_state(goal="two")
        it.end_action(it.begin_action("lint", "pure").seq, "done")


# The command, how the agent is named, and the arguments after it.
EITHER = (
    (("agents", "show"), ()),
    (("briefing",), ()),
    (("state", "show"), ()),
    (("state", "history"), ()),
    (("state", "diff"), ("1", "2")),
    (("turns", "list"), ()),
    (("turns", "show"), ("1",)),
    (("pointers", "list"), ()),
    (("outputs", "list"), ()),
    (("outputs", "get"), ("out",)),
    (("actions", "list"), ()),
    (("actions", "show"), ("1",)),
    (("log",), ()),
    (("records",), ()),
    (("lease", "show"), ()),
    (("aside", "list"), ()),
)


@pytest.mark.parametrize(("command", "rest"), EITHER, ids="-".join)
def test_a_look_command_takes_the_agent_both_ways(
    stored: None, run_recall: Run, command: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    """AGENT, -a AGENT and --agent AGENT, before or after the arguments, give the same answer."""
    wanted = run_recall(*command, "x", *rest, "--json")
    assert (wanted.code, wanted.err) == (0, "")
    for words in (("-a", "x", *rest), (*rest, "-a", "x"), (*rest, "--agent=x")):
        assert run_recall(*command, *words, "--json") == wanted


def test_commands_that_change_something_take_it_first_too(stored: None, run_recall: Run) -> None:
    """Where no argument is a free text, one more argument at the front is the agent."""
    for words in (
        ("agents", "archive", "x", "--reason", "r"),
        ("agents", "unarchive", "x", "--reason", "r"),
        ("state", "set", "x", "--goal", "three"),
        ("actions", "amend", "x", "1", "--note", "n"),
    ):
        done = run_recall(*words, "--json")
        assert done.code == 0, done.err
    assert json.loads(run_recall("state", "show", "x", "--json").out)["goal"] == "three"
    assert run_recall("lease", "break", "x", "--reason", "r", "--yes").err.startswith(
        "recall: no lease to break: x is "
    )


def test_the_variable_gives_way_to_what_is_typed(stored: None, run_recall: Run) -> None:
    """RECALL_AGENT is used where nothing is typed, and only there."""
    env = {"RECALL_AGENT": "x"}
    assert run_recall("turns", "show", "1", env=env).code == 0
    assert "agent y" in run_recall("turns", "show", "y", "1", env=env).err
    assert "agent y" in run_recall("turns", "list", "-a", "y", env=env).err


def test_exec_leaves_the_command_its_own_options(stored: None, run_recall: Run) -> None:
    """-a after -- belongs to the command."""
    done = run_recall("exec", "-a", "x", "--", "sh", "-c", 'echo "$RECALL_AGENT $1 $2"', "sh", "-a", "z")
    assert (done.code, done.out) == (0, "x -a z\n")


def test_a_text_of_several_words_is_no_agent(stored: None, run_recall: Run) -> None:
    """A message whose quotes were forgotten makes no agent of its first word, and the hint says how to name one."""
    for words in (
        ("turns", "add", "hello", "world", "--role", "user", "-a", "x"),
        ("milestone", "all", "done", "-a", "x"),
    ):
        done = run_recall(*words)
        assert (done.code, "-a AGENT" in done.err) == (2, True)
    assert [each["agent"] for each in json.loads(run_recall("agents", "list", "--json").out)] == ["x"]


@pytest.mark.parametrize(
    "words",
    [
        ("turns", "add", "hi", "-a", "nwe", "--role", "user"),
        ("milestone", "m", "-a", "nwe"),
        ("state", "set", "-a", "nwe", "--goal", "g"),
        ("exec", "nwe", "--", "true"),
    ],
    ids=lambda words: words[0],
)
def test_a_write_that_makes_an_agent_says_so(run_recall: Run, words: tuple[str, ...]) -> None:
    """A misspelt name is seen at once; the second write says nothing of it."""
    assert "agent nwe is new\n" in run_recall(*words).err
    assert "is new" not in run_recall(*words).err


def test_the_help_of_a_group_shows_summaries_whole(run_recall: Run) -> None:
    """No summary in a group's help is cut."""
    out = run_recall("agents", "--help").out
    assert "..." not in out.partition("Commands:")[2]
    assert "End an agent: nobody resumes it, or writes to it, until unarchive" in out
