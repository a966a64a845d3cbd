"""What a store knows of the bucket that it ships to: one row for the bucket, one for each agent."""

from __future__ import annotations

from store.clock import Instant
from store.value import value

NEVER = Instant("", 0, 0)


@value
class Remote:
    """The bucket that a store ships to.

    Attributes:
        state: ``attaching``, ``attached`` or ``detached``.
        generation: rises at each attach and detach; a handle that knows an older one acquires nothing.
        remote_id: the id in the bucket's ``recall.json``.
        location, dialect: JSON, as ``store.shipping.bucket`` makes it.
        at: when that was, RFC 3339.
    """

    state: str
    generation: int
    remote_id: str
    location: str
    dialect: str
    at: str


@value
class Mark:
    """How far one agent's log is known to be in the bucket.

    Attributes:
        rev, etag: of the head as last seen.
        lsn, hash: the last record that it has, and the chain's hash after it.
        head: its bytes without the tail.
        sent: when the last write that landed was sent.
        sight_rev, sight: a revision of another holder, and when it was first seen.
        trouble: why nothing is written any more, or "".
    """

    agent: str
    rev: int
    etag: str
    lsn: int
    hash: bytes
    head: bytes
    sent: Instant = NEVER
    sight_rev: int = 0
    sight: Instant = NEVER
    trouble: str = ""


_MARK = (
    "agent, rev, etag, lsn, hash, head, sent_boot, sent_boot_ms, sent_wall_us, "
    "sight_rev, sight_boot, sight_boot_ms, sight_wall_us, trouble"
)
REMOTE = "SELECT state, generation, remote_id, location, dialect, at FROM remote"
MARK = f"SELECT {_MARK} FROM marks WHERE agent = ?"
MARKS = f"SELECT {_MARK} FROM marks WHERE agent > ? ORDER BY agent LIMIT ?"
REMOTE_PUT = (
    "INSERT INTO remote (one, state, generation, remote_id, location, dialect, at) VALUES (1, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (one) DO UPDATE SET state = excluded.state, generation = excluded.generation, "
    "remote_id = excluded.remote_id, location = excluded.location, dialect = excluded.dialect, at = excluded.at"
)
MARK_PUT = f"INSERT INTO marks ({_MARK}) VALUES ({', '.join('?' * 14)}) ON CONFLICT (agent) DO UPDATE SET " + ", ".join(
    f"{name} = excluded.{name}" for name in _MARK.split(", ")[1:]
)
MARK_DROP = "DELETE FROM marks WHERE agent = ?"


def to_mark(row: tuple[object, ...]) -> Mark:
    """A mark of its row."""
    agent, rev, etag, lsn, hash_, head, *rest = row
    return Mark(agent, rev, etag, lsn, hash_, head, Instant(*rest[:3]), rest[3], Instant(*rest[4:7]), rest[7])  # type: ignore[arg-type]
