"""Real processes that work for an agent, forked from one that has everything imported: they are there in no time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.engine import python
from tests.shipping.proxy import Proxy
from tests.shipping.servers import CREDENTIALS

WAIT = 30.0  # seconds

_SCRIPT = """
import os, signal, sys, threading, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who is killed is gone, and no zombie
from store.access import break_lease, exported
from store.client import Client
from store.errors import RecallError
from store.opening import open_store
from store.shipping.bucket import Location
from store.shipping.s3 import S3Bucket
import store.context, store.shipping.opening, store.shipping.upkeep, store.backends.sqlite.ledger

S3Bucket.open(Location("warm", endpoint_url="http://127.0.0.1:9"))._clients.client(True)

class Worker:
    def __init__(self, said, directory, agent):
        self.said, self.directory, self.agent = open(said, "a", buffering=1), directory, agent

    def tell(self, *words):
        print(*words, file=self.said)

    def durable(self, it):
        last = next(it._backend.log(self.agent, after=it._backend.counters(self.agent).lsn - 1))
        self.tell("durable", last.lsn, last.hash.hex())

    def told(self, work):
        try:
            work()
            return "done"
        except RecallError as problem:
            return problem.code

    def stop(self):
        self.tell("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)

    def life(self):
        # Begin, end, spill, release.
        client = Client(local_dir=self.directory)
        it = client.resume(self.agent)
        self.tell("epoch", it.epoch)
        it.record_turn("user", "hello")
        email = it.begin_action("email", "external", "to the customer", step="email")
        self.durable(it)
        self.tell("ran", email.seq, email.key)
        it.end_action(email.seq, "done", "sent")
        for number in range(12):
            it.record_turn("assistant", f"{number} " + "x" * 7000)
        charge = it.begin_action("charge", "idempotent", "7 EUR")
        self.durable(it)
        self.tell("ran", charge.seq, charge.key)
        it.end_action(charge.seq, "done", "paid")
        client.close()
        self.tell("released")

    def takeover(self):
        # From an operator's word to the first barrier, on an empty machine.
        client = Client(local_dir=self.directory)
        break_lease(client.backend, self.agent, by="tester", why="the machine is gone")
        it = client.resume(self.agent)
        self.tell("epoch", it.epoch)
        it.begin_action("lookup", "idempotent", "x")
        self.durable(it)
        client.close()
        self.tell("released")

    def sleeper(self):
        # Stopped past its lease, after a barrier.
        client = Client(local_dir=self.directory)
        it = client.resume(self.agent, lease_ttl=1)
        email = it.begin_action("email", "external", "to the customer")
        self.durable(it)
        self.stop()
        for work in (
            lambda: it.end_action(email.seq, "done", "sent"),
            lambda: it.record_turn("user", "late"),
            lambda: it.begin_action("email", "external", "again"),
        ):
            self.tell(self.told(work))
        self.tell(self.told(client.close))

    def barrier(self):
        # One barrier under a short lease.
        client = Client(local_dir=self.directory)
        it = client.resume(self.agent, lease_ttl=1)
        self.tell("resumed")
        self.tell(self.told(lambda: it.begin_action("email", "external", "to the customer")))
        self.tell(self.told(lambda: it.record_turn("user", "late")))
        self.tell(self.told(client.close))

    def session(self, token, name, count):
        # One of several processes under one token.
        backend = open_store(self.directory)
        it = exported(backend, self.agent, token)
        for number in range(int(count)):
            it.begin_action("charge", "idempotent", f"{name}-{number}")
        self.durable(it)
        backend.close()

    def forking(self):
        # A child may not write, and its end gives nothing back.
        client = Client(local_dir=self.directory)
        it = client.resume(self.agent)
        it.begin_action("charge", "idempotent", "parent, before")
        child = os.fork()
        if not child:
            begin = lambda: it.begin_action("charge", "idempotent", "child")
            self.tell(self.told(lambda: it.record_turn("user", "child")), self.told(begin))
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        it.begin_action("charge", "idempotent", "parent, after")
        self.durable(it)
        client.close()
        self.tell("released")

    def forking_midway(self):
        # A child is forked while another thread has a write under way, and lives on.
        client = Client(local_dir=self.directory)
        it = client.resume(self.agent)
        begun = threading.Thread(target=it.begin_action, args=("charge", "idempotent", "1"))
        begun.start()
        self.tell("begun")
        while not os.path.exists(self.directory + "/go"):
            time.sleep(0.01)
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        self.tell("child", child)
        begun.join()
        it.begin_action("charge", "idempotent", "2")
        self.durable(it)
        client.close()
        os.kill(child, 0)
        self.tell("released", "and the child lives")
        os.kill(child, signal.SIGKILL)

for line in sys.stdin:
    what, *rest = line.split()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            worker = Worker(*rest[:3])
            getattr(worker, what)(*rest[3:])
            worker.tell("end")
        except BaseException as problem:
            worker.tell("failed", type(problem).__name__, problem)
        os._exit(0)
    print(child, flush=True)
"""


class Worker:
    """One of them.

    Attributes:
        pid: of the process; nobody waits for it, so a signal may come too late.
    """

    def __init__(self, pid: int, said: Path) -> None:
        self.pid, self._said = pid, said

    def said(self, first: str = "") -> list[list[str]]:
        """What it has told so far, as words, by line; those that begin with ``first``."""
        text = self._said.read_text() if self._said.exists() else ""
        lines = [line.split() for line in text.splitlines()]
        return [line for line in lines if not first or line[0] == first]

    def wait_for(self, first: str) -> list[str]:
        """The line that begins with ``first``, when it has been told."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if found := self.said(first):
                return found[0]
            assert first == "failed" or not self.said("failed"), self.said("failed")
            time.sleep(0.01)
        raise AssertionError(f"{first} was not said; but {self.said()}")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        end = time.monotonic() + WAIT
        while os.path.exists(f"/proc/{self.pid}"):
            assert time.monotonic() < end, f"{self.pid} does not go"
            time.sleep(0.002)

    def stopped_at(self, proxy: Proxy, number: int) -> bool:
        """Whether request ``number`` of those that it makes came to the proxy, before it ended."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if len(proxy.seen) > number:
                return True
            if self.said("end"):
                return False
            assert not self.said("failed"), self.said("failed")
            time.sleep(0.005)
        raise AssertionError(f"neither request {number} nor the end: {self.said()}")


class Workers:
    """The process that they are forked from; started with the first, ended with the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._mother: subprocess.Popen[bytes] | None = None

    def start(self, what: str, store: Path, agent: str, *more: Any) -> Worker:
        """A process that does ``what`` in the directory of a machine."""
        if self._mother is None:
            self._mother = python(_SCRIPT, stdin=subprocess.PIPE, env=CREDENTIALS, start_new_session=True)
        assert self._mother.stdin is not None and self._mother.stdout is not None
        said = self._directory / f"said-{self._count}"
        self._count += 1
        words: Sequence[object] = (what, said, store, agent, *more)
        self._mother.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self._mother.stdin.flush()
        line = self._mother.stdout.readline()
        assert line, self._mother.communicate(timeout=WAIT)[1].decode()
        return Worker(int(line), said)

    def close(self) -> None:
        """Leave nothing running, what they forked included: it has the pipes that are read to their end here."""
        if self._mother is not None:
            os.killpg(self._mother.pid, signal.SIGKILL)
            self._mother.communicate(timeout=WAIT)
