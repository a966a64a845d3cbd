"""Recall's front doors: the ``recall`` command and the names for Python programs.

``from recall_cli import Client`` imports the engine when the name is first
used, so that the command itself pays only for the parts that it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.actions import ActionEnd as ActionEnd
    from store.actions import ReconcileReport as ReconcileReport
    from store.agent import Agent as Agent
    from store.agent import Context as Context
    from store.aio import AsyncClient as AsyncClient
    from store.client import Client as Client
    from store.errors import ActionClosed as ActionClosed
    from store.errors import Conflict as Conflict
    from store.errors import Corrupt as Corrupt
    from store.errors import Fenced as Fenced
    from store.errors import InvalidInput as InvalidInput
    from store.errors import LeaseExpired as LeaseExpired
    from store.errors import LeaseHeld as LeaseHeld
    from store.errors import LeaseLost as LeaseLost
    from store.errors import LeaseNotHeld as LeaseNotHeld
    from store.errors import NeedsSettling as NeedsSettling
    from store.errors import NotFound as NotFound
    from store.errors import RecallError as RecallError
    from store.errors import ResolverFailed as ResolverFailed
    from store.errors import StepMismatch as StepMismatch
    from store.errors import Unavailable as Unavailable
    from store.records import Action as Action
    from store.records import Output as Output
    from store.records import OutputRef as OutputRef
    from store.records import Pointer as Pointer
    from store.records import Turn as Turn
    from store.records import WorkingState as WorkingState

__version__ = "0.1.0"

_ERRORS = (
    "RecallError InvalidInput NotFound LeaseHeld Fenced LeaseLost LeaseExpired LeaseNotHeld "
    "Conflict ActionClosed StepMismatch Unavailable NeedsSettling ResolverFailed Corrupt"
)
_HOMES = {
    "store.client": "Client",
    "store.aio": "AsyncClient",
    "store.agent": "Agent Context",
    "store.actions": "ActionEnd ReconcileReport",
    "store.errors": _ERRORS,
    "store.records": "Action Output OutputRef Pointer Turn WorkingState",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # or a type checker would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        home = _NAMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
