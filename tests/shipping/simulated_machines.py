"""The machines of the simulation and the processes on them: real stores, keepers and barriers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.marks import Remote
from store.errors import LeaseLost, NotFound
from store.keeper import Keeper
from store.lease import Fence, LeaseRequest
from store.process import Process
from store.records import ACTION, NEXT, TURN, Draft, Record
from store.shipping.backend import ShippingBackend
from store.shipping.packing import Limits
from store.shipping.protocol import elapsed_ms
from store.shipping.shipper import Shipper
from store.shipping.upkeep import collect
from tests.shipping.history import Broken
from tests.shipping.simulated import HostClock, View

if TYPE_CHECKING:
    from tests.shipping.simulation import World

AGENT = "billing-migrator"
TTL_MS = 60_000
LIMITS = Limits(inline=1500, spill=1000, segment=3000)  # so that a short history has segments


class Machine:
    """A directory, and what was ever appended in it."""

    def __init__(self, world: World, name: str, place: Path) -> None:
        self.name, self.path, self._world = name, place / name, world
        self.clock = HostClock(world.time, f"boot-{name}")
        self.lines: set[bytes] = set()

    def attach(self) -> None:
        with SqliteBackend(self.path, clock=self.clock, random=self._world.digits) as store:
            store.shipping(lambda ledger: ledger.put_remote(Remote("attached", 1, "r", "{}", "{}", "2026-11-03")))

    def open(self) -> ShippingBackend:
        view = View(self._world.bucket, self.name)
        store = ShippingBackend(self.path, view, clock=self.clock, random=self._world.digits)
        remote = store.remote()
        assert remote is not None
        store.shipper = Shipper(store, view, remote, patience=8.0, limits=LIMITS, pause=self._world.pass_time)
        return store


class Worker:
    """One process on a machine, and the calls whose barrier it has not seen end."""

    def __init__(self, world: World, machine: Machine, number: int, adopt: Fence | None = None) -> None:
        self.machine, self.number = machine, number
        self.store = machine.open()
        process = Process(machine.name, machine.clock.boot, "", number, str(number))
        self.keeper = Keeper(self.store, AGENT, ttl_ms=TTL_MS, holder=f"p{number}", process=process, background=False)
        self.adopted = adopt is not None
        if adopt is not None:
            self.keeper = Keeper.adopt(self.store, adopt, renew=True)
        self.waiting: list[Record] = []
        self.world = world

    def __str__(self) -> str:
        return f"p{self.number} on {self.machine.name}"

    def append(self, kind: str, body: dict[str, Any]) -> Record:
        def write(fence: Fence, renew: bool) -> Record:
            return self.store.append(fence, [Draft(kind, body, seq=NEXT)], renew=renew)[0]

        return self.keeper.write(write)

    def take_by_force(self) -> None:
        """Take the lease whoever has it, as an operator decides it."""
        number = str(self.number)
        process = Process(self.machine.name, self.machine.clock.boot, "", self.number, number)
        inc = self.world.digits.hex(32)
        asked = LeaseRequest(AGENT, inc, f"p{number}", process, TTL_MS, breaking=True, by="op", why="stuck")
        self.keeper = Keeper.adopt(self.store, self.store.acquire(asked).lease.fence, renew=True)
        self.adopted = True

    def turn(self, size: int) -> None:
        self.append(TURN, {"role": "user", "content": "x" * size})

    def begin(self) -> None:
        """Append an intent, and start its tool when the bucket has it."""
        self.intend(self.append)
        self.secure()

    def intend_beside(self) -> None:
        """Append an intent as another thread would, while this one waits for the bucket."""
        fence = self.keeper.fence
        self.intend(lambda kind, body: self.store.append(fence, [Draft(kind, body, seq=NEXT)])[0])

    def intend(self, append: Callable[[str, dict[str, Any]], Record]) -> None:
        random = self.world.digits
        body: dict[str, Any] = {
            "tool": "mail", "class": "external", "key": random.hex(32), "status": "started",
            "epoch": self.keeper.epoch, "incarnation": self.keeper.incarnation, "ship": "barrier",
        }  # fmt: skip
        record = append(ACTION, body)
        self.world.history.appended(record, body)
        self.waiting.append(record)

    def secure(self) -> None:
        """Wait for the barriers that are still open; the records stay the same ones."""
        for record in list(self.waiting):
            calls = len(self.world.bucket.calls)
            try:
                self.keeper.write(lambda fence, _, record=record: self.store.secure(fence, record))  # type: ignore[misc]
            except LeaseLost:
                self.waiting.clear()
                raise
            lease, now = self.store.lease(AGENT), self.machine.clock.now()
            if lease is None or elapsed_ms(lease.renewed, now) >= lease.ttl_ms:
                raise Broken("a tool starts under a lease whose time is over")
            self.world.history.secured(record, self.keeper.fence, asked=len(self.world.bucket.calls) > calls)
            self.waiting.remove(record)

    def collect(self) -> None:
        """Delete at once what the head does not need; whoever is uploading meanwhile must not lose it."""
        with suppress(NotFound):
            if collect(self.store.shipper, AGENT, grace=0.0).objects:
                self.world.count("collected")
        self.world.history.reread()

    def end(self) -> None:
        """Close an action that is open; late or not."""
        for record in self.store.in_force(AGENT, ACTION, limit=1):
            body = {**record.fields(), "status": "done"}
            self.keeper.write(
                lambda fence, _: self.store.append(fence, [Draft(ACTION, body, seq=record.seq)])  # noqa: B023
            )
