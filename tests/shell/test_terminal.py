"""A command that is run as a step, or a script under exec, on a real terminal."""

from __future__ import annotations

from tests.conftest import COMMAND, Run

PROMPT = "PROMPT$ "
BASH = ("bash", "--norc", "--noprofile", "-i")


def _shell(run_on_terminal: Run, *dialogue: tuple[str, str]) -> str:
    """What was seen of an interactive bash in which these things were typed."""
    env = {"PATH": f"{COMMAND.parent}:/usr/bin:/bin", "PS1": PROMPT, "RECALL_AGENT": "a", "HISTFILE": "/dev/null"}
    ended = run_on_terminal(
        *BASH[1:], program=["/bin/bash"], env=env, dialogue=[(PROMPT, dialogue[0][0]), *dialogue[1:]]
    )
    return ended.out


def test_a_command_reads_a_line_from_the_terminal(run_on_terminal: Run) -> None:
    """A step that asks a person gets the terminal, although it leads a group of its own."""
    ended = run_on_terminal(
        *("run", "-a", "a", "--class", "pure", "--", "sh", "-c", "printf 'name? '; read name; echo hello $name"),
        dialogue=[("name? ", "ada\n")],
    )
    assert ended.code == 0
    assert "hello ada" in ended.out


def test_a_command_in_a_pipeline_gets_the_terminal_when_it_asks(run_on_terminal: Run) -> None:
    """With a pipe on stdout the terminal stays with the job until the command reads from it."""
    script = "recall run -a a --class pure -- sh -c 'echo name? >&2; read name < /dev/tty; echo hello $name' | cat"
    env = {"PATH": f"{COMMAND.parent}:/usr/bin:/bin"}
    ended = run_on_terminal("-c", script, program=["/bin/bash"], env=env, dialogue=[("name?", "ada\n")])
    assert "hello ada" in ended.out


def test_a_pager_behind_it_keeps_the_terminal(run_on_terminal: Run) -> None:
    """The other side of a pipe may read from the terminal while the command runs."""
    script = (
        "recall run -a a --class pure -- sh -c 'echo out; until [ -e go ]; do sleep 0.01; done'"
        ' | { read line; echo "got $line, go on?"; read answer < /dev/tty; echo "answer $answer"; touch go; }'
    )
    env = {"PATH": f"{COMMAND.parent}:/usr/bin:/bin"}
    ended = run_on_terminal("-c", script, program=["/bin/bash"], env=env, dialogue=[("go on?", "yes\n")])
    assert "answer yes" in ended.out


def test_ctrl_c_ends_the_command_and_the_script(run_on_terminal: Run) -> None:
    """Ctrl-C reaches the command, its end is recorded, and the script that ran it does not go on."""
    env = {"PATH": f"{COMMAND.parent}:/usr/bin:/bin", "RECALL_AGENT": "a"}
    script = "recall run --class external -- sh -c 'echo ready; exec sleep 60'; echo went on"
    ended = run_on_terminal("-c", script, program=["/bin/bash"], env=env, dialogue=[("ready", "\x03")])
    assert "went on" not in ended.out
    look = run_on_terminal("actions", "list", "a")
    assert "unknown" in look.out


def test_ctrl_c_under_exec_ends_all(run_on_terminal: Run) -> None:
    """Under exec too; the lease is released, and the step is unknown."""
    script = "recall run --class external -- sh -c 'echo ready; exec sleep 60'; echo went on"
    env = {"PATH": f"{COMMAND.parent}:/usr/bin:/bin"}
    ended = run_on_terminal("exec", "a", "--", "bash", "-c", script, env=env, dialogue=[("ready", "\x03")])
    assert ended.code == -2
    assert "went on" not in ended.out
    assert "unknown" in run_on_terminal("actions", "list", "a").out
    assert run_on_terminal("exec", "a", "--", "true").code == 0


def test_ctrl_z_and_fg(run_on_terminal: Run) -> None:
    """Ctrl-Z stops the command and gives the shell back; fg goes on with both, and the command reads on."""
    seen = _shell(
        run_on_terminal,
        ("recall run --class pure -- sh -c 'echo rea\"\"dy; read line; echo got $line'\n", ""),
        ("ready", "\x1a"),
        ("Stopped", "fg\n"),
        ("fg", "ada\n"),
        ("got ada", "exit\n"),
    )
    assert "got ada" in seen


def test_ctrl_z_in_a_script_under_exec(run_on_terminal: Run) -> None:
    """exec, script, run and command stop together and go on together."""
    script = 'recall run --class pure -- sh -c "echo rea\'\'dy; read line; echo got \\$line"; echo aft""er'
    seen = _shell(
        run_on_terminal,
        (f"recall exec a -- bash -c '{script}'\n".replace("''", "'\\'''\\''"), ""),
        ("ready", "\x1a"),
        ("Stopped", "fg\n"),
        ("fg", "ada\n"),
        ("after", "exit\n"),
    )
    assert "got ada" in seen


def test_a_background_job_that_reads_is_stopped_until_fg(run_on_terminal: Run) -> None:
    """In the background a command that reads stops with its runner, as any job; fg lets it read."""
    seen = _shell(
        run_on_terminal,
        ("recall run --class pure -- sh -c 'read line; echo got $line' &\n", ""),
        (PROMPT, 'until [ -n "$(jobs -s)" ]; do sleep 0.1; done\n'),
        ("Stopped", "fg\n"),
        ("fg", "ada\n"),
        ("got ada", "exit\n"),
    )
    assert "got ada" in seen
