"""--stuck: what waits for a person, a resolver or a resumption, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.client import Client
from store.running import hold, witness
from tests.conftest import Run

DYING = """
import os, signal, sys
from recall_cli import Client
agent = Client(local_dir=sys.argv[1]).resume("dead")
agent.begin_action("send", "external")
agent.begin_action("lint", "pure")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def agents(environment: dict[str, str], run_recall: Run) -> Iterator[None]:
    """dead was killed in two actions; left is released with an unknown one; busy is at one; idle has none open."""
    directory = Path(environment["RECALL_DIR"])
    subprocess.run([sys.executable, "-c", DYING, directory], check=False)
    with Client(local_dir=directory) as client:
        with client.resume("left") as left:
            left.begin_action("send", "external")
        client.resume("left").release()
        with client.resume("idle") as idle:
            idle.end_action(idle.begin_action("lint", "pure").seq, "done")
        client.resume("busy").begin_action("send", "external")
        yield


def seqs(run_recall: Run, *more: str) -> list[tuple[str, int]]:
    done = run_recall("actions", "list", "--stuck", "--json", *more)
    return [(each["agent"], each["seq"]) for each in json.loads(done.out)]


def test_stuck_actions_are_those_that_nobody_is_at(agents: None, run_recall: Run) -> None:
    """Started ones of a dead holder and unknown ones are listed, those of a live holder are not."""
    assert seqs(run_recall) == [("dead", 1), ("dead", 2), ("left", 1)]
    assert seqs(run_recall, "--class", "pure") == [("dead", 2)]
    assert seqs(run_recall, "busy") == []


def test_stuck_agents_are_those_with_such_an_action(agents: None, run_recall: Run) -> None:
    """Also one whose lease is released, which no state tells."""
    listed = json.loads(run_recall("agents", "list", "--stuck", "--json").out)
    assert [each["agent"] for each in listed] == ["dead", "left"]


def test_the_alert_is_silent_while_everybody_is_at_work(agents: None, run_recall: Run) -> None:
    """--stuck --fail-if-any is exit 8 until all is settled, and then 0 although one action runs."""
    alert = ("actions", "list", "--stuck", "--fail-if-any")
    assert run_recall(*alert).code == 8
    for agent in ("dead", "left"):
        settle = ("actions", "resolve", "-a", agent, "abandoned", "--all-pending", "--yes", "--reason", "never left")
        assert run_recall(*settle).code == 0
    assert run_recall(*alert).code == 0
    assert run_recall("actions", "list", "--pending", "--fail-if-any").code == 8


def test_a_command_that_outlived_its_runner_is_not_stuck(
    environment: dict[str, str], run_recall: Run, tmp_path: Path
) -> None:
    """Nobody can settle what still runs, so nobody is called."""
    directory = Path(environment["RECALL_DIR"])
    with Client(local_dir=directory) as client, client.resume("x") as it:
        with open(hold(str(directory), "a-command")):
            with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as gone:
                command = witness(gone.pid, "a-command")
            it.begin_action("send", "external", command=command)
            it.release()
            assert seqs(run_recall) == []
        assert seqs(run_recall) == [("x", 1)]


def test_in_a_pipe_times_are_exact_and_on_a_terminal_ages(agents: None, run_recall: Run, run_on_terminal: Run) -> None:
    """The column that a person reads as an age is the time of the start in a pipe."""
    words = ("actions", "list", "left")
    started = json.loads(run_recall(*words, "--json").out)[0]["started_at"]
    assert started in run_recall(*words).out.split("\t")
    assert started not in run_on_terminal(*words, columns=200).out


@pytest.mark.parametrize("columns", [30, 60, 80])
def test_what_must_be_typed_is_never_cut(environment: dict[str, str], run_on_terminal: Run, columns: int) -> None:
    """However narrow the terminal, ids and statuses are whole and every column has its heading."""
    name = "billing-migrator-of-the-european-accounts"
    with Client(local_dir=environment["RECALL_DIR"]) as client, client.resume(name) as it:
        it.update_working_state(goal="a goal " * 20)
        it.begin_action("send", "external", "an argument " * 20)
    for words, headings in (
        (("agents", "list"), ("AGENT", "STATE", "HOLDER", "EPOCH", "TURNS", "PENDING", "LAST", "GOAL")),
        (("actions", "list"), ("AGENT", "SEQ", "STATUS", "CLASS", "TOOL", "STEP", "AGE", "ARGS")),
    ):
        out = run_on_terminal(*words, columns=columns, env={"NO_COLOR": "1"}).out
        first, second = out.splitlines()[:2]
        assert tuple(first.split()) == headings
        assert second.split()[0] == name
