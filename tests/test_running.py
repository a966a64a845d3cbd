"""Whether the command of an action still runs: the lock that it inherits, its pid, start time and group."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.acting import ActionOperations
from store.actions import ActionEnd
from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import NeedsSettling, StillRunning, StoreReadOnly
from store.running import forget, hold, let_go, still_running, witness
from store.values import Action

LOCK = "a" * 32
OPEN = Action(seq=1, tool="t", class_="external", key="0" * 32, status="started")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group, with a child in it."""
    process = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    yield process
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and its child, and wait until both are gone."""
    stat = Path(f"/proc/{_child(process.pid)}/stat")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline


def _child(pid: int) -> int:
    """Its only child, once it is there."""
    deadline = time.monotonic() + 30
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        assert time.monotonic() < deadline
    return int(found[0])


def test_a_live_pid_is_running_and_a_dead_one_is_not(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Its pid with its start time tells, and ends to tell when its group is gone."""
    action = replace(OPEN, command=witness(sleeper.pid, LOCK))
    assert still_running(str(tmp_path), action) == f"pid {sleeper.pid}"
    _end(sleeper)
    assert still_running(str(tmp_path), action) == ""


def test_a_member_of_the_group_is_enough(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """The leader is dead, reaped or not, and its child in the group still works."""
    action = replace(OPEN, command=witness(sleeper.pid, LOCK))
    _child(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert still_running(str(tmp_path), action)
    sleeper.wait()
    assert still_running(str(tmp_path), action)


@pytest.mark.parametrize("changed", ["start", "host", "boot", "pidns"])
def test_another_process_of_that_number_is_not_it(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], changed: str
) -> None:
    """Another start time, machine, boot or pid namespace: this number says nothing."""
    command = {**witness(sleeper.pid, LOCK), changed: "1"}
    assert still_running(str(tmp_path), replace(OPEN, command=command)) == ""


def test_an_inherited_lock_is_enough(tmp_path: Path) -> None:
    """Whoever has the descriptor holds it, in whatever group; the last one frees it."""
    descriptor = hold(str(tmp_path), LOCK)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    os.close(descriptor)
    action = replace(OPEN, command={"pid": 0, "lock": LOCK})
    assert still_running(str(tmp_path), action) == "pid 0"
    child.communicate(b"\n")
    assert still_running(str(tmp_path), action) == ""
    forget(str(tmp_path), action)
    assert list((tmp_path / "running").iterdir()) == []


def test_a_lock_that_a_descendant_has_outlives_its_runner(tmp_path: Path) -> None:
    """Letting go of it removes the file only when nobody else has it, since the file is the evidence."""
    descriptor = hold(str(tmp_path), LOCK)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    let_go(str(tmp_path), LOCK, descriptor)
    action = replace(OPEN, command={"pid": 0, "lock": LOCK})
    forget(str(tmp_path), action)
    assert still_running(str(tmp_path), action) == "pid 0"
    child.communicate(b"\n")
    assert still_running(str(tmp_path), action) == ""
    let_go(str(tmp_path), "b" * 32, hold(str(tmp_path), "b" * 32))
    assert [each.name for each in (tmp_path / "running").iterdir()] == [f"{LOCK}.lock"]


def test_old_locks_that_are_free_are_swept(tmp_path: Path) -> None:
    """What a killed runner left is removed by a later one; a new file, and one that is held, stay."""
    held, free, new = (letter * 32 for letter in "bcd")
    descriptors = {name: hold(str(tmp_path), name) for name in (held, free, new)}
    os.close(descriptors[free])
    os.close(descriptors[new])
    for name in (held, free):
        os.utime(tmp_path / "running" / f"{name}.lock", (1, 1))
    os.close(hold(str(tmp_path), LOCK))
    assert {each.stem for each in (tmp_path / "running").iterdir()} == {held, new, LOCK}
    os.close(descriptors[held])


@pytest.mark.parametrize("what", ["link", "file"])
def test_a_folder_of_locks_that_is_not_ours_is_not_followed(tmp_path: Path, what: str) -> None:
    """A symbolic link in its place is refused, nothing behind it is touched, and no lock is told to be free."""
    elsewhere, store = tmp_path / "elsewhere", tmp_path / "store"
    store.mkdir()
    os.close(hold(str(elsewhere.parent), LOCK))
    (tmp_path / "running").rename(elsewhere)
    os.utime(elsewhere / f"{LOCK}.lock", (1, 1))
    if what == "link":
        (store / "running").symlink_to(elsewhere)
    else:
        (store / "running").touch()
    with pytest.raises(StoreReadOnly, match="running in it is a symbolic link, or no directory"):
        hold(str(store), "b" * 32)
    assert [each.name for each in elsewhere.iterdir()] == [f"{LOCK}.lock"]
    assert still_running(str(store), replace(OPEN, command={"pid": 0, "lock": LOCK})) == "pid 0"


def test_a_lock_that_cannot_be_asked_about_is_not_free(tmp_path: Path) -> None:
    """Out of descriptors, nothing is told to be gone."""
    os.close(hold(str(tmp_path), LOCK))
    action = replace(OPEN, command={"pid": 0, "lock": LOCK})
    assert still_running(str(tmp_path), action) == ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert still_running(str(tmp_path), action) == "pid 0"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"pid": True, "lock": "../../etc/passwd"},
        {"pid": "1", "lock": 7},
        {"pid": -1, "lock": ""},
        {"pid": 1, "lock": "x/y"},
        {"pid": 0, "host": None},
    ],
)
def test_what_is_recorded_is_data(tmp_path: Path, command: dict[str, Any]) -> None:
    """A damaged or forged record names no path and no process, and breaks nothing."""
    action = replace(OPEN, command=command)
    assert still_running(str(tmp_path), action) == ""
    forget(str(tmp_path), action)


def test_looking_makes_no_lock_file(tmp_path: Path) -> None:
    """Asking leaves no trace, and a closed action is never running."""
    command = witness(os.getpid(), LOCK)
    assert still_running(str(tmp_path), replace(OPEN, command=command))
    assert still_running(str(tmp_path), replace(OPEN, status="done", command=command)) == ""
    assert list(tmp_path.iterdir()) == []


# -- a runner that closes its action at the last moment ------------------------------------------


def _racing(directory: Path, agent: Agent, meanwhile: Callable[[], object]) -> Agent:
    """An agent of the same lease whose look at the command is followed at once by ``meanwhile``."""
    other = Agent(SqliteBackend(directory), agent.id, agent._keeper)
    ran: list[int] = []

    class Looking(ActionOperations):
        def _check_command_gone(self, action: Action) -> None:
            super()._check_command_gone(action)
            if not ran:
                ran.append(1)
                meanwhile()

    other._check_command_gone = Looking._check_command_gone.__get__(  # type: ignore[method-assign]
        Looking(other._backend, other.id, agent._keeper, output_threshold=2000)
    )
    return other


@pytest.mark.parametrize("class_", ["pure", "idempotent", "external"])
@pytest.mark.parametrize("how", ["settle", "begin"])
def test_what_its_runner_closed_meanwhile_stays_closed(tmp_path: Path, class_: str, how: str) -> None:
    """Between the look at the lock and the write its runner may close a step: it is done, and not attempted again."""
    with Client(local_dir=tmp_path / "store") as client, client.resume("a") as agent:
        command = {"pid": 0, "lock": LOCK}
        action = agent.begin_action("t", class_, "x", step="s", command=command)
        other = _racing(tmp_path / "store", agent, lambda: agent.end_action(action.seq, "done", "receipt"))
        if how == "settle":
            after = other.settle_step(action)
        else:
            after = other.begin_action("t", class_, "x", step="s", command=command)
        other._backend.close()
        assert (after.seq, after.status, after.result) == (action.seq, "done", "receipt")
        assert len(list(agent.view.actions())) == 1


def test_a_step_whose_command_lives_is_neither_settled_nor_begun(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """StillRunning names the process, for its own incarnation and for the next one."""
    with Client(local_dir=tmp_path / "store") as client:
        with client.resume("a") as agent:
            action = agent.begin_action("t", "pure", "x", step="s", command=witness(sleeper.pid, LOCK))
            with pytest.raises(StillRunning, match=f"pid {sleeper.pid}"):
                agent.begin_action("t", "pure", "x", step="s")
        with client.resume("a") as agent:
            assert agent.view.action(action.seq).status == "started"
            with pytest.raises(StillRunning):
                agent.settle_step(action)
            with pytest.raises(StillRunning):
                agent.resolve_action(action.seq, ActionEnd("done", resolution="r"), by="me")
            _end(sleeper)
            assert agent.settle_step(action).status == "abandoned"


def test_an_own_step_without_a_command_is_not_settled(tmp_path: Path) -> None:
    """What a program of the same session began may be running in it, though nothing shows."""
    with Client(local_dir=tmp_path / "store") as client, client.resume("a") as agent:
        action = agent.begin_action("t", "external", "x", step="s")
        assert agent.settle_step(action).status == "started"
    with Client(local_dir=tmp_path / "store") as client, client.resume("a") as agent:
        assert agent.settle_step(action).status == "unknown"
        with pytest.raises(NeedsSettling):
            agent.begin_action("t", "external", "x", step="s")
