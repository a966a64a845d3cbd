"""Mending an agent whose log here and whose log in the bucket contradict each other (rule 10).

Nothing does it on its own. A person sees what contradicts what and says which
log is to be kept; it goes on under a new lineage that names the old one, at an
epoch above every other, and what the other log had is kept as evidence.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from store.errors import Conflict, LeaseHeld, NotFound
from store.lease import LeaseRequest
from store.process import provably_dead
from store.remote_errors import BadHead, Forked, RemoteUnreachable
from store.shipping import protocol
from store.shipping.bringing import Bringing, set_all_aside
from store.shipping.bucket import Bucket, Object
from store.shipping.fetch import Replaced, head_key, lines_after, prefix
from store.shipping.head import Head, Origin
from store.shipping.local import Local
from store.shipping.upkeep import referenced
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend
    from store.backends.sqlite.marks import Remote

Keep = Literal["here", "remote"]


@value
class Side:
    """One of the two logs.

    Attributes:
        last, epoch, lineage: of its newest record, its lease, its newest part.
        alone: how many records it has that the other has not.
        state: of the lease: ``held``, ``released`` or ``deleted``.
        holder: who has, or last had, the lease.
    """

    last: int
    epoch: int
    lineage: str
    alone: int
    state: str
    holder: str


@value
class Finding:
    """What contradicts what.

    Attributes:
        trouble: ``forked``, ``remote regressed``, ``head missing``, ``head damaged``, ``store broken`` or
            ``taken away``; "" where nothing has to be mended.
        reason: one line for a person.
        common: up to which lsn both are the same; 0 for no record.
        here: this store's log.
        remote: the bucket's; None where it cannot be read.
        choices: what can be kept.
    """

    agent: str
    trouble: str
    reason: str
    common: int
    here: Side
    remote: Side | None
    choices: tuple[Keep, ...]


@value
class Repaired:
    """What a repair made.

    Attributes:
        lineage, epoch: the new ones, in the bucket and here.
        last: the last record of the log that was kept.
        aside: how many records of the other log were set aside.
    """

    agent: str
    kept: Keep
    lineage: str
    epoch: int
    last: int
    aside: int


def examine(store: SqliteBackend, bucket: Bucket, agent: str) -> Finding:
    """Compare the two logs; nothing is written.

    Raises:
        NotFound: this store does not know the agent.
        RemoteUnreachable, RemoteRefused.
    """
    lease = store.lease(agent)
    if lease is None:
        raise NotFound(what="agent", name=agent, hint=f"fetch it with: recall sync pull {agent}")
    local = Local(store, agent)
    last, _ = local.last()
    answer = bucket.get(head_key(agent))
    here = Side(last, lease.epoch, lease.lineage, last, lease.state, lease.holder)
    mark = store.mark(agent)
    trouble = mark.trouble if mark else ""
    if answer is None:
        known = mark is not None and bool(mark.head)
        reason = "the bucket has no head of it" + (f", and had one up to lsn {mark.lsn}" if mark and known else "")
        return Finding(agent, "head missing" if known else "", reason, 0, here, None, ("here",))
    try:
        head = Head.parse(answer.body, agent)
    except BadHead as problem:
        return Finding(agent, "head damaged", str(problem.details["reason"]), 0, here, None, ("here",))
    damage = ""
    try:
        common, _ = agreed(local, bucket, head)
        _check_objects(bucket, head)
    except (BadHead, Replaced) as problem:
        damage = f"{problem} is missing" if isinstance(problem, Replaced) else str(problem.details["reason"])
        common, _ = _last_in_common(local, head)
    there = Side(
        head.last,
        head.epoch,
        head.lineage,
        head.last - common,
        "held" if head.state == "live" else head.state,
        head.lease.holder,
    )
    here = replace(here, alone=last - common)
    if damage:  # what nobody can read cannot be kept
        return Finding(agent, "head damaged", damage, common, here, there, ("here",))
    kind, reason = _trouble(local, head, common)
    if trouble and not kind:
        reason = "found earlier; what the bucket has now does not contradict it any more"
    return Finding(agent, trouble or kind, reason, common, here, there, ("here", "remote"))


def _trouble(local: Local, head: Head, common: int) -> tuple[str, str]:
    known = local.known()
    found = protocol.regression(head, known[1]) if known else None
    if found is not None:
        return found.kind, found.reason
    if common < (known[0].lsn if known else min(local.last()[0], head.last)):
        return "forked", f"the two logs differ from lsn {common + 1}"
    if head.state == "deleted" and head.lease.dir != local.store.store_id:
        return "taken away", f"its log was taken out of the bucket by {head.lease.holder}"
    return "", "nothing contradicts"


def _check_objects(bucket: Bucket, head: Head) -> None:
    """Whether what the head needs is there; that it is whole too, is for ``verify --remote``. Raises BadHead."""
    there = {each.key for kind in ("seg", "idx") for each in bucket.list(f"{prefix(head.agent)}{kind}/")}
    for key, _ in referenced(bucket, head):
        if prefix(head.agent) + key not in there:
            raise BadHead(agent=head.agent, reason=f"{key} is missing")


def agreed(local: Local, bucket: Bucket, head: Head) -> tuple[int, bytes]:
    """Up to where two logs are the same: the lsn, and the chain's hash; (0, b"") if nowhere.

    Raises:
        BadHead, Replaced: the bucket's cannot be read.
    """
    lsn, link = _last_in_common(local, head)
    if not link:
        return 0, b""
    try:
        for chunk in lines_after(bucket, head, lsn, link):
            for number, _, each in chunk:
                if local.hash_at(number) != each:
                    return lsn, link
                lsn, link = number, each
    except Forked:
        pass
    return lsn, link


def _last_in_common(local: Local, head: Head) -> tuple[int, bytes]:
    """The last of the points that the head itself tells where both logs are the same; (0, b"") if none."""
    points = [(head.base, head.base_hash), *((each.l, each.hash) for each in head.segs), (head.last, head.hash)]
    points += [(head.index.l, head.index.hash)] if head.index else []
    return max([(lsn, link) for lsn, link in points if local.hash_at(lsn) == link], default=(0, b""))


class Repairing(Bringing):
    """A store that mends one agent's log and the bucket's."""

    def __init__(self, store: SqliteBackend, bucket: Bucket, remote: Remote, *, force: bool = False) -> None:
        super().__init__(store, bucket, remote, force=force)

    def repair(self, finding: Finding, keep: Keep) -> Repaired:
        """Go on with one of the two logs.

        Raises:
            Conflict: what was found is not as it was, or that log cannot be kept.
            LeaseHeld: somebody acts for the agent.
            RemoteUnreachable, RemoteRefused.
        """
        agent = finding.agent
        with self._locked(agent):
            self._check_attached()
            now = examine(self.store, self.bucket, agent)
            if now != finding or keep not in now.choices:
                raise Conflict(reason=f"agent {agent}: what was found is not so any more", hint="look at it again")
            answer = self.bucket.get(head_key(agent))
            local = Local(self.store, agent)
            head = Head.parse(answer.body, agent) if answer and now.remote else None
            self._refuse_live(local, head)
            if keep == "remote":
                assert head is not None
                set_aside = self._keep_remote(local, head, answer)
            else:
                set_aside = now.remote.alone if now.remote else 0
                self._keep_here(local, head, answer, now)
            known = local.known()
            assert known is not None
            return Repaired(agent, keep, known[1].lineage, known[1].epoch, known[1].last, set_aside)

    def _refuse_live(self, local: Local, head: Head | None) -> None:
        row, now = self.store.lease(local.agent), self.store.clock.now()
        held = row is not None and row.live(now) and not provably_dead(row.process)
        holder, epoch = (row.holder, row.epoch) if row is not None else ("", 0)
        if head is not None:
            reason = protocol.takeover_reason(
                head,
                self.request(local.agent),
                store=self.store.store_id,
                highest=epoch,
                known=local.hash_at,
                since=local.sight(head.rev),
                now=now,
                dead=provably_dead,
            )
            if reason is None:
                held, holder, epoch = True, head.lease.holder, head.epoch
        if held and not self.force:
            hint = "let it finish, or fence it with --force"
            raise LeaseHeld(agent=local.agent, holder=holder, epoch=epoch, until="it is released", hint=hint)

    def _keep_here(self, local: Local, head: Head | None, answer: Object | None, finding: Finding) -> None:
        row, known = self.store.lease(local.agent), local.known()
        assert row is not None
        if answer is not None:
            self._file(local.agent, head, answer, finding.common)
        seen = [each for each in (head, known[1] if known else None) if each is not None]
        last, _ = local.last()
        packer, request = self._packer(local), self.request(local.agent)
        blank = protocol.blank(
            self.remote.remote_id,
            request,
            self.store.random.hex(32),
            (*packer.origins(last), Origin(row.lineage, last)),
            store=self.store.store_id,
            epoch=max([row.epoch, *(each.epoch for each in seen)]),
        )
        log = packer.carry(packer.rooted(blank), last)
        self._write(local, log, request, answer.etag if answer else "", max([0, *(each.rev for each in seen)]))

    def _keep_remote(self, local: Local, head: Head, answer: Object | None) -> int:
        assert answer is not None
        known = local.known()
        before, _ = local.last()
        left = before
        if local.hash_at(head.last) == head.hash:
            left = before - head.last
            if left:
                local.set_aside(head.last, head.hash, "the bucket's log was kept, which ends here")
        else:
            set_all_aside(local, head, "the bucket's log was kept, which is another one")
            try:
                local.catch_up(self.bucket, head, (head.base, head.base_hash))
            except Replaced as gone:
                raise RemoteUnreachable(remote=self.bucket.name, reason=f"{gone.key} was replaced meanwhile") from gone
        packer = self._packer(local)
        packer.file_asides()
        log = protocol.renewed_lineage(head, self.store.random.hex(32))
        self._write(local, log, self.request(local.agent), answer.etag, known[1].rev if known else 0)
        return left

    def _write(self, local: Local, log: Head, request: LeaseRequest, etag: str, rev: int) -> None:
        if not self.written(local, log, request, etag, least_rev=rev):
            raise Conflict(reason=f"agent {local.agent}: its head was written meanwhile", hint="look at it again")

    def _file(self, agent: str, head: Head | None, answer: Object, common: int) -> None:
        """Keep what the bucket had, as evidence: the head, and the lines that are not here."""
        lines = [json.dumps({"format": "recall.repaired/1", "agent": agent, "common": common}).encode()]
        lines.append(json.dumps({"head": answer.body.decode("utf-8", "replace")}).encode())
        if head is not None:
            try:
                point = agreed(Local(self.store, agent), self.bucket, head)
                start = point if point[1] else (head.base, head.base_hash)
                lines += [line for chunk in lines_after(self.bucket, head, *start) for _, line, _ in chunk]
            except (BadHead, Replaced, Forked):
                pass  # what can be read is kept
        body = gzip.compress(b"".join(each + b"\n" for each in lines), 6, mtime=0)
        name = hashlib.sha256(answer.body).hexdigest()[:16]
        self.bucket.create(f"{prefix(agent)}aside/repaired-{name}.jsonl.gz", body)
