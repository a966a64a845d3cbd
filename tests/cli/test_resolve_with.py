"""actions resolve --with CMD: a command tells what became of interrupted actions."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from store.client import Client
from store.running import witness
from tests.cli.acting import looking, lsn, session
from tests.conftest import COMMAND, Run

HAPPENED, NOT, UNKNOWN = "echo 250 OK", "exit 1", "exit 3"
# Tells by the number: 1 happened, 2 did not, anything else it cannot tell.
BY_NUMBER = "case $RECALL_ACTION_SEQ in 1) echo sent;; 2) exit 1;; *) exit 9;; esac"


@pytest.fixture
def interrupted(tmp_path: Path) -> None:
    """Four interrupted external calls of x, the last with large arguments, and one of y."""
    with Client(local_dir=tmp_path / "recall-data") as client:
        for agent, count in (("x", 3), ("y", 1)):
            with client.resume(agent) as it:
                for number in range(count):
                    it.begin_action("send email", "external", {"to": number})
                if agent == "x":
                    it.begin_action("upload", "external", "A" * 40_000)
            client.resume(agent).release()


def _ask(run: Run, command: str, *more: str, **settings: Any) -> Any:
    return run("actions", "resolve", "--with", command, *more, **settings)


def _rows(done: Any) -> list[tuple[str, int, str, str]]:
    return [(row["agent_id"], row["seq"], row["outcome"], row["code"]) for row in json.loads(done.out)]


@pytest.mark.parametrize(
    ("command", "code", "status", "result"),
    [(HAPPENED, 0, "done", "250 OK\n"), (NOT, 0, "abandoned", ""), (UNKNOWN, 8, "unknown", ""), ("kill $$", 8, "", "")],
)
def test_the_exit_code_of_the_command_is_the_answer(
    interrupted: None, run_recall: Run, tmp_path: Path, command: str, code: int, status: str, result: str
) -> None:
    """0: it happened and stdout is the result; 1: it did not; anything else leaves it open and ends with 8."""
    done = _ask(run_recall, command, "-a", "x", "1", "--by", "ops")
    assert done.code == code, done.err
    with looking(tmp_path) as view:
        action = view.action(1)
        turn = next(view.turns(), None)
    assert (action.status, action.result) == (status or "unknown", result)
    if code == 0:
        assert (action.by, "settled by ops" in turn.brief if turn else False) == ("ops", True)
        assert action.resolution == f"the resolver found that it {'happened' if result else 'did not happen'}"
    else:
        assert (turn, "x 1 (send email): cannot tell: the resolver could not tell" in done.out) == (None, True)


def test_the_command_gets_the_action(interrupted: None, run_recall: Run, tmp_path: Path) -> None:
    """On stdin it is JSON with whole arguments, and what a script needs is in the environment."""
    done = _ask(
        run_recall,
        f'cat > {shlex.quote(str(tmp_path))}/asked; echo "$RECALL_AGENT $RECALL_ACTION_TOOL ${{#RECALL_ACTION_ARGS}}"',
        *("-a", "x", "4"),
    )
    asked = json.loads((tmp_path / "asked").read_text())
    assert (done.code, asked["agent_id"], asked["seq"], asked["args"]) == (0, "x", 4, "A" * 40_000)
    with looking(tmp_path) as view:
        assert (view.action(4).result, asked["key"]) == ("x upload 40000\n", view.action(4).key)


def test_many_are_reported_one_by_one(interrupted: None, run_recall: Run) -> None:
    """Each is asked about and reported; while any stays open the exit code is 8, and a second pass asks those only."""
    done = _ask(run_recall, BY_NUMBER, "-a", "x", "--all-pending", "--yes", "--json")
    assert done.code == 8, done.err
    assert _rows(done) == [
        ("x", 1, "done", ""),
        ("x", 2, "abandoned", ""),
        ("x", 3, "cannot tell", "cannot_tell"),
        ("x", 4, "cannot tell", "cannot_tell"),
    ]
    again = _ask(run_recall, NOT, "--all-pending", "--yes", "--jsonl")
    assert again.code == 0
    assert [json.loads(row)["seq"] for row in again.out.splitlines()] == [3, 4, 1]
    nothing = _ask(run_recall, NOT, "--all-pending", "--yes")
    assert (nothing.code, nothing.out, "nothing was asked" in nothing.err) == (0, "", True)


def test_filters_choose_whom_to_ask_about(interrupted: None, run_recall: Run) -> None:
    """--tool, --class, --text and --older-than narrow --all-pending."""
    done = _ask(run_recall, NOT, "--all-pending", "--yes", "--json", "--tool", "send email", "--text", '"to":0')
    assert (done.code, [row[:2] for row in _rows(done)]) == (0, [("x", 1), ("y", 1)])
    none = _ask(run_recall, NOT, "--all-pending", "--yes", "--older-than", "1h")
    assert (none.code, none.out) == (0, "")


def test_a_dry_run_asks_nobody(interrupted: None, run_recall: Run, tmp_path: Path) -> None:
    """--dry-run says who would be asked about; the command does not run and nothing is written."""
    before = lsn(tmp_path)
    done = _ask(run_recall, f"touch {shlex.quote(str(tmp_path))}/ran", "-a", "x", "--all-pending", "--dry-run")
    assert (done.code, len(done.out.splitlines())) == (0, 4)
    assert "x 1 (send email): would be asked" in done.out
    assert (lsn(tmp_path), (tmp_path / "ran").exists()) == (before, False)


def test_several_need_a_yes(interrupted: None, run_recall: Run, run_on_terminal: Run, tmp_path: Path) -> None:
    """Without a terminal --yes is needed; on one a person is shown them and asked, and no means nothing."""
    done = _ask(run_recall, NOT, "-a", "x", "1", "2")
    assert (done.code, "--yes is needed" in done.err) == (2, True)
    asked = run_on_terminal(
        *("actions", "resolve", "--with", NOT, "-a", "x", "1", "2"),
        dialogue=[("ask 'exit 1' about 2, and settle each as it tells? [y/N]", "n\n")],
    )
    assert (asked.code, "nothing was asked or changed" in asked.out) == (0, True)
    with looking(tmp_path) as view:
        assert {view.action(seq).status for seq in (1, 2)} == {"unknown"}


def test_a_command_that_hangs_is_ended(interrupted: None, run_recall: Run) -> None:
    """After --timeout the command and its children are killed, and it could not tell."""
    began = time.monotonic()
    done = _ask(run_recall, "sleep 60 & sleep 60", "-a", "x", "1", "--timeout", "300ms")
    assert (done.code, "could not tell" in done.out) == (8, True)
    assert time.monotonic() - began < 20


def test_ctrl_c_ends_the_command_too(interrupted: None, environment: dict[str, str], tmp_path: Path) -> None:
    """Interrupted, it ends with 130, leaves no resolver behind, and keeps what was settled until then."""
    pid = tmp_path / "pid"
    ask = f"[ $RECALL_ACTION_SEQ = 1 ] && exit 1; echo $$ > {shlex.quote(str(pid))}.new; mv {pid}.new {pid}; sleep 60"
    process = subprocess.Popen(
        [COMMAND, "actions", "resolve", "--with", ask, "-a", "x", "1", "2", "--yes"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not pid.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "x 1 (send email): abandoned\n"), err
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    with looking(tmp_path) as view:
        assert (view.action(1).status, view.action(2).status) == ("abandoned", "unknown")


def test_conflicts_come_after_what_waits(interrupted: None, run_recall: Run) -> None:
    """Closed and missing ones are refused with 6, unless another one still waits: then 8 tells of that."""
    assert _ask(run_recall, HAPPENED, "-a", "x", "1").code == 0
    settled = _ask(run_recall, NOT, "-a", "x", "1", "2", "99", "--yes", "--json")
    assert (settled.code, [row[2:] for row in _rows(settled)]) == (
        6,
        [("refused", "action_closed"), ("abandoned", ""), ("refused", "not_found")],
    )
    waits = _ask(run_recall, UNKNOWN, "-a", "x", "1", "3", "--yes", "--json")
    assert waits.code == 8
    single = _ask(run_recall, HAPPENED, "-a", "x", "1")
    assert (single.code, single.out, "is already done" in single.err) == (6, "", True)


def test_one_that_is_closed_while_the_command_thinks_keeps_its_outcome(
    interrupted: None, run_recall: Run, tmp_path: Path
) -> None:
    """The first close wins: an operator's outcome is not overwritten by a slower resolver's."""
    meddle = f"{shlex.quote(str(COMMAND))} actions resolve -a x 1 failed --reason seen --error bounced >&2; echo sent"
    done = _ask(run_recall, meddle, "-a", "x", "1", "2", "--yes", "--json")
    assert (done.code, [row[2:] for row in _rows(done)]) == (6, [("refused", "action_closed"), ("done", "")])
    with looking(tmp_path) as view:
        assert (view.action(1).status, view.action(1).error) == ("failed", "bounced")


def test_a_command_that_still_runs_is_never_asked_about(run_recall: Run, tmp_path: Path) -> None:
    """It may yet happen, so it is skipped, said so, and --force does not change that."""
    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        with Client(local_dir=tmp_path / "recall-data") as client, client.resume("x") as it:
            it.begin_action("deploy", "external", command=witness(sleeper.pid, "none"))
            it.begin_action("mail", "external")
        ran = tmp_path / "ran"
        done = _ask(
            run_recall,
            f"echo $RECALL_ACTION_SEQ >> {shlex.quote(str(ran))}; exit 1",
            *("--all-pending", "--yes", "--force", "--json"),
        )
        assert (done.code, _rows(done)) == (8, [("x", 1, "refused", "still_running"), ("x", 2, "abandoned", "")])
        assert ran.read_text() == "2\n"
        single = _ask(run_recall, NOT, "-a", "x", "1", "--force")
        assert (single.code, f"still running as pid {sleeper.pid}" in single.err) == (8, True)
        for look in (("list",), ("list", "--pending"), ("show", "-a", "x", "1")):
            assert f"(still running as pid {sleeper.pid})" in run_recall("actions", *look).out
        assert f"still running as pid {sleeper.pid}" in run_recall("briefing", "x").out
    finally:
        sleeper.kill()
        sleeper.wait()


def test_one_that_the_live_session_may_be_running_needs_force(run_recall: Run, tmp_path: Path) -> None:
    """A started action under a live lease is refused, and asked about with --force."""
    env = session(run_recall)
    run_recall("actions", "begin", "--tool", "mail", "--class", "external", env=env)
    refused = _ask(run_recall, HAPPENED, "-a", "x", "1")
    assert (refused.code, "--force" in refused.err) == (6, True)
    assert _ask(run_recall, HAPPENED, "-a", "x", "1", "--force").code == 0
    with looking(tmp_path) as view:
        assert view.action(1).status == "done"


def test_a_reason_stands_for_the_finding(interrupted: None, run_recall: Run, tmp_path: Path) -> None:
    """--reason is optional, and kept with the outcome when it is given."""
    assert _ask(run_recall, HAPPENED, "-a", "x", "1", "--reason", "-", input="the mail log").code == 0
    with looking(tmp_path) as view:
        assert view.action(1).resolution == "the mail log"
        assert "@" in view.action(1).by


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("-a", "x", "1", "done", "--with", "true", "--reason", "r"), "--with cannot be combined with STATUS"),
        (("-a", "x", "1", "--with", "true", "--result", "r"), "--with cannot be combined with --result"),
        (("-a", "x", "1", "--with", "true", "--error", "r"), "--with cannot be combined with --error"),
        (("-a", "x", "1", "--with", ""), "--with must not be empty"),
        (("-a", "x", "--with", "true"), "SEQ is missing"),
        (("-a", "x", "--with", "true", "--tool", "t"), "--all-pending is needed with a filter"),
        (("-a", "x", "1", "--with", "true", "--timeout", "soon"), "--timeout: 'soon' is not a duration"),
        (("-a", "x", "1", "done", "--reason", "r", "--timeout", "3s"), "--timeout is nothing without --with"),
        (("-a", "x", "1", "--with", "true", "--reason", ""), "--reason must not be empty"),
    ],
)
def test_what_cannot_be_combined_is_one_line(
    interrupted: None, run_recall: Run, tmp_path: Path, words: tuple[str, ...], field: str
) -> None:
    """A call that contradicts itself ends with 2 and changes nothing."""
    before = lsn(tmp_path)
    done = run_recall("actions", "resolve", *words)
    assert (done.code, done.out, lsn(tmp_path)) == (2, "", before)
    assert done.err.startswith(f"recall: {field}")


def test_the_alert_of_an_operator(interrupted: None, run_recall: Run) -> None:
    """actions list --pending --older-than AGE --fail-if-any exits with 8 if any is that old, else with 0."""
    alert = ("actions", "list", "--pending", "--fail-if-any", "--older-than")
    fired, quiet = run_recall(*alert, "0s"), run_recall(*alert, "1h")
    assert (fired.code, len(fired.out.splitlines()), quiet.code, quiet.out) == (8, 5, 0, "")
