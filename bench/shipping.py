"""Shipping to a real S3 server: requests counted by kind, times as ratios to bare PUTs in the same run.

The server is SeaweedFS on this machine's disk, so times say what Recall adds to
a store that answers in milliseconds; over a network the store's share is larger.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import median_ms, row, scratch
from bench.resume import MESSAGE, SIZES
from store.access import once
from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.keeper import Keeper
from store.records import NEXT, TURN, Draft
from store.shipping.attaching import attach
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import Location
from store.shipping.opening import open_shipping
from store.shipping.s3 import S3Bucket
from tests.shipping.servers import CREDENTIALS, Server, server_named

TIMES = 100


class Bench:
    """Stores on one server, every request of theirs counted."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.requests: Counter[str] = Counter()

    def place(self) -> Location:
        """An empty place in the bucket."""
        return self.server.location()

    @contextmanager
    def store(self, name: str, location: Location, *, background: bool = False) -> Iterator[ShippingBackend]:
        """A store of that name, attached there."""
        directory = str(self.directory / name)
        bucket = S3Bucket.open(location, on_request=lambda kind: self.requests.update([kind]))
        with SqliteBackend(directory) as plain:
            if plain.remote() is None:
                attach(plain, location)
            remote = plain.remote()
        assert remote is not None
        store = open_shipping(directory, remote, ship="barrier", bucket=bucket, background=background)
        try:
            yield store
        finally:
            store.close()

    def counted(self) -> Counter[str]:
        """The requests since the last call."""
        found, self.requests = self.requests, Counter()
        return found


def resumed(store: ShippingBackend, agent: str = "a", *, background: bool = False) -> Agent:
    it = Agent(store, agent, Keeper(store, agent, ttl_ms=60_000, background=background))
    it.take()
    return it


def fill(store: ShippingBackend, agent: Agent, turns: int) -> None:
    for start in range(0, turns, 1000):
        drafts = [
            Draft(TURN, {"role": "user", "content": MESSAGE.format(n)}, seq=NEXT)
            for n in range(start, min(start + 1000, turns))
        ]
        store.append(agent._keeper.fence, drafts)


def actions(bench: Bench) -> None:
    """Conditional PUTs for each class, in a session that goes on."""
    with bench.store("actions", bench.place(), background=True) as store:
        agent = resumed(store)
        for class_, goal in (("pure", 0), ("idempotent", 1), ("external", 2)):
            bench.counted()
            for number in range(20):
                agent.end_action(agent.begin_action(f"tool-{class_}", class_, {"n": number}).seq, "done", "ok")
                time.sleep(0.03)  # as a tool takes; the close of an external one is shipped meanwhile
            time.sleep(0.2)
            puts = bench.counted()["swap"] / 20
            row(
                f"conditional PUTs of an action, {class_}",
                f"{puts:.2f}",
                puts / goal if goal else None,
                1 if goal else None,
            )
        agent.release()
        bench.counted()
        once(store, "b", lambda it: it.record_turn("user", "hello"))
        found = bench.counted()
        row("a one-shot write", ", ".join(f"{count} {kind}" for kind, count in sorted(found.items())))


def barrier(bench: Bench) -> None:
    """A barrier against a bare PUT of the same bytes, by the same client."""
    location = bench.place()
    with bench.store("barrier", location) as store:
        agent = resumed(store)
        barriers, puts = [], []
        bare, etag = S3Bucket.open(location), None
        for number in range(TIMES):
            start = time.perf_counter()
            action = agent.begin_action("tool", "idempotent", {"n": number})
            barriers.append(time.perf_counter() - start)
            agent.end_action(action.seq, "done", "ok")
            found = bare.get("agents/a/head.json")
            assert found is not None
            start = time.perf_counter()
            put = bare.swap("bare", found.body, etag)
            puts.append(time.perf_counter() - start)
            assert put.outcome == "done"
            etag = put.etag
        agent.release()
    mine, theirs = statistics.median(barriers) * 1e3, statistics.median(puts) * 1e3
    row("one bare conditional PUT of a head", f"{theirs:.2f} ms")
    row("begin of an action, its barrier included", f"{mine:.2f} ms", mine / theirs, 1.5)


def empty_machine(bench: Bench) -> None:
    """Resume where there is nothing but the bucket."""
    for turns in SIZES:
        location = bench.place()
        with bench.store(f"from-{turns}", location) as store:
            agent = resumed(store)
            fill(store, agent, turns)
            agent.release()
        size = sum(each.size for each in S3Bucket.open(location).list("agents/"))
        with bench.store(f"to-{turns}", location) as store:
            bench.counted()
            start = time.perf_counter()
            agent = resumed(store)
            assert agent.refresh().briefing
            taken = time.perf_counter() - start
            requests = sum(bench.counted().values())
            agent.release()
        row(f"resume on an empty machine, {turns:,} turns", f"{taken:.2f} s", None)
        row("  its requests; bytes in the bucket per 1,000 turns", f"{requests}; {size / turns * 1000:,.0f}")


def idle(bench: Bench) -> None:
    """What a held and idle lease asks for, once it was given back: its keeper goes on knocking."""
    with bench.store("idle", bench.place(), background=True) as store:
        agent = resumed(store)
        agent.record_turn("user", "hello")
        store.idle_ms = 0
        agent._keeper.renew()
        bench.counted()
        for _ in range(180):  # an hour of renewals at a third of the ttl
            agent._keeper.renew()
        row("requests of an idle hour", str(sum(bench.counted().values())), None)
        agent.release()


def backlog(bench: Bench) -> None:
    """A barrier while 100,000 lazy records are pushed, against one without them."""
    location = bench.place()
    with bench.store("backlog", location, background=True) as store:
        loud, quiet = resumed(store, "loud"), resumed(store, "quiet")
        loud.record_turn("user", "first")

        def begin() -> None:
            action = quiet.begin_action("tool", "idempotent", {})
            quiet.end_action(action.seq, "done")

        alone = median_ms(begin, 50)
        fill(store, loud, 100_000)
        pushing = threading.Thread(target=lambda: store.shipper.push(loud._keeper.fence))
        start = time.perf_counter()
        pushing.start()
        taken = []
        while pushing.is_alive():
            before = time.perf_counter()
            begin()
            taken.append((time.perf_counter() - before) * 1e3)
        whole = time.perf_counter() - start
        beside = statistics.median(taken)
        row("a barrier alone", f"{alone:.2f} ms")
        row(
            f"a barrier beside a backlog ({len(taken)} of them in {whole:.1f} s)", f"{beside:.2f} ms", beside / alone, 2
        )
        quiet.release()
        loud.release()


def main() -> None:
    import os

    os.environ.update(CREDENTIALS)
    with scratch() as directory:
        server = server_named("seaweedfs", directory)
        bench = Bench(server, directory)
        for part in (actions, barrier, empty_machine, idle, backlog):
            part(bench)


if __name__ == "__main__":
    main()
