"""recall run, when the outcome of its command could not be recorded: what still works is not run beside."""

from __future__ import annotations

from tests.shell.conftest import AGENT, Shell, until


def test_a_descendant_is_still_seen_after_the_lease_was_lost(shell: Shell) -> None:
    """The command has ended, its close was refused, and a process of it that left the group goes on: no second one."""
    left = "touch up; until [ -e go ]; do sleep 0.05; done; echo x >> effects"
    command = f"(setsid sh -c '{left}' &); until [ -e up ] && [ -e stop ]; do sleep 0.05; done"
    step = ("run", "--class", "idempotent", "--step", "b", "--", "bash", "-c", command)
    first = shell.start(*step)
    shell.wait("up")
    assert shell.recall("lease", "break", "-a", AGENT, "--reason", "a test", "--yes").code == 0
    (shell.here / "stop").touch()
    ended = shell.end(first)
    assert ended.code == 5
    assert "action 1 stays started" in ended.err
    assert (shell.statuses(), shell.count()) == (["started"], 0)

    again = shell.recall(*step)
    assert again.code == 8
    assert "action 1 ('bash') is still running" in again.err
    assert (shell.statuses(), shell.count()) == (["started"], 0)

    (shell.here / "go").touch()
    until(lambda: shell.count() == 1)
    assert shell.recall("run", "--wait", "30s", *step[1:]).code == 0
    assert shell.statuses() == ["done"]
