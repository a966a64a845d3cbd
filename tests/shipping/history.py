"""The promises of the protocol, checked against everything that ever happened in a simulation."""

from __future__ import annotations

from typing import Any

from store.canonical import next_hash
from store.lease import Fence
from store.records import Record
from store.shipping import protocol
from store.shipping.bucket import Bucket
from store.shipping.fetch import blobs_of, lines_after
from store.shipping.head import Head
from store.value import value


class Broken(AssertionError):
    """A promise was not kept."""


@value
class Intent:
    """One call that may touch the world, as it was appended somewhere."""

    lsn: int
    epoch: int
    line: bytes
    body: dict[str, Any]


class History:
    """All heads that landed, and what was said of them.

    Attributes:
        log: the lines of the present head's log, each with the chain's hash after it.
        durable: by lsn, the lines that were called durable.
        ran, declared: the lines of the intents whose tool was started; that were proven never to be.
        lost: the machines and fences that were told that their lease is another's.
    """

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.bucket: Bucket | None = None
        self.head: Head | None = None
        self.heads = 0
        self.log: list[tuple[bytes, bytes]] = []
        self.durable: dict[int, bytes] = {}
        self.intents: dict[bytes, Intent] = {}
        self.ran: set[bytes] = set()
        self.declared: set[bytes] = set()
        self.lost: set[tuple[str, Fence]] = set()

    # -- what happens ---------------------------------------------------------------------------

    def sends(self, machine: str, body: bytes) -> None:
        """Nobody sends a version of a head under a lease that it knows to be lost."""
        head = Head.parse(body, self.agent)
        if (machine, head.fence) in self.lost:
            raise Broken(f"{machine} sends a head under epoch {head.epoch}, which it knows to be lost")

    def landed(self, body: bytes) -> None:
        """Every next version of a head goes on from the one before it."""
        head, before = Head.parse(body, self.agent), self.head
        log = self._read(head)
        if before is not None:
            if head.rev != before.rev + 1:
                raise Broken(f"revision {head.rev} follows {before.rev}")
            if head.epoch < before.epoch:
                raise Broken(f"epoch {head.epoch} follows {before.epoch}")
            ours, theirs = (head.lease.inc, head.lease.dir), (before.lease.inc, before.lease.dir)
            if head.epoch == before.epoch and ours != theirs:
                raise Broken(f"epoch {head.epoch} has two incarnations")
            if head.lineage != before.lineage:
                raise Broken("the lineage changed")
        if log[: len(self.log)] != self.log:
            raise Broken("a record that was in a head is not in the next one")
        self.head, self.log, self.heads = head, log, self.heads + 1
        for lsn, line in self.durable.items():
            if len(log) < lsn or log[lsn - 1][0] != line:
                raise Broken(f"lsn {lsn} was called durable and is not in the head")
        epochs = [epoch_of(line) for line, _ in log]
        if epochs != sorted(epochs) or (epochs and epochs[-1] > head.epoch):
            raise Broken("epochs fall along the log")
        for ended in head.epochs:
            if ended.e == head.epoch or (len(log) > ended.last and epochs[ended.last] <= ended.e):
                raise Broken(f"epoch {ended.e} goes on after lsn {ended.last}, where it ended")
        self._declare(head)

    def _read(self, head: Head) -> list[tuple[bytes, bytes]]:
        """The whole log, out of the objects that the head names; every one, and every blob, has to be there."""
        assert self.bucket is not None
        found: list[tuple[bytes, bytes]] = []
        link = head.base_hash
        for chunk in lines_after(self.bucket, head, head.base, head.base_hash):
            for lsn, line, hash_ in chunk:
                link = next_hash(link, line)
                if lsn != len(found) + 1 or link != hash_:
                    raise Broken(f"the log of the head is not dense, or its chain breaks, at lsn {lsn}")
                found.append((line, link))
                list(blobs_of(self.bucket, head, line))
        if (len(found), link) != (head.last, head.hash):
            raise Broken("the log of the head does not end where the head says")
        return found

    def reread(self) -> None:
        """What the head names is still there, after somebody deleted what it does not."""
        if self.head is not None and self._read(self.head) != self.log:
            raise Broken("the log of the head is not what it was")

    def _declare(self, head: Head) -> None:
        """Whoever reads this head may now say of some intents that they were never executed."""
        there = {line for line, _ in self.log}
        if self.declared & there:
            raise Broken("what was declared never executed is in a later head")
        for line, each in self.intents.items():
            if line not in there and protocol.never_executed(
                each.body, head, lsn=each.lsn, epoch=each.epoch, lineage=head.lineage, on_chain=True
            ):
                if line in self.ran:
                    raise Broken("what was executed is declared never executed")
                self.declared.add(line)

    def appended(self, record: Record, body: dict[str, Any]) -> None:
        self.intents[record.line] = Intent(record.lsn, record.epoch, record.line, body)

    def secured(self, record: Record, fence: Fence, *, asked: bool) -> None:
        """A barrier has returned, and the tool starts.

        Args:
            asked: the bucket was asked for it: then the lease was its own when the bucket answered. Else
                an earlier write had taken the record along, and the process was only slow to go on (rule 7).
        """
        if len(self.log) < record.lsn or self.log[record.lsn - 1][0] != record.line:
            raise Broken(f"a tool starts and its intent, lsn {record.lsn}, is not in the head")
        assert self.head is not None
        if asked and self.head.fence != fence:
            raise Broken(f"a tool starts under epoch {fence.epoch}, and the bucket has epoch {self.head.epoch}")
        if record.line in self.declared:
            raise Broken("what was declared never executed is executed")
        self.durable[record.lsn] = record.line
        self.ran.add(record.line)


def epoch_of(line: bytes) -> int:
    """The epoch of a canonical line, whose fields stand in a fixed order."""
    return int(line.rpartition(b'","epoch":')[2].partition(b",")[0])
