"""Where a soak takes place: one directory, or several machines on a bucket behind a proxy that does faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.soak.history import Entry, History, Log, entry_of
from bench.soak.plan import MACHINES, Event
from store import asides
from store.backends.sqlite import SqliteBackend
from store.canonical import first_hash
from store.shipping import evidence
from store.shipping.attaching import attach
from store.shipping.bucket import DEFAULT, Location
from store.shipping.fetch import Replaced, lines_after
from store.shipping.head import Head
from store.shipping.s3 import S3Bucket
from store.views import View
from tests.shipping import faults
from tests.shipping.machines import head_key
from tests.shipping.proxy import Fault, Forward, Proxy, Request
from tests.shipping.servers import CREDENTIALS, Server


class Ground:
    """One directory on this machine, and what a bucket adds to it.

    Attributes:
        place: of everything that the soak keeps.
        injected: faults that happened, by kind.
        settling, verifying: the commands, on each machine, before everything is compared, and that compare it.
    """

    store = "sqlite"
    machines = 1
    settling: Sequence[Sequence[str]] = ()
    verifying: Sequence[Sequence[str]] = (("verify",),)

    def __init__(self, place: Path) -> None:
        self.place = place
        self.injected: Counter[str] = Counter()
        self._lives = [0] * self.machines

    def directory(self, machine: int) -> Path:
        return self.place / f"machine-{machine}"

    def name(self, machine: int) -> str:
        """A machine, with the number of the life of its directory."""
        return f"machine-{machine}.{self._lives[machine]}"

    def prepare(self, machine: int) -> None:
        """Make a machine's directory."""
        SqliteBackend(self.directory(machine)).close()

    def read(self, agent: str, log: Log) -> None:
        """Read what the log has more than when it was last read."""
        with self._reader(0) as store:
            log.first = log.first or _first(store, agent)
            log.entries += map(entry_of, store.log(agent, after=log.last[0]))

    def read_again(self, agent: str) -> list[Entry]:
        """The whole log, from the start."""
        with self._reader(0) as store:
            return [entry_of(each) for each in store.log(agent)]

    @contextmanager
    def _reader(self, machine: int) -> Iterator[SqliteBackend]:
        store = SqliteBackend(self.directory(machine), read_only=True)
        try:
            yield store
        finally:
            store.close()

    def disturb(self, event: Event) -> None:
        """Do a fault to the next requests."""

    def tick(self) -> None:
        """What has to be done now and then."""

    def heal(self) -> None:
        """No more faults."""

    def gather(self, history: History, agents: list[str]) -> int:
        """Take in what was set aside, wherever it is shown; how many records that is on the machines that are left."""
        return 0

    def open_actions(self, agent: str) -> int:
        """How many calls have no outcome."""
        with self._reader(0) as store:
            return sum(1 for _ in View(store, agent).pending())


def _first(store: SqliteBackend, agent: str) -> bytes:
    lease = store.lease(agent)
    return first_hash(lease.lineage, agent) if lease else b""


class Machines(Ground):
    """Directories that are attached to one prefix of a SeaweedFS, through a proxy."""

    store = "bucket"
    machines = MACHINES
    settling = (("sync", "push", "--all"), ("sync", "pull", "--all"))
    verifying = (("verify",), ("verify", "--remote"))

    def __init__(self, place: Path, server: Server) -> None:
        super().__init__(place)
        os.environ.update(CREDENTIALS)  # for the bucket here, and for all that is started
        self.proxy = Proxy(server.endpoint)
        self.proxy.__enter__()
        direct = server.location()
        self._location = Location(**{**vars(direct), "endpoint_url": self.proxy.endpoint})
        self.bucket = S3Bucket.open(direct)
        self._injected: list[tuple[str, Fault]] = []

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__()

    def prepare(self, machine: int) -> None:
        with SqliteBackend(self.directory(machine)) as store:
            attach(store, self._location, connected=(self.bucket, DEFAULT))

    def begin_again(self, machine: int, copy: Path | None) -> None:
        """The machine's directory is gone; an empty one, or an old copy, is in its place."""
        shutil.rmtree(self.directory(machine))
        self._lives[machine] += 1
        if copy is None:
            self.prepare(machine)
        else:
            copied(copy, self.directory(machine))

    # -- faults ---------------------------------------------------------------------------------

    def disturb(self, event: Event) -> None:
        kind, fault = _FAULTS[event.fault]
        made = fault(event.pick)
        if isinstance(made, faults.Hang):
            threading.Timer(1 + 4 * event.pick, made.release).start()
        key = "head.json" if event.head_only else ""
        self._injected.append((event.fault, self.proxy.inject(made, kind, key=key, times=event.times)))

    def tick(self) -> None:
        self.proxy.seen.clear()
        if len(self._injected) > 40:
            self.heal()

    def heal(self) -> None:
        self.proxy.heal()
        for kind, fault in self._injected:
            self.injected[kind] += fault.happened
        self._injected.clear()

    # -- the log is the bucket's -------------------------------------------------------------------

    def _head(self, agent: str) -> Head | None:
        found = self.bucket.get(head_key(agent))
        return Head.parse(found.body, agent) if found else None

    def read(self, agent: str, log: Log) -> None:
        """Raises Forked if what was read before is no longer in it."""
        while True:
            head = self._head(agent)
            if head is None:
                return
            log.first = log.first or head.base_hash
            try:
                for chunk in lines_after(self.bucket, head, *log.last):
                    log.entries += [Entry.of(line, link) for _, line, link in chunk]
                return
            except Replaced:
                continue  # its objects were merged meanwhile; what came before is kept

    def read_again(self, agent: str) -> list[Entry]:
        log = Log()
        self.read(agent, log)
        return log.entries

    def open_actions(self, agent: str) -> int:
        now = {each.key: each for each in self.read_again(agent) if each.kind == "action"}
        return sum(each.body.get("status") in ("started", "unknown") for each in now.values())

    def gather(self, history: History, agents: list[str]) -> int:
        count = 0
        for machine in range(self.machines):
            with self._reader(machine) as store:
                for agent in agents:
                    if store.lease(agent) is None:
                        continue
                    shown = [each for one in asides.asides(store, agent) for each in asides.records(store, one)]
                    count += len(shown)
                    for each in shown:
                        history.kept.update(Entry.of(each.line, each.hash).uids)
        for agent in agents:
            for left in evidence._remote(self.bucket, agent, lambda problem: None):
                for each in left.records():
                    history.kept.update(Entry.of(each.line, each.hash).uids)
        return count


class _Late(Fault):
    """The connection is cut, and the request lands all the same, so many seconds later."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def act(self, request: Request, forward: Forward) -> None:
        threading.Timer(self._seconds, forward, (request,)).start()


_FAULTS: dict[str, tuple[str, Callable[[float], Fault]]] = {
    "answer lost": ("put", lambda pick: faults.AnswerLost()),
    "request lost": ("", lambda pick: faults.RequestLost()),
    "late PUT": ("put", lambda pick: _Late(0.05 + 4 * pick)),
    "503": ("", lambda pick: faults.slow_down()),
    "503, and done": ("put", lambda pick: faults.slow_down(applied=True)),
    "429": ("put", lambda pick: faults.too_many()),
    "409": ("put", lambda pick: faults.conflict()),
    "slow": ("", lambda pick: faults.Slow(0.1 + 2 * pick)),
    "cut short": ("get", lambda pick: faults.cut_short()),
    "no answer": ("", lambda pick: faults.Hang()),
}


def copied(path: Path, to: Path) -> None:
    """Copy a directory by another process: one that opens and closes a database file loses SQLite's locks on it."""
    subprocess.run(["cp", "-R", path, to], check=True)
