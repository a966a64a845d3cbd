"""What ``recall verify --remote`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from store.backends.sqlite import SqliteBackend
from store.remote_errors import NotAttached
from store.shipping.opening import open_bucket
from store.shipping.remote_verify import verify_remote
from store.verify import Problem


def rows(store: SqliteBackend, agents: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What is wrong, and the end of each agent's check, as ``recall verify`` has them.

    Raises:
        NotAttached: the store is not attached to a bucket.
        RemoteUnreachable, RemoteRefused: the bucket cannot be read.
    """
    remote = store.remote()
    if remote is None or remote.state == "local":
        raise NotAttached(path=store.directory)
    for each in verify_remote(store, open_bucket(remote), agents):
        yield {"type": "problem" if isinstance(each, Problem) else "agent", **vars(each)}
