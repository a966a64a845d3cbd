"""Whether an open action is still being worked on: its command may run although its runner is gone.

Two witnesses, and either is enough. A *lock file* of
the action, whose open descriptor the whole command tree inherits: the kernel
frees it when the last of them is gone. And the command's *pid, start time and
process group*, recorded before it started. A program that leaves the group and
closes its descriptors escapes both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store.clock import Instant
from store.errors import RecallError, StoreFull, StoreReadOnly
from store.lease import Lease
from store.process import Process, describe, provably_dead, same_place, state_and_group
from store.values import Action

DIRECTORY = "running"
_SUFFIX = ".lock"
_NO_FOLDER = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EEXIST)  # EMLINK: what the BSDs say of a link
_SWEPT_AFTER = 3600  # seconds


def hold(directory: str, name: str) -> int:
    """Make and lock a new lock file; its descriptor, which children inherit. Give it back with ``let_go``.

    Raises:
        StoreReadOnly, StoreFull: it cannot be made, or the directory of the locks is not one of ours.
    """
    try:
        (Path(directory) / DIRECTORY).mkdir(mode=0o700, exist_ok=True)
        folder = _open_folder(directory)
        try:
            _sweep(directory, folder)
            descriptor = os.open(_file(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as problem:
        raise _refusal(problem, directory) from problem
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)
    return descriptor


def _refusal(problem: OSError, directory: str) -> RecallError:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(path=directory)
    if problem.errno in _NO_FOLDER:
        return StoreReadOnly(
            path=directory,
            reason=f"{DIRECTORY} in it is a symbolic link, or no directory",
            hint=f"move {DIRECTORY} away; recall makes a new one",
        )
    return StoreReadOnly(path=directory, reason=f"{DIRECTORY}: {(problem.strerror or str(problem)).lower()}")


def let_go(directory: str, name: str, descriptor: int) -> None:
    """Close a lock's descriptor; remove its file if that freed it.

    Whoever else has the lock is still at work, and the file is what tells so,
    above all if the action could not be closed.
    """
    os.close(descriptor)
    _remove_if_free(directory, name)


def _sweep(directory: str, folder: int) -> None:
    """Remove what killed runners left behind; a new one is spared, since it may not be locked yet."""
    before = time.time() - _SWEPT_AFTER
    for each in os.listdir(folder):
        try:
            if each.endswith(_SUFFIX) and os.stat(each, dir_fd=folder, follow_symlinks=False).st_mtime < before:
                _remove_if_free(directory, each.removesuffix(_SUFFIX))
        except OSError:
            continue


def witness(pid: int, lock: str) -> dict[str, Any]:
    """What an action records of its command before it starts.

    Args:
        pid: of the command, which leads its own process group.
        lock: the name of the lock file that it inherits.
    """
    process = describe(pid)
    return {
        "host": process.host,
        "boot": process.boot,
        "pidns": process.pidns,
        "pid": pid,
        "start": process.start,
        "lock": lock,
    }


def still_running(directory: str, action: Action) -> str:
    """``pid N`` if the command of an open action is seen to be alive, else ""."""
    command = action.command
    if not action.open or not command:
        return ""
    pid = command.get("pid")
    pid = pid if isinstance(pid, int) and not isinstance(pid, bool) else 0
    if _lock_held(directory, command.get("lock")) or _alive(pid, command):
        return f"pid {pid}"
    return ""


def may_be_acting(lease: Lease, now: Instant) -> bool:
    """Whether somebody may act under the lease right now: it is in force, and its holder not provably dead."""
    return lease.live(now) and not provably_dead(lease.process)


def stuck(directory: str, action: Action, lease: Lease | None, now: Instant) -> bool:
    """Whether an open action goes on only if a person, a resolver or a resumption sees to it.

    It is unknown, or nobody holds the lease who could still close it; in both
    cases its command is not seen to be running.
    """
    if not action.open or still_running(directory, action):
        return False
    return action.status == "unknown" or lease is None or not may_be_acting(lease, now)


def forget(directory: str, action: Action) -> None:
    """Remove the lock file of a command that is gone."""
    name = action.command.get("lock")
    if isinstance(name, str) and _is_plain(name):
        _remove_if_free(directory, name)


def _remove_if_free(directory: str, name: str) -> None:
    if _lock_held(directory, name):
        return
    try:
        folder = _open_folder(directory)
    except OSError:
        return
    try:
        os.unlink(_file(name), dir_fd=folder)
    except OSError:
        pass  # gone already, or swept another time
    finally:
        os.close(folder)


def _lock_held(directory: str, name: object) -> bool:
    """Whether somebody has the lock, or that cannot be told: only a missing file and a free lock say no."""
    if not isinstance(name, str) or not _is_plain(name):
        return False
    try:
        folder = _open_folder(directory)
        try:
            descriptor = os.open(_file(name), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open_folder(directory: str) -> int:
    """The directory of the locks, itself and no link to another."""
    return os.open(Path(directory) / DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _file(name: str) -> str:
    return name + _SUFFIX


def _alive(pid: int, command: Mapping[str, Any]) -> bool:
    """Whether the command or another member of its process group lives, on this machine and boot."""
    host, boot, pidns, began = (str(command.get(name, "")) for name in ("host", "boot", "pidns", "start"))
    if pid <= 1 or not same_place(Process(host, boot, pidns, pid, began)):
        return False
    state, _, start = state_and_group(pid)
    if start:
        if start != began:
            return False  # the number was given to another process, so the group is gone too
        if state not in ("Z", "X"):
            return True
    return _group_lives(pid)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    if sys.platform != "linux":
        return True
    # Members that nobody has reaped yet answer to signals, but do nothing any more.
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state, its_group, _ = state_and_group(int(entry))
            if its_group == group and state not in ("Z", "X"):
                return True
    return False


def _is_plain(name: str) -> bool:
    """Whether a recorded name is one of ours, and no path (stored text is data)."""
    return name.replace("-", "").isalnum() and name.isascii()
