"""Directories on one bucket in memory: attached, written to and looked at by the engine itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from store.access import once
from store.backends.sqlite import SqliteBackend
from store.records import TURN
from store.shipping.attaching import Attached, attach
from store.shipping.bringing import Report
from store.shipping.bucket import DEFAULT
from store.shipping.detaching import detach
from store.shipping.head import Head
from store.shipping.opening import open_shipping
from tests.keeping import problems
from tests.shipping.machines import AGENT, head_in
from tests.shipping.memory import MEMORY, MemoryBucket


class World:
    """Machines by name, each a directory, and the one bucket."""

    def __init__(self, base: Path, bucket: MemoryBucket | None = None) -> None:
        self.base, self.bucket = base, bucket or MemoryBucket()
        self.location = MEMORY

    def directory(self, name: str) -> Path:
        return self.base / name

    def plain(self, name: str) -> SqliteBackend:
        """The machine's store without its bucket."""
        return SqliteBackend(self.directory(name))

    def opened(self, name: str, **options: Any) -> SqliteBackend:
        """The machine's store, as a command opens it."""
        store = self.plain(name)
        remote = store.remote()
        if remote is None or remote.state != "attached":
            return store
        store.close()
        return open_shipping(
            self.directory(name),
            remote,
            bucket=self.bucket,
            background=False,
            **{"ship": "barrier", "patience": 1.0, **options},
        )

    def attach(self, name: str, **options: Any) -> Attached:
        with self.plain(name) as store:
            return attach(store, self.location, connected=(self.bucket, DEFAULT), **options)

    def detach(self, name: str, how: str, **options: Any) -> list[Report]:
        with self.plain(name) as store:
            return detach(store, self.bucket, how, **options)  # type: ignore[arg-type]

    def write(self, name: str, text: str, agent: str = AGENT, **options: Any) -> None:
        """Record a turn under a lease taken for it, as ``recall turns add`` does."""
        with self.opened(name, **options) as store:
            once(store, agent, lambda it: it.record_turn("user", text))

    def texts(self, name: str, agent: str = AGENT) -> list[str]:
        """The turns that a machine has, oldest first."""
        with self.plain(name) as store:
            return [json.loads(each.body)["content"] for each in reversed(store.tail(agent, TURN, limit=100))]

    def head(self, agent: str = AGENT) -> Head:
        """The bucket's."""
        return head_in(self.bucket, agent)

    def sound(self, *names: str) -> bool:
        """Whether verify finds nothing wrong with these machines' stores."""
        return [found for name in names for found in problems(self.directory(name))] == []
