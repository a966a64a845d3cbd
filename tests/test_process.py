"""Whether a process is provably gone: only ESRCH, a zombie, or another start time is proof."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from store.process import Process, describe, provably_dead, stopped, this_process
from tests.engine import run_python


def ended_process() -> Process:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    found = describe(child.pid)
    child.kill()
    child.communicate()
    return found


def test_a_process_that_is_gone_is_dead() -> None:
    """Same host, boot, namespace, and no such pid: that is proof."""
    assert provably_dead(ended_process())


def test_a_running_or_stopped_process_is_not_dead() -> None:
    """This process, a child, and a child stopped by SIGSTOP are alive."""
    assert not provably_dead(this_process())
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = describe(child.pid)
        assert not provably_dead(found)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert not provably_dead(found)
    finally:
        child.kill()
        child.communicate()


def test_a_zombie_is_dead() -> None:
    """A killed process that its parent has not waited for cannot act any more."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    found = describe(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert provably_dead(found)
    child.communicate()


def test_a_pid_that_was_reused_is_not_the_holder() -> None:
    """The pid runs, but started at another time: the holder is dead."""
    assert provably_dead(replace(this_process(), start="1"))


@pytest.mark.parametrize("field", ["host", "boot", "pidns"])
def test_what_another_host_boot_or_container_says_is_no_proof(field: str) -> None:
    """Absence proves nothing about a pid of elsewhere."""
    assert not provably_dead(replace(ended_process(), **{field: "another"}))  # type: ignore[arg-type]


def test_without_a_boot_id_or_a_start_time_nothing_is_proved() -> None:
    """An unknown boot means alive; an unknown start time means that a running pid may be the holder."""
    assert not provably_dead(replace(ended_process(), boot=""))
    assert not provably_dead(replace(this_process(), start=""))
    assert provably_dead(replace(ended_process(), start=""))


@pytest.mark.parametrize("pid", [0, -1, 2**31, 10**30])
def test_a_number_that_is_no_pid_is_neither_alive_nor_dead(pid: int) -> None:
    """Numbers that kill(2) takes for groups, or not at all, prove nothing and describe nobody."""
    assert not provably_dead(replace(this_process(), pid=pid))
    with pytest.raises(ProcessLookupError):
        describe(pid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not signal root's processes")
def test_a_process_that_may_not_be_signalled_is_alive() -> None:
    """EPERM says that the pid exists; with the right start time it is the holder, alive."""
    script = """
import json, os, sys
from store.process import Process, describe, provably_dead, this_process
provably_dead(this_process())  # what that imports may not be readable for the other user
os.setgroups([]); os.setgid(65534); os.setuid(65534)
given = Process(*json.loads(sys.argv[1]))
print(provably_dead(given), describe(given.pid).pid == given.pid)
"""
    found = this_process()
    fields = json.dumps([found.host, found.boot, found.pidns, found.pid, found.start])
    assert run_python(script, fields) == "False True\n"


def test_a_process_is_described_by_what_makes_it_unique() -> None:
    """Host, boot, namespace, pid and start time; the same process is described the same."""
    found = this_process()
    assert found.pid == os.getpid()
    assert found.host == os.uname().nodename
    assert found.boot
    assert found.start
    assert describe(os.getpid()) == found
    assert not stopped(os.getpid())
