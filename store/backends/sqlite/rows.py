"""Rows to values and back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from store.backend import Branch
from store.canonical import decode
from store.clock import Instant
from store.lease import Lease
from store.process import Process
from store.records import Record


def of_lease(lease: Lease) -> tuple[Any, ...]:
    p, r = lease.process, lease.renewed
    return (
        *(lease.agent, lease.lineage, lease.branch, lease.epoch, lease.incarnation, lease.state, lease.holder),
        *(p.host, p.boot, p.pidns, p.pid, p.start),
        *(lease.ttl_ms, r.boot_id, r.boot_ms, r.wall_us, lease.acquired_at, int(lease.imported)),
    )


@lru_cache(maxsize=128)  # every append reads the same row again
def to_lease(row: tuple[Any, ...]) -> Lease:
    agent, lineage, branch, epoch, incarnation, state, holder, host, boot, pidns, pid, start, *rest = row
    ttl_ms, renewed_boot, renewed_boot_ms, renewed_wall_us, acquired_at, imported = rest
    return Lease(
        agent=agent,
        lineage=lineage,
        branch=branch,
        epoch=epoch,
        incarnation=incarnation,
        state=state,
        holder=holder,
        process=Process(host, boot, pidns, pid, start),
        ttl_ms=ttl_ms,
        renewed=Instant(renewed_boot, renewed_boot_ms, renewed_wall_us),
        acquired_at=acquired_at,
        imported=bool(imported),
    )


def to_record(row: tuple[Any, ...]) -> Record:
    agent, branch, lsn, epoch, kind, seq, name, line, at, hash_ = row[:10]
    return Record(agent, branch, lsn, epoch, kind, seq, name, _body(line), at, line, hash_)


def to_branch(row: tuple[Any, ...], last: int, last_hash: bytes) -> Branch:
    agent, number, lineage, parent, start, start_hash, reason, at = row
    return Branch(agent, number, lineage, parent, start, start_hash, last, last_hash, reason, at)


def _body(line: bytes) -> str:
    """A line's body; of a damaged one "", which reading it then reports as a bad record."""
    try:
        body = decode(line.decode("utf-8", "surrogatepass"))["body"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return body if isinstance(body, str) else ""
