"""Sealing: drafts become records, with lsn, seq, time and the next link of the chain.

Pure; a backend calls it inside the transaction that has just checked the
fence, so that there is one place for the log's form and no way around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from store.canonical import LINE_LIMIT, encode_line, key_of, next_hash, spill
from store.errors import InvalidInput
from store.records import NEXT, Draft, Record, in_force


class Sealed(NamedTuple):
    """A record ready to be stored, with the blobs that it names and its projection."""

    record: Record
    key: str
    blobs: dict[str, bytes]
    open: int


def seal(
    drafts: Iterable[Draft],
    *,
    agent: str,
    branch: int,
    epoch: int,
    last: int,
    last_hash: bytes,
    at: str,
    newest_seq: Callable[[str], int],
) -> list[Sealed]:
    """Records that continue a log after lsn ``last``.

    Args:
        newest_seq: the highest seq of a kind so far, 0 for none.

    Raises:
        InvalidInput: a draft cannot fit a line or a blob.
    """
    sealed, lsn, link = [], last, last_hash
    numbers: dict[str, int] = {}
    for draft in drafts:
        lsn += 1
        seq = draft.seq
        if seq == NEXT:
            seq = (numbers[draft.kind] if draft.kind in numbers else newest_seq(draft.kind)) + 1
            numbers[draft.kind] = seq
        body, blobs = spill(dict(draft.body), epoch)
        key = key_of(draft.kind, seq, draft.name)
        line = encode_line(agent=agent, at=at, body=body, epoch=epoch, key=key, kind=draft.kind, lsn=lsn)
        if len(line) > LINE_LIMIT:
            raise InvalidInput(
                field=draft.kind, reason=f"its record has {len(line):,} bytes; the most is {LINE_LIMIT:,}"
            )
        link = next_hash(link, line)
        record = Record(agent, branch, lsn, epoch, draft.kind, seq, draft.name, body, at, line, link)
        sealed.append(Sealed(record, key, blobs, in_force(draft.kind, draft.body)))
    return sealed
