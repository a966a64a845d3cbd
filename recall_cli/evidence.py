"""What was set aside, as commands show it: of this store, and with ``--remote`` of every store on the bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from store.backend import Backend
from store.backends.sqlite import SqliteBackend
from store.errors import InvalidInput, RecallError, Unavailable
from store.text import quoted
from store.values import Action, plain

if TYPE_CHECKING:
    from store.shipping.bucket import Bucket
    from store.shipping.evidence import Evidence


def attached(backend: Backend) -> bool:
    """Whether the store ships to a bucket."""
    remote = _sqlite(backend).remote()
    return remote is not None and remote.state == "attached"


def bucket_of(backend: Backend) -> Bucket:
    """The bucket that the store ships to.

    Raises:
        InvalidInput: it ships to none.
    """
    remote = _sqlite(backend).remote()
    if remote is None or remote.state != "attached":
        hint = "attach the bucket first: recall remote attach s3://BUCKET/PREFIX"
        raise InvalidInput(field="--remote", reason="is for a store that is attached to a bucket", hint=hint)
    from store.shipping.opening import open_bucket

    return open_bucket(remote)


def collected(backend: Backend, agent: str, *, remote: bool) -> list[Evidence]:
    """What was set aside of an agent's actions, here or anywhere.

    Raises:
        InvalidInput, RemoteUnreachable, RemoteRefused, BadHead, Forked: only with ``remote``.
    """
    if remote:
        from store.shipping.evidence import everywhere

        return everywhere(_sqlite(backend), agent, bucket_of(backend))
    if agent not in _sqlite(backend).agents_branched():
        return []
    from store.shipping.evidence import here

    return here(_sqlite(backend), agent)


def outcomes(backend: Backend, agent: str, action: Action, warn: Callable[[RecallError], None]) -> list[dict[str, Any]]:
    """What asides, here and on the bucket, say of an action that the log has: rows, for whoever settles it.

    Args:
        warn: told of a bucket that cannot be asked; what is known here is returned all the same.
    """
    try:
        found = collected(backend, agent, remote=attached(backend))
    except RecallError as problem:
        from store.remote_errors import BadHead, Forked

        if not isinstance(problem, Unavailable | BadHead | Forked):
            raise
        warn(problem)
        found = collected(backend, agent, remote=False)
    return of_action(found, action)


def of_action(found: list[Evidence], action: Action) -> list[dict[str, Any]]:
    """Those that are of one action of the log, as rows."""
    return [row(each) for each in found if each.in_log and each.action.key == action.key]


def row(one: Evidence) -> dict[str, Any]:
    """A row for programs."""
    return {
        "agent": one.agent,
        **plain(one.action, without=("incarnation",)),
        "verdict": one.verdict,
        "set_aside": one.source,
        "store": one.store,
        "in_log": one.in_log,
        "at": one.at,
        "lsn": one.lsn,
    }


def line(each: dict[str, Any]) -> str:
    """One row of an action's evidence, for a person."""
    told = quoted(each["error"] or each["result"] or each["resolution"], 200)
    said = f": {told}" if each["error"] or each["result"] or each["resolution"] else ""
    return f"{each['status']} at {each['at']}{said} ({each['set_aside']}, of store {each['store'][:8]})"


def _sqlite(backend: Backend) -> SqliteBackend:
    assert isinstance(backend, SqliteBackend)  # the only one that ships, and that sets anything aside
    return backend
