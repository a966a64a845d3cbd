"""A head by hand."""

from __future__ import annotations

from store.canonical import first_hash
from store.process import Process
from store.shipping.head import Head, HeadLease

LINEAGE = "ab" * 16


def head(agent: str = "billing") -> Head:
    """One of an empty log, under epoch 1."""
    first = first_hash(LINEAGE, agent)
    lease = HeadLease("i" * 32, "store", "holder", Process("h", "b", "n", 1, "s"), "barrier", 60_000)
    return Head("r1", agent, LINEAGE, "live", 1, "w", 1, lease, 0, first, 0, first, 1)
