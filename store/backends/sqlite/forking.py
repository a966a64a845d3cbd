"""Forks: no connection crosses one.

SQLite keeps per process, not per connection, which locks it has. A child that
inherits this bookkeeping takes the parent's locks for its own: it would write
to a log that others, who see no lock, have deleted, or be a second writer. So
every handle closes its connection before a fork, and parent and child each
open another one at their next use.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Handle(Protocol):
    """What has a connection. The first three are called in the forking thread."""

    def before_fork(self) -> None: ...

    def after_fork_here(self) -> None: ...

    def after_fork_in_child(self) -> None: ...

    def close(self) -> None: ...


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
_paused: list[Handle] = []
_order = threading.RLock()  # one fork at a time
_crossed: set[str] = set()


def watch(handle: Handle) -> None:
    """Have ``handle`` told of every fork, for as long as it lives."""
    _handles.add(handle)


def handles() -> list[Handle]:
    """All that are watched."""
    return list(_handles)


def cross(directory: str) -> None:
    """Note that a connection to this store crossed the fork that made this process."""
    _crossed.add(os.path.realpath(directory))


def crossed(directory: str) -> bool:
    """Whether one did, so that SQLite cannot be trusted with this store here."""
    return bool(_crossed) and os.path.realpath(directory) in _crossed


def _before() -> None:
    _order.acquire()
    for handle in handles():
        handle.before_fork()
        _paused.append(handle)


def _after_here() -> None:
    while _paused:
        _paused.pop().after_fork_here()
    _order.release()


def _after_in_child() -> None:
    _paused.clear()
    for handle in handles():
        handle.after_fork_in_child()
    _order.release()


os.register_at_fork(before=_before, after_in_parent=_after_here, after_in_child=_after_in_child)
