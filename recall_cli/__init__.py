"""Recall's front doors: the ``recall`` command and the names for Python programs.

``from recall_cli import Client`` imports the engine when the name is first
used, so that the command itself pays only for the parts that it runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.actions import ActionEnd as ActionEnd
    from store.actions import ReconcileReport as ReconcileReport
    from store.agent import Agent as Agent
    from store.aio import AsyncAgent as AsyncAgent
    from store.aio import AsyncClient as AsyncClient
    from store.client import Client as Client
    from store.context import Context as Context
    from store.errors import ActionClosed as ActionClosed
    from store.errors import ActionNotUnknown as ActionNotUnknown
    from store.errors import AgentArchived as AgentArchived
    from store.errors import AgentExists as AgentExists
    from store.errors import AlreadyBegun as AlreadyBegun
    from store.errors import BadImport as BadImport
    from store.errors import BadRecord as BadRecord
    from store.errors import Conflict as Conflict
    from store.errors import Corrupt as Corrupt
    from store.errors import Fenced as Fenced
    from store.errors import InvalidInput as InvalidInput
    from store.errors import LeaseExpired as LeaseExpired
    from store.errors import LeaseHeld as LeaseHeld
    from store.errors import LeaseLost as LeaseLost
    from store.errors import LeaseNotHeld as LeaseNotHeld
    from store.errors import MayStillRun as MayStillRun
    from store.errors import NeedsSettling as NeedsSettling
    from store.errors import NetworkFilesystem as NetworkFilesystem
    from store.errors import NotFound as NotFound
    from store.errors import NotLastAttempt as NotLastAttempt
    from store.errors import PlatformUnsupported as PlatformUnsupported
    from store.errors import RecallError as RecallError
    from store.errors import RefTaken as RefTaken
    from store.errors import ResolverFailed as ResolverFailed
    from store.errors import StepFailed as StepFailed
    from store.errors import StepMismatch as StepMismatch
    from store.errors import StillRunning as StillRunning
    from store.errors import StoreBusy as StoreBusy
    from store.errors import StoreClosed as StoreClosed
    from store.errors import StoreDamaged as StoreDamaged
    from store.errors import StoreEmpty as StoreEmpty
    from store.errors import StoreForeign as StoreForeign
    from store.errors import StoreFull as StoreFull
    from store.errors import StoreMissing as StoreMissing
    from store.errors import StoreMoved as StoreMoved
    from store.errors import StoreNewer as StoreNewer
    from store.errors import StoreReadOnly as StoreReadOnly
    from store.errors import StoreUnreadable as StoreUnreadable
    from store.errors import TokenMismatch as TokenMismatch
    from store.errors import Unavailable as Unavailable
    from store.remote_errors import AttachedElsewhere as AttachedElsewhere
    from store.remote_errors import BadHead as BadHead
    from store.remote_errors import BucketUnfit as BucketUnfit
    from store.remote_errors import Forked as Forked
    from store.remote_errors import NotApplied as NotApplied
    from store.remote_errors import NotAttached as NotAttached
    from store.remote_errors import NotShipped as NotShipped
    from store.remote_errors import OtherLog as OtherLog
    from store.remote_errors import Queued as Queued
    from store.remote_errors import RemoteChanged as RemoteChanged
    from store.remote_errors import RemoteForeign as RemoteForeign
    from store.remote_errors import RemoteNewer as RemoteNewer
    from store.remote_errors import RemoteRefused as RemoteRefused
    from store.remote_errors import RemoteUnreachable as RemoteUnreachable
    from store.remote_errors import TakenAway as TakenAway
    from store.values import Action as Action
    from store.values import Output as Output
    from store.values import OutputRef as OutputRef
    from store.values import Pointer as Pointer
    from store.values import Turn as Turn
    from store.values import WorkingState as WorkingState

__version__ = "1.0.0"

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ERRORS = (
    "RecallError InvalidInput NotFound StoreMissing StoreEmpty LeaseHeld Fenced LeaseLost LeaseExpired "
    "LeaseNotHeld TokenMismatch Conflict ActionClosed ActionNotUnknown StepMismatch NotLastAttempt RefTaken "
    "AgentExists AgentArchived Unavailable StoreBusy StoreClosed StoreMoved StoreFull StoreReadOnly StoreUnreadable "
    "StoreNewer NetworkFilesystem PlatformUnsupported NeedsSettling StepFailed StillRunning AlreadyBegun "
    "MayStillRun ResolverFailed Corrupt StoreForeign StoreDamaged BadRecord BadImport"
)
_REMOTE_ERRORS = (
    "RemoteUnreachable RemoteRefused BucketUnfit RemoteNewer RemoteForeign BadHead NotAttached AttachedElsewhere "
    "RemoteChanged NotShipped OtherLog TakenAway Forked Queued NotApplied"
)
_HOMES = {
    "store.client": "Client",
    "store.aio": "AsyncAgent AsyncClient",
    "store.agent": "Agent",
    "store.context": "Context",
    "store.actions": "ActionEnd ReconcileReport",
    "store.errors": _ERRORS,
    "store.remote_errors": _REMOTE_ERRORS,
    "store.values": "Action Output OutputRef Pointer Turn WorkingState",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [*_NAMES]  # noqa: PLE0604 (they are strings)


if not TYPE_CHECKING:  # or a type checker would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        home = _NAMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        check_engine()
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


def check_engine() -> None:
    """Refuse, before anything fails in words of its own, a module of the user's that goes by our engine's name.

    Raises:
        ImportError: it names the file.
    """
    import store

    if not any(os.path.samefile(os.path.join(each, os.pardir), _ROOT) for each in getattr(store, "__path__", ())):
        where = getattr(store, "__file__", None) or "another module"
        raise ImportError(
            f"recall_cli needs its own package 'store', but Python found {where} under that name; "
            "rename that file, or start the program from elsewhere",
            name="store",
            path=where,
        )
