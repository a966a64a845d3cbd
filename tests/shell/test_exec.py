"""recall exec: a script as the agent's holder, and what becomes of both when either is hit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import COMMAND
from tests.engine import ROOT
from tests.needs import need
from tests.shell.conftest import AGENT, Shell, alive, below, until

EFFECT = "echo x >> effects"


def test_the_child_gets_what_it_needs(shell: Shell) -> None:
    """Agent, directory, token, run, briefing are in the environment; the status is the child's; the lease is free."""
    ended = shell.script(
        'echo "$RECALL_AGENT $RECALL_DIR $RECALL_RUN"; head -c 23 "$RECALL_BRIEFING"'
        "; recall turns add --role user hi; exit 5"
    )
    assert ended.code == 5, ended.err
    assert ended.out.startswith(f"{AGENT} {shell.store} run-1\nYou are agent {AGENT}")
    assert shell.recall("exec", AGENT, "--", "true").code == 0


def test_the_agent_may_be_named_by_the_environment(shell: Shell) -> None:
    """With RECALL_AGENT set, what follows -- is the command alone; an agent before it, or -a, beats the variable."""
    command = ("--", "sh", "-c", 'echo "$RECALL_AGENT"')
    assert shell.recall("exec", *command).out == f"{AGENT}\n"
    assert shell.recall("exec", "--ttl", "9s", "other", *command).out == "other\n"
    assert shell.recall("exec", "-a", "third", *command).out == "third\n"
    refused = shell.recall("exec", *command, env={"RECALL_AGENT": ""})
    assert refused.code == 2 and "set RECALL_AGENT" in refused.err
    helped = shell.recall("exec", "--help", *command, env={"RECALL_AGENT": ""})
    assert (helped.code, helped.out[:19]) == (0, "Usage: recall exec ")


def test_the_briefing_is_given_as_file_or_descriptor(shell: Shell) -> None:
    """--briefing-file and --briefing-fd hold the same text as RECALL_BRIEFING; the temporary one is removed."""
    script = 'cat <&7 | cmp - "$RECALL_BRIEFING" && echo "$RECALL_BRIEFING"'
    ended = shell.recall("exec", AGENT, "--briefing-fd", "7", "--", "bash", "-c", script)
    assert ended.code == 0, ended.err
    assert not Path(ended.out.strip()).exists()
    assert shell.script(script, "--briefing-fd", "7", "--briefing-file", "kept").out == f"{shell.here}/kept\n"
    assert f"agent {AGENT}" in (shell.here / "kept").read_text()
    assert shell.script("true", "--briefing-file", "no/such/place").code == 7


def test_tonights_run_is_not_last_nights(shell: Shell) -> None:
    """A run ends when the script exits 0; until then its steps are known, and a named run knows them for ever."""
    step = f"recall run --class external --step s -- sh -c '{EFFECT}'"
    assert shell.script(f"{step}; exit 1").code == 1
    assert shell.script(step).code == 0
    assert shell.count() == 1
    assert shell.script(step).code == 0
    assert shell.count() == 2
    for _ in range(2):
        assert shell.script(step, "--run", "once").code == 0
    assert shell.count() == 3
    assert shell.script("true", "--run", "run-7").code == 2
    assert [each.run for each in shell.actions()] == ["run-1", "run-2", "once"]


def test_killed_after_its_script_had_ended_a_named_run_does_nothing_again(shell: Shell) -> None:
    """A kill between the script's end and that of exec: started again without a name, it is the next run."""
    kill = [need("strace"), "-o", os.devnull, "-e", "inject=exit_group:signal=SIGKILL"]
    script = ["--", "sh", "-c", f"recall run --class external --step s -- sh -c '{EFFECT}'"]
    for options, effects in ((["--run", "night-1"], 1), ([], 3)):
        again = ["exec", AGENT, *options, *script]
        killed = subprocess.run([*kill, COMMAND, *again], env=shell.environ, cwd=shell.here, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert shell.recall(*again).code == 0
        assert shell.count() == effects


def test_a_look_does_not_end_the_run(shell: Shell) -> None:
    """An exec that uses no step leaves the run of a killed script open; one that replays its steps ends it."""
    step = f"recall run --class external --step s -- sh -c '{EFFECT}'"
    assert shell.script(f"{step}; kill -9 $$").code == 137
    for look in ("true", "recall briefing worker >/dev/null"):
        assert shell.script(look).code in (0, 3)
    assert shell.script(step).code == 0
    assert shell.count() == 1
    assert shell.script(step).code == 0
    assert shell.count() == 2


def test_a_killed_exec_leaves_no_orphan(shell: Shell) -> None:
    """SIGKILL to exec ends its script and what the script started in its group, and the lease is free at once."""
    process = shell.start("exec", AGENT, "--", "bash", "-c", "sleep 60 & echo $! > left; echo $$ > pid; wait")
    pids = [shell.pid("left"), shell.pid("pid")]
    process.kill()
    until(lambda: not any(alive(pid) for pid in pids), timeout=10)
    assert shell.recall("exec", AGENT, "--", "true").code == 0


def test_sigterm_lets_the_child_finish_within_the_grace(shell: Shell) -> None:
    """A drained exec says so, goes on as long as its child needs, releases, and exits with its status."""
    process = shell.start(
        "exec", AGENT, "--", "bash", "-c", "touch begun; sleep 1; recall turns add --role user bye; exit 3"
    )
    shell.wait("begun")
    process.terminate()
    ended = shell.end(process)
    assert ended.code == 3
    assert "SIGTERM: the command may go on for 25 s" in ended.err
    assert shell.recall("turns", "list", AGENT).out


def test_a_child_that_outstays_the_grace_is_ended(shell: Shell) -> None:
    """After --grace the whole group gets SIGTERM, then SIGKILL."""
    text = (
        "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > left; while :; do sleep 1; done' & touch begun; wait; sleep 60"
    )
    process = shell.start("exec", AGENT, "--grace", "0.2s", "--", "bash", "-c", text)
    left = shell.pid("left")
    process.terminate()
    assert shell.end(process).code == 137
    until(lambda: not alive(left))


def _break_lease(shell: Shell) -> None:
    """Another process takes the agent over, by force."""
    broken = shell.recall("lease", "break", "--yes", "--reason", "test")
    assert broken.code == 0, broken.err


def test_a_lost_lease_ends_the_child(shell: Shell) -> None:
    """Once another epoch is proven, the script and the step's command are ended, exec exits 5, the action stays."""
    step = f"recall run --class external --step s -- sh -c '{EFFECT}; echo $$ > pid; exec sleep 60'"
    process = shell.start("exec", AGENT, "--ttl", "3s", "--", "bash", "-c", f"echo $$ > script; {step}; sleep 60")
    pids = [shell.pid("script"), shell.pid("pid")]
    _break_lease(shell)
    ended = shell.end(process)
    assert ended.code == 5, ended
    until(lambda: not any(alive(pid) for pid in pids))
    assert shell.statuses() == ["started"]
    assert shell.recall("exec", AGENT, "--", "true").code == 0
    assert shell.statuses() == ["unknown"]


def test_a_lease_lost_in_the_middle_of_run_alone(shell: Shell) -> None:
    """The command goes on to its end, its outcome cannot be recorded: exit 5, the action stays open, and it says so."""
    step = ("run", "--class", "external", "--step", "s", "--outcome-file", "outcome", "--")
    process = shell.start(*step, "sh", "-c", f"touch begun; until [ -e go ]; do sleep 0.01; done; {EFFECT}")
    shell.wait("begun")
    _break_lease(shell)
    (shell.here / "go").touch()
    ended = shell.end(process)
    assert ended.code == 5, ended
    assert "could not be recorded" in ended.err and "stays started" in ended.err
    assert (shell.count(), shell.statuses()) == (1, ["started"])
    said = shell.outcome()
    assert (said["ran"], said["recorded"], said["code"]) == (True, False, 0)
    assert shell.recall(*step, "sh", "-c", "never").code == 6


def test_a_stopped_exec_takes_its_lease_again(shell: Shell) -> None:
    """SIGSTOP past the ttl, then SIGCONT: a new epoch, and the child's old token and a step under way still work."""
    script = f"""
        recall run --class external --step s -- sh -c 'touch begun; until [ -e go ]; do sleep 0.01; done; {EFFECT}' &
        step=$!
        until [ -e on ]; do sleep 0.01; done
        wait $step || exit 9
        recall turns add --role user late
    """
    process = shell.start("exec", AGENT, "--ttl", "1s", "--", "bash", "-c", script)
    shell.wait("begun")
    tree = [process.pid, *below(process.pid)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in tree:
            with suppress(ProcessLookupError):  # one of the short sleeps
                os.kill(pid, number)
        time.sleep(2 if number == signal.SIGSTOP else 0)
    for name in ("go", "on"):
        (shell.here / name).touch()
    ended = shell.end(process)
    assert ended.code == 0, ended.err
    assert (shell.count(), shell.statuses()) == (1, ["done"])


def test_a_script_killed_alone_lets_its_step_be_recorded(shell: Shell) -> None:
    """SIGKILL to the script: exec keeps the lease until the step under way has ended, then exits 137."""
    step = f"recall run --class external --step s -- sh -c 'touch begun; sleep 1; {EFFECT}'"
    process = shell.start("exec", AGENT, "--", "bash", "-c", f"echo $$ > pid; {step}; {EFFECT}")
    shell.wait("begun")
    os.kill(shell.pid("pid"), signal.SIGKILL)
    assert shell.end(process).code == 137
    assert (shell.count(), shell.statuses()) == (1, ["done"])


def test_a_runner_killed_alone_leaves_its_command_running(shell: Shell) -> None:
    """Nothing is settled, asked or run again while the command lives; after its end its class decides."""
    step = ("--class", "external", "--step", "s", "--", "sh", "-c", f"echo $$ > pid; {EFFECT}; exec sleep 60")
    runner = shell.start("run", *step)
    pid = shell.pid("pid")
    until(lambda: shell.count() == 1)
    runner.kill()
    runner.wait()
    asked = ("--resolver", "touch asked; exit 1")
    refused = shell.recall("run", *asked, *step)
    assert refused.code == 8
    assert f"still running as pid {pid}" in refused.err
    assert f"still running as pid {pid}" in shell.recall("actions", "list", AGENT).out
    assert shell.recall("resume", AGENT).code == 0
    assert shell.recall("actions", "resolve", "-a", AGENT, "1", "done", "--reason", "r").code == 8
    assert (shell.statuses(), shell.count(), (shell.here / "asked").exists()) == (["started"], 1, False)
    os.killpg(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    assert shell.recall("run", *step).code == 8
    assert shell.statuses() == ["unknown"]
    assert shell.recall("run", "--resolver", "exit 0", *step).code == 0
    assert (shell.statuses(), shell.count()) == (["done"], 1)


def test_a_waiting_step_takes_over_when_the_command_is_gone(shell: Shell) -> None:
    """With --wait the next run of an idempotent step begins when the orphaned command has ended, with the same key."""
    text = "echo $RECALL_IDEMPOTENCY_KEY >> keys; echo $$ > pid; [ -e second ] || exec sleep 3"
    step = ("run", "--class", "idempotent", "--step", "s", "--wait", "30s", "--", "sh", "-c", text)
    runner = shell.start(*step)
    pid = shell.pid("pid")
    runner.kill()
    runner.wait()
    (shell.here / "second").touch()
    assert alive(pid)
    assert shell.recall(*step).code == 0
    assert not alive(pid)
    keys = (shell.here / "keys").read_text().split()
    assert len(keys) == 2 and len(set(keys)) == 1


def test_a_runner_killed_with_its_command_is_settled_by_class(shell: Shell) -> None:
    """A pure step is abandoned and attempted anew; an idempotent one is the same action with the same key."""
    for class_ in ("pure", "idempotent"):
        text = f"echo $RECALL_IDEMPOTENCY_KEY >> {class_}; echo $$ > {class_}-pid; [ -e go ] || exec sleep 60"
        step = ("run", "--class", class_, "--tool", class_, "--step", class_, "--", "sh", "-c", text)
        runner = shell.start(*step)
        pid = shell.pid(f"{class_}-pid")
        runner.kill()
        os.killpg(pid, signal.SIGKILL)
        runner.wait()
        until(partial(_dead, pid))
        (shell.here / "go").touch()
        assert shell.recall(*step).code == 0
        (shell.here / "go").unlink()
        keys = (shell.here / class_).read_text().split()
        assert (keys[0] == keys[1]) == (class_ == "idempotent")
    assert shell.statuses() == ["abandoned", "done", "done"]


def _dead(pid: int) -> bool:
    return not alive(pid)


def test_a_descendant_with_the_lock_counts_as_running(shell: Shell) -> None:
    """A child in a group of its own, left by a killed command, holds the step as long as it keeps its descriptors."""
    text = "setsid sh -c 'echo $$ > left; exec sleep 60' & echo $$ > pid; wait"
    step = ("run", "--class", "external", "--step", "s", "--", "sh", "-c", text)
    runner = shell.start(*step)
    pid, left = shell.pid("pid"), shell.pid("left")
    runner.kill()
    os.kill(pid, signal.SIGKILL)
    runner.wait()
    assert "still running" in shell.recall(*step).err
    os.kill(left, signal.SIGKILL)
    until(lambda: not alive(left))
    assert shell.recall(*step).code == 8
    assert shell.statuses() == ["unknown"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tiny file system")
def test_a_full_disk_at_the_close_leaves_the_action_open(shell: Shell, tmp_path: Path) -> None:
    """The effect has happened and cannot be recorded: exit 7, it says so, and the step waits."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        shell.environ["RECALL_DIR"] = str(small / "store")
        fill = f"cat /dev/zero > {small}/ballast 2> /dev/null"
        step = (
            "run",
            "--class",
            "external",
            "--step",
            "s",
            "--",
            "sh",
            "-c",
            f"{EFFECT}; {fill}; head -c 60000 /dev/zero",
        )
        ended = shell.recall(*step)
        assert ended.code == 7, ended.err[-2000:]
        assert "could not be recorded" in ended.err and "stays started" in ended.err
        (small / "ballast").unlink()
        assert shell.recall(*step).code == 8
        assert (shell.count(), shell.statuses()) == (1, ["unknown"])
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_token_of_another_store_is_refused(shell: Shell) -> None:
    """Inside exec, another RECALL_DIR is exit 5 and makes no store."""
    ended = shell.script("RECALL_DIR=$PWD/other recall run --class pure -- true; echo $?; ls other")
    assert ended.out == "5\n"


def test_an_exec_that_cannot_start_its_command_says_so(shell: Shell) -> None:
    """127 and 126 as a shell, with a line, and the lease is free."""
    for command, code in (("no-such-command", 127), ("/", 126)):
        ended = shell.recall("exec", AGENT, "--", command)
        assert ended.code == code
        assert "could not be started" in ended.err
    assert shell.recall("exec", AGENT, "--briefing-fd", "2", "--", "true").code == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a pid namespace")
def test_as_the_first_process_of_a_container(shell: Shell) -> None:
    """As PID 1 exec reaps orphans, and SIGTERM drains it, also while it still waits for the lease."""
    inside = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-m",
        "recall_cli",
        "exec",
        AGENT,
    ]
    environ = {**shell.environ, "PYTHONPATH": str(ROOT)}
    zombies = "(sleep 0.1 &) ; (sleep 0.1 &) ; sleep 1.5; ps -o stat= -A | grep -c Z > zombies; touch done; sleep 1"
    process = subprocess.Popen([*inside, "--", "bash", "-c", zombies], env=environ, cwd=shell.here)
    shell.started.append(process)
    shell.wait("done")
    assert (shell.here / "zombies").read_text() == "0\n"
    second = subprocess.Popen([*inside, "--wait", "60s", "--", "true"], env=environ, cwd=shell.here)
    shell.started.append(second)
    time.sleep(1.0)
    pid = below(second.pid)[0]  # unshare's only child; the others are below it
    os.kill(pid, signal.SIGTERM)
    assert second.wait(timeout=10) == 143
    assert process.wait(timeout=30) == 0


def test_the_lock_files_of_killed_runners_do_not_pile_up(shell: Shell) -> None:
    """What an old killed runner left is removed by a later one; what is held or new stays."""
    folder = shell.store / "running"
    shell.recall("run", "--class", "pure", "--", "true")
    assert list(folder.iterdir()) == []
    old, new = folder / ("a" * 32 + ".lock"), folder / ("b" * 32 + ".lock")
    for each in (old, new):
        each.touch()
    os.utime(old, (1, 1))
    shell.recall("run", "--class", "pure", "--", "true")
    assert list(folder.iterdir()) == [new]


def test_the_store_stays_sound(shell: Shell) -> None:
    """After a killed exec and a killed runner the log verifies."""
    process = shell.start(
        "exec", AGENT, "--", "bash", "-c", "recall run --class pure -- sh -c 'echo $$ > pid; exec sleep 60'"
    )
    pid = shell.pid("pid")
    process.kill()
    os.kill(pid, signal.SIGKILL)
    assert shell.recall("resume", AGENT).code == 0
    assert shell.recall("verify").code == 0
