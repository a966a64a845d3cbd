"""actions resolve on a terminal: the walk through what is pending."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recall_cli.walk import EXPLAINED
from store.client import Client
from tests.cli.acting import looking
from tests.conftest import Run

HOSTILE = "to=\x1b[2Jboss\u202e\n## Unfinished"
CHOICE, REASON = "explain:", "(empty: skip)?"


@pytest.fixture
def pending(tmp_path: Path) -> None:
    """Three interrupted external calls of a dead session of x, and one of y."""
    for agent, count in (("x", 3), ("y", 1)):
        with Client(local_dir=tmp_path / "recall-data") as client:
            with client.resume(agent, holder=f"worker-{agent}") as it:
                it.record_turn("assistant", "I will write to the boss.")
                for n in range(count):
                    it.begin_action("send_email", "external", f"{HOSTILE} {n}", step=f"mail-{n}")
                it.record_turn("user", "thanks\x1b]0;title\x07")
            client.resume(agent).release()


def test_the_walk_shows_each_call_and_settles_as_told(pending: None, run_on_terminal: Run, tmp_path: Path) -> None:
    """Each call is shown whole with what is around it in the log; answers settle it, with reason and result."""
    dialogue = [
        *((CHOICE, "what\n"), (CHOICE, "d\n"), (REASON, "saw it in the outbox\n"), ("result (empty", "250 OK\n")),
        *((CHOICE, "failed\n"), (REASON, "bounced\n"), ("error (empty", "550\n")),
        *((CHOICE, "a\n"), (REASON, "never left\n")),
    ]
    done = run_on_terminal("actions", "resolve", "-a", "x", "--by", "me", dialogue=dialogue)
    assert done.code == 0, done.out
    for text in (
        *("1 of 3: action 1 of x: send_email (external, unknown)", "to=\\x1b[2Jboss\\u202e", "## Unfinished 0"),
        *(
            "step: mail-0",
            "s ago",
            "by: worker-x (epoch 1), which does not hold",
            "turn:1  assistant: I will write to the boss.",
        ),
        *("action 1 of x is done, settled by me", "3 settled of 3 shown"),
    ):
        assert text in done.out
    assert "\x1b[2J" not in done.out
    assert "\u202e" not in done.out
    with looking(tmp_path) as view:
        one, two, three = (view.action(n) for n in (1, 2, 3))
        turn = next(view.turns())
    assert (one.status, one.result, one.resolution, one.by) == ("done", "250 OK", "saw it in the outbox", "me")
    assert (two.status, two.error, three.status) == ("failed", "550", "abandoned")
    assert (turn.role, "never left" in turn.brief) == ("tool", True)


def test_without_an_agent_it_walks_through_all(pending: None, run_on_terminal: Run) -> None:
    """No agent means the pending actions of all of them."""
    done = run_on_terminal("actions", "resolve", dialogue=[(CHOICE, "s\n")] * 4)
    assert (done.code, "0 settled of 4 shown" in done.out) == (0, True)
    assert [f"action {n} of x" in done.out for n in (1, 2, 3)] == [True] * 3
    assert "action 1 of y" in done.out


@pytest.mark.parametrize(("narrow", "shown"), [(("--text", "UNFINISHED 2"), 3), (("2",), 2)])
def test_filters_and_numbers_narrow_the_walk(
    pending: None, run_on_terminal: Run, narrow: tuple[str, ...], shown: int
) -> None:
    """The walk takes the filters of the bulk form, or the numbers of some actions."""
    done = run_on_terminal("actions", "resolve", "-a", "x", *narrow, dialogue=[(CHOICE, "s\n")])
    assert (done.code, f"action {shown} of x" in done.out, "of 1 shown" in done.out) == (0, True, True)


@pytest.mark.parametrize(("keys", "code"), [("\x04", 0), ("\x03", 130), ("q\n", 0)])
def test_an_end_in_the_middle_says_what_was_done(
    pending: None, run_on_terminal: Run, tmp_path: Path, keys: str, code: int
) -> None:
    """End of input, Ctrl-C and q end the walk; what was settled stays and is said."""
    dialogue = [(CHOICE, "d\n"), (REASON, "sure\n"), ("result (empty", "\n"), (CHOICE, keys)]
    done = run_on_terminal("actions", "resolve", "-a", "x", dialogue=dialogue)
    assert (done.code, "1 settled of 2 shown" in done.out, "Traceback" in done.out) == (code, True, False)
    with looking(tmp_path) as view:
        assert [view.action(n).status for n in (1, 2, 3)] == ["done", "unknown", "unknown"]


@pytest.mark.parametrize("keys", ["\n", "\x04"])
def test_without_a_reason_nothing_is_settled(pending: None, run_on_terminal: Run, tmp_path: Path, keys: str) -> None:
    """An empty reason, or the end of the input in its place, skips the action."""
    done = run_on_terminal("actions", "resolve", "-a", "y", dialogue=[(CHOICE, "d\n"), (REASON, keys)])
    assert (done.code, "0 settled of 1 shown" in done.out) == (0, True)
    with looking(tmp_path, "y") as view:
        assert view.action(1).status == "unknown"


def test_one_that_may_be_running_is_asked_about_twice(run_on_terminal: Run, tmp_path: Path) -> None:
    """An action that the live epoch started is settled only after a second yes."""
    with Client(local_dir=tmp_path / "recall-data") as client, client.resume("x") as it:
        it.begin_action("deploy", "external")
        first = run_on_terminal("actions", "resolve", "-a", "x", dialogue=[(CHOICE, "d\n"), ("[y/N]", "n\n")])
        assert (first.code, "may be running right now" in first.out) == (0, True)
        assert it.pending_actions()[0].status == "started"
        dialogue = [(CHOICE, "d\n"), ("[y/N]", "y\n"), (REASON, "looked\n"), ("result (empty", "\n")]
        assert run_on_terminal("actions", "resolve", "-a", "x", dialogue=dialogue).code == 0
        assert it.pending_actions() == []


def test_bulk_asks_on_a_terminal(pending: None, run_on_terminal: Run, tmp_path: Path) -> None:
    """Several at once are listed before the question; a no changes nothing."""
    every = ("actions", "resolve", "--all-pending", "done", "--reason", "r", "-a", "x")
    done = run_on_terminal(*every, dialogue=[("[y/N]", "n\n")])
    assert (done.code, done.out.count("would be done"), "nothing was changed" in done.out) == (0, 3, True)
    two = ("actions", "resolve", "1", "2", "done", "--reason", "r", "-a", "x")
    assert run_on_terminal(*two, dialogue=[("settle 2 as done, because 'r'? [y/N]", "y\n")]).code == 0
    with looking(tmp_path) as view:
        assert [view.action(n).status for n in (1, 2, 3)] == ["done", "done", "unknown"]


def test_without_a_terminal_nothing_is_asked(pending: None, run_recall: Run) -> None:
    """In a pipe the walk is refused with an example, as text and as JSON."""
    done = run_recall("actions", "resolve", "-a", "x", input="d\n")
    assert (done.code, done.out) == (2, "")
    assert "done, failed or abandoned" in done.err
    assert json.loads(run_recall("actions", "resolve", "--json").err)["code"] == "invalid_input"


def test_the_walk_explains_its_answers(pending: None, run_on_terminal: Run) -> None:
    """? and anything else that is no answer say what each answer means for the step's next start."""
    done = run_on_terminal(
        "actions", "resolve", "-a", "y", dialogue=[(CHOICE, "?\n"), (CHOICE, "donne\n"), (CHOICE, "q\n")]
    )
    assert done.code == 0
    for line in EXPLAINED:
        assert done.out.count(line) == 2


def test_the_walk_says_that_a_holder_is_dead(run_on_terminal: Run, tmp_path: Path) -> None:
    """Who began a call and died in it is called dead; the log around is in the words of recall log."""
    script = (
        "import os, signal, sys; from recall_cli import Client\n"
        "it = Client(local_dir=sys.argv[1]).resume('z', holder='w'); it.update_working_state(goal='Mail the boss')\n"
        "it.begin_action('send', 'external'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "recall-data"], check=False)
    done = run_on_terminal("actions", "resolve", "-a", "z", dialogue=[(CHOICE, "q\n")])
    assert "by: w (epoch 1), which is dead" in done.out
    assert "ws:1  goal: Mail the boss" in done.out
