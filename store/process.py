"""Who a process is, and whether it is provably gone.

A pid alone says little: it is reused, and it means something else in another
container. So a process is a pid *with its start time*, inside a pid namespace,
inside a boot, on a host; only where all four are the same is an absence proof.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import lru_cache

from store.clock import boot_id
from store.value import value


@value
class Process:
    """One process, named so that no later one can be taken for it.

    Attributes:
        host: the machine's name.
        boot: the boot's id, or "" where unknown.
        pidns: the pid namespace, or "" where there are none.
        pid: its number.
        start: its start time in the system's own unit, or "" where unreadable.
    """

    host: str
    boot: str
    pidns: str
    pid: int
    start: str


def describe(pid: int) -> Process:
    """The process ``pid`` of this machine, as it is now.

    Raises:
        ProcessLookupError: there is none.
    """
    if not 0 < pid < 2**31:  # to kill(2) zero and below mean process groups
        raise ProcessLookupError(pid)
    if pid != os.getpid():
        with suppress(PermissionError):  # it exists, and is somebody else's
            os.kill(pid, 0)
    return Process(host_name(), boot_id(), _pid_namespace(), pid, _start_time(pid) or "")


def this_process() -> Process:
    """The calling process."""
    return describe(os.getpid())


@lru_cache(maxsize=1)
def host_name() -> str:
    """The machine's name, as the kernel knows it."""
    return os.uname().nodename


def provably_dead(process: Process) -> bool:
    """Whether ``process`` certainly does not run any more.

    Only absence (ESRCH), a zombie, or a readable and different start time is
    proof. Another host, boot or namespace, EPERM and anything unreadable mean
    *perhaps alive*: a takeover then waits for the lease to expire.
    """
    if process.pid <= 0 or not same_place(process):
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    state = _state(process.pid)
    if state in ("Z", "X"):
        return True
    start = _start_time(process.pid)
    return bool(start and process.start and start != process.start)


def same_place(process: Process) -> bool:
    """Whether its pid means something here: the same host, boot and pid namespace."""
    here = (host_name(), boot_id(), _pid_namespace())
    return bool(process.boot) and (process.host, process.boot, process.pidns) == here


def state_and_group(pid: int) -> tuple[str, int, str]:
    """A process's state letter, process group and start time; ("", 0, "") if unreadable."""
    fields = _stat_fields(pid)
    return (fields[0], int(fields[2]), fields[19]) if len(fields) > 19 else ("", 0, "")


def stopped(pid: int) -> bool:
    """Whether ``pid`` is stopped by a signal or a debugger (for messages only)."""
    return _state(pid) in ("T", "t")


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold any character."""
    if sys.platform != "linux":
        return []
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def _state(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[0] if fields else ""


def _start_time(pid: int) -> str | None:
    # Field 22 of proc(5), in clock ticks since boot; the list starts at field 3.
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else None


def _pid_namespace() -> str:
    # Read each time: a child may live in another namespace than its parent.
    if sys.platform != "linux":
        return ""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
