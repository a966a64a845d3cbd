"""Every statement of the SQLite backend, by name."""

from __future__ import annotations

RECORD = "r.agent, r.branch, r.lsn, r.epoch, r.kind, r.seq, r.name, CAST(r.line AS BLOB), r.at, r.hash"

LEASE_COLUMNS = (
    "agent, lineage, branch, epoch, incarnation, state, holder, host, boot, pidns, pid, start, "
    "ttl_ms, renewed_boot, renewed_boot_ms, renewed_wall_us, acquired_at, imported"
)
LEASE = f"SELECT {LEASE_COLUMNS} FROM leases WHERE agent = ?"
LEASES = f"SELECT {LEASE_COLUMNS} FROM leases WHERE agent > ? ORDER BY agent LIMIT ?"
LEASE_INSERT = f"INSERT INTO leases ({LEASE_COLUMNS}) VALUES ({', '.join('?' * 18)})"
LEASE_UPDATE = (
    "UPDATE leases SET " + ", ".join(f"{name} = ?" for name in LEASE_COLUMNS.split(", ")[1:]) + " WHERE agent = ?"
)
LEASE_RENEW = "UPDATE leases SET renewed_boot = ?, renewed_boot_ms = ?, renewed_wall_us = ? WHERE agent = ?"
LEASE_RELEASE = "UPDATE leases SET state = 'released' WHERE agent = ?"
LEASE_BRANCH = "UPDATE leases SET branch = ? WHERE agent = ?"

# What an append needs to know, in one look; nothing where the fence is not the lease's present one.
FENCED = (
    "SELECT l.branch, l.ttl_ms, l.renewed_boot, l.renewed_boot_ms, l.renewed_wall_us, r.lsn, r.hash, "
    "(SELECT max(h.seq) FROM heads h WHERE h.agent = l.agent AND h.kind = ?) "
    "FROM leases l LEFT JOIN records r ON r.agent = l.agent AND r.branch = l.branch "
    "WHERE l.agent = ? AND l.lineage = ? AND l.epoch = ? AND l.incarnation = ? AND l.state = 'held' "
    "ORDER BY r.lsn DESC LIMIT 1"
)
# The end of an agent's log and its newest seq of each of three kinds.
COUNTERS = (
    "SELECT coalesce(r.lsn, b.start, 0), coalesce(r.hash, b.start_hash, x''), "
    + ", ".join(
        f"coalesce((SELECT max(h.seq) FROM heads h WHERE h.agent = l.agent AND h.kind = '{kind}'), 0)"
        for kind in ("working_state", "turn", "action")
    )
    + " FROM leases l LEFT JOIN records r ON r.agent = l.agent AND r.branch = l.branch "
    "LEFT JOIN branches b ON b.agent = l.agent AND b.branch = l.branch "
    "WHERE l.agent = ? ORDER BY r.lsn DESC LIMIT 1"
)
LAST = "SELECT lsn, hash FROM records WHERE agent = ? AND branch = ? ORDER BY lsn DESC LIMIT 1"
END = (
    "SELECT r.lsn, r.hash FROM leases l JOIN records r ON r.agent = l.agent AND r.branch = l.branch "
    "WHERE l.agent = ? ORDER BY r.lsn DESC LIMIT 1"
)
HASH_ON_BRANCH = (
    "SELECT r.hash FROM leases l JOIN records r ON r.agent = l.agent AND r.branch = l.branch "
    "WHERE l.agent = ? AND r.lsn = ?"
)
START = "SELECT start, start_hash FROM branches WHERE agent = ? AND branch = ?"
NEWEST_SEQ = "SELECT seq FROM heads WHERE agent = ? AND kind = ? ORDER BY seq DESC LIMIT 1"
HEAD_LSN = "SELECT lsn FROM heads WHERE agent = ? AND kind = ? AND seq = ? AND name = ?"

BRANCH_INSERT = (
    "INSERT INTO branches (agent, branch, lineage, parent, start, start_hash, reason, at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
BRANCHES = (
    "SELECT agent, branch, lineage, parent, start, start_hash, reason, at FROM branches WHERE agent = ? ORDER BY branch"
)

RECORD_INSERT = (
    "INSERT INTO records (agent, branch, lsn, epoch, key, kind, seq, name, line, at, hash) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
HEAD_WRITE = (
    "INSERT INTO heads (agent, kind, seq, name, branch, lsn, open) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (agent, kind, seq, name) "
    "DO UPDATE SET branch = excluded.branch, lsn = excluded.lsn, open = excluded.open"
)
HEADS_DROP = "DELETE FROM heads WHERE agent = ?"
BLOB_INSERT = "INSERT INTO blobs (agent, name, data) VALUES (?, ?, ?)"
BLOB_THERE = "SELECT 1 FROM blobs WHERE agent = ? AND name = ?"
BLOB = "SELECT data FROM blobs WHERE agent = ? AND name = ?"
BLOB_SIZE = "SELECT length(data) FROM blobs WHERE agent = ? AND name = ?"

_JOIN = "JOIN records r ON r.agent = h.agent AND r.branch = h.branch AND r.lsn = h.lsn"
_HEADS = f"SELECT {RECORD} FROM heads h {_JOIN}"
# Named, so that SQLite refuses rather than reads the closed ones too.
_OPEN = f"SELECT {RECORD} FROM heads h INDEXED BY heads_open {_JOIN} WHERE h.open > 0 AND h.kind = ?"

NEWEST = f"{_HEADS} WHERE h.agent = ? AND h.kind = ? AND h.seq = ? AND h.name = ?"
TAIL = f"{_HEADS} WHERE h.agent = ? AND h.kind = ? AND h.seq < ? AND h.lsn <= ? ORDER BY h.seq DESC LIMIT ?"
KEYS = f"{_HEADS} WHERE h.agent = ? AND (h.kind, h.seq, h.name) > (?, ?, ?) ORDER BY h.kind, h.seq, h.name LIMIT ?"
IN_FORCE = f"{_OPEN} AND h.agent = ? AND h.seq > ? ORDER BY h.seq LIMIT ?"
IN_FORCE_ALL = f"{_OPEN} AND (h.agent, h.seq) > (?, ?) ORDER BY h.agent, h.seq LIMIT ?"
TO_SETTLE = (
    f"SELECT {RECORD} FROM heads h INDEXED BY heads_to_settle {_JOIN} "
    "WHERE h.open = 2 AND h.agent = ? AND h.seq > ? ORDER BY h.seq LIMIT ?"
)
IN_FORCE_NEWEST = f"{_OPEN} AND h.agent = ? AND h.lsn < ? ORDER BY h.seq DESC, h.lsn DESC LIMIT ?"
IN_FORCE_COUNT = "SELECT count(*) FROM heads INDEXED BY heads_open WHERE open > 0 AND kind = ? AND agent = ?"

# The index records_key serves these; its condition has to stand in them as it is in
# the schema. {path} is the branches that make up the log.
_CHANGING = "r.kind NOT IN ('turn', 'working_state')"
HISTORY = (
    f"SELECT {RECORD} FROM records r WHERE r.agent = ? AND r.kind = ? AND r.seq = ? AND r.name = ? "
    f"AND {_CHANGING} AND r.lsn <= ? AND ({{path}}) ORDER BY r.lsn DESC LIMIT ?"
)
# The newest record of each key at an earlier moment, a page of keys at a time: found in
# the index alone, since a bare column beside a max() is that of its row
# (sqlite.org/lang_select.html, "Bare columns").
AT = (
    f"SELECT {RECORD} FROM (SELECT r.branch, max(r.lsn) AS lsn FROM records r INDEXED BY records_key "
    f"WHERE r.agent = ? AND r.kind = ? AND {_CHANGING} AND (r.seq, r.name) {{beyond}} (?, ?) "
    "AND r.lsn <= ? AND ({path}) GROUP BY r.seq, r.name ORDER BY r.seq {order}, r.name {order} LIMIT ?) k "
    "JOIN records r ON r.agent = ? AND r.branch = k.branch AND r.lsn = k.lsn ORDER BY r.seq {order}, r.name {order}"
)
LOG = (
    f"SELECT {RECORD} FROM records r WHERE r.agent = ? AND r.branch = ? AND r.lsn > ? AND r.lsn <= ? "
    "ORDER BY r.lsn LIMIT ?"
)
ALL_HEADS = (
    "SELECT r.kind, r.seq, r.name, r.branch, max(r.lsn), CAST(r.line AS BLOB) FROM records r "
    "WHERE r.agent = ? AND ({path}) GROUP BY r.kind, r.seq, r.name ORDER BY r.kind, r.seq, r.name"
)

# As stored, for those who check it. The projection comes in the same statement,
# so that both are of one moment.
AGENTS_STORED = (
    "SELECT agent FROM leases UNION SELECT agent FROM branches UNION SELECT agent FROM records "
    "UNION SELECT agent FROM heads UNION SELECT agent FROM blobs ORDER BY agent"
)
STORED = (
    "SELECT r.agent, r.branch, r.lsn, r.epoch, r.key, r.kind, r.seq, r.name, CAST(r.line AS BLOB), r.at, r.hash, h.lsn "
    "FROM records r LEFT JOIN heads h ON h.agent = r.agent AND h.kind = r.kind AND h.seq = r.seq AND h.name = r.name "
    "WHERE r.agent = ? AND r.branch = ? AND r.lsn > ? AND r.lsn <= ? ORDER BY r.lsn LIMIT ?"
)
HEADS_STORED = (
    "SELECT h.kind, h.seq, h.name, h.branch, h.lsn, h.open, CAST(r.line AS BLOB) FROM heads h LEFT JOIN records r "
    "ON r.agent = h.agent AND r.branch = h.branch AND r.lsn = h.lsn "
    "AND r.kind = h.kind AND r.seq = h.seq AND r.name = h.name "
    "WHERE h.agent = ? AND (h.kind, h.seq, h.name) > (?, ?, ?) ORDER BY h.kind, h.seq, h.name LIMIT ?"
)
NEWEST_STORED = (
    "SELECT agent, branch, lsn, epoch, key, kind, seq, name, CAST(line AS BLOB), at, hash FROM records "
    "ORDER BY rowid DESC LIMIT ?"
)
AGENTS_BRANCHED = "SELECT agent FROM branches WHERE branch > 1 GROUP BY agent ORDER BY agent"
OBJECTS = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
AGENT_THERE = (
    "SELECT EXISTS (SELECT 1 FROM leases WHERE agent = :agent) OR EXISTS (SELECT 1 FROM branches WHERE agent = :agent) "
    "OR EXISTS (SELECT 1 FROM records WHERE agent = :agent) OR EXISTS (SELECT 1 FROM heads WHERE agent = :agent) "
    "OR EXISTS (SELECT 1 FROM blobs WHERE agent = :agent)"
)
