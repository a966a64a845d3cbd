"""A world for one test: a place on a real server, a proxy in front of it, machines, and what must hold of them all."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store import asides
from store.access import break_lease
from store.agent import Agent
from store.lease import Fence
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import DEFAULT, Location
from store.shipping.fetch import Line, lines_after
from store.shipping.head import Head
from store.shipping.s3 import S3Bucket
from tests.keeping import problems
from tests.shipping.machines import AGENT, head_in, machine, resumed
from tests.shipping.proxy import Proxy, Seen
from tests.shipping.servers import Server

# A client takes a third of a second to make, so those of a worker serve all its tests; so does the proxy.
_shared: dict[tuple[int, str], tuple[Proxy, S3Bucket, S3Bucket]] = {}


def _of(server: Server) -> tuple[Proxy, S3Bucket, S3Bucket]:
    here = (os.getpid(), server.endpoint)
    if here not in _shared:
        proxy = Proxy(server.endpoint)
        proxy.__enter__()
        location = server.location()
        through = S3Bucket.open(server.location(endpoint_url=proxy.endpoint), deadline=3.0)
        _shared[here] = proxy, S3Bucket.open(location), through
    return _shared[here]


class World:
    """Machines on one place of one server.

    Attributes:
        location: the place as those see it who come through the proxy.
        proxy: what is between the machines and the server; nothing is injected yet.
        direct: the bucket past the proxy.
        bucket: the bucket through it.
    """

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.proxy, direct, through = _of(server)
        place = server.location()
        self.location = Location(**{**vars(place), "endpoint_url": self.proxy.endpoint})
        self.direct = S3Bucket(place, DEFAULT, direct._clients)
        self.bucket = S3Bucket(self.location, DEFAULT, through._clients)
        self.proxy.seen.clear()
        self._stores: list[ShippingBackend] = []
        self._promised: list[tuple[str, int, bytes]] = []

    def machine(self, name: str, **options: Any) -> ShippingBackend:
        """The store of the machine ``name``; through the proxy, without a thread of its own unless asked for."""
        given = {"bucket": self.bucket, "patience": 10.0, **options}
        store = machine(self.directory / name, self.location, **given)
        self._stores.append(store)
        return store

    def successor(self, name: str, agent: str = AGENT) -> Agent:
        """The agent, taken from whoever has it, on a machine that has another way to the server."""
        store = self.machine(name, bucket=self.direct)
        break_lease(store, agent, by="tester", why="the machine is gone")
        return resumed(store, agent)

    def close(self) -> None:
        """End what the test left open."""
        self.proxy.heal()
        self.forget()

    def forget(self) -> None:
        """Close the machines, and check no more of them."""
        while self._stores:
            self._stores.pop().close()

    # -- what is in the bucket ------------------------------------------------------------------

    def head(self, agent: str = AGENT) -> Head:
        """The head as it is."""
        return head_in(self.direct, agent)

    def log(self, agent: str = AGENT) -> list[Line]:
        """The whole log in the bucket: lsn, line, hash."""
        head = self.head(agent)
        return [line for part in lines_after(self.direct, head, head.base, head.base_hash) for line in part]

    def names(self, agent: str = AGENT) -> list[str]:
        """The keys of the log in the bucket, by lsn."""
        return [json.loads(line)["key"] for _, line, _ in self.log(agent)]

    def filed(self, agent: str = AGENT) -> list[dict[str, Any]]:
        """What is filed as set aside, line by line."""
        lines = []
        for each in self.direct.list(f"agents/{agent}/aside/"):
            found = self.direct.get(each.key)
            assert found is not None
            lines += [json.loads(line) for line in gzip.decompress(found.body).splitlines()]
        return lines

    def puts(self) -> list[Seen]:
        """The conditional writes of heads that came to the proxy."""
        return [each for each in self.proxy.of("put") if each.request.key.endswith("head.json")]

    def last_answer(self) -> int:
        """The status that the newest of them was answered with."""
        reply = self.puts()[-1].reply
        assert reply is not None
        return reply.status

    @contextmanager
    def no_puts(self) -> Iterator[None]:
        """Nothing is written to a head in this block."""
        before = len(self.puts())
        yield
        assert len(self.puts()) == before, "a write to the head although nothing may be written"

    # -- what must hold ----------------------------------------------------------------------------

    def promise(self, store: ShippingBackend, lsn: int | None = None, agent: str = AGENT) -> None:
        """All that the log has up to now was called durable."""
        at = store.counters(agent).lsn if lsn is None else lsn
        (record,) = store.log(agent, after=at - 1, limit=1)
        self.told(agent, at, record.hash)

    def told(self, agent: str, lsn: int, link: bytes) -> None:
        """Somebody said that the log is durable up to there."""
        self._promised.append((agent, lsn, link))

    def check(self, *agents: str) -> None:
        """The invariants, over the bucket and every machine's directory."""
        for agent in agents or (AGENT,):
            found = {lsn: (line, link) for lsn, line, link in self.log(agent)}
            head = self.head(agent)
            assert list(found) == list(range(head.base + 1, head.last + 1)), "lsn is not dense"
            for whose, lsn, link in self._promised:
                assert whose != agent or found[lsn][1] == link, f"lsn {lsn} was durable, and is not in the log"
            _check_epochs(json.loads(line) for line, _ in found.values())
        for name in {store.directory for store in self._stores}:
            assert problems(Path(name)) == []


def _check_epochs(lines: Iterator[dict[str, Any]]) -> None:
    """Epochs never fall, and each has one incarnation and was begun by its own record."""
    epoch = 0
    for line in lines:
        assert line["epoch"] >= epoch, "an old epoch wrote after a newer one"
        if line["kind"] == "lease" and json.loads(line["body"])["event"] == "acquired":
            assert line["epoch"] > epoch, "an epoch was begun twice"
            assert int(line["key"].rpartition(":")[2]) == line["epoch"]
        elif line["epoch"] > epoch:
            raise AssertionError(f"epoch {line['epoch']} was never begun")
        epoch = line["epoch"]


def left(store: ShippingBackend, agent: str = AGENT) -> list[list[str]]:
    """The keys of what was set aside, by aside."""
    return [[each.key for each in asides.records(store, one)] for one in asides.asides(store, agent)]


def raised(kind: type[Exception], work: Callable[[], object]) -> Any:
    """The exception of ``kind`` that ``work`` raises."""
    try:
        work()
    except kind as problem:
        return problem
    raise AssertionError(f"no {kind.__name__}")


def store_of(agent: Agent) -> ShippingBackend:
    """The store that an agent writes to."""
    store = agent._backend
    assert isinstance(store, ShippingBackend)
    return store


def fence_of(agent: Agent) -> Fence:
    """What an agent proves at each write."""
    return agent._keeper.fence
