-- Shipping to a bucket. The lease row becomes a cache of what the bucket says;
-- what this store knows of the bucket stands here, so that short processes go
-- on from each other.

CREATE TABLE remote (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    state TEXT NOT NULL,
    generation INTEGER NOT NULL,
    remote_id TEXT NOT NULL,
    location TEXT NOT NULL,
    dialect TEXT NOT NULL,
    at TEXT NOT NULL
);

-- head: the head as last seen, without its tail, whose lines are records here.
-- sent: when the last write that landed was sent. sight: when a revision of
-- another holder was first seen. trouble: why nothing is written any more.
CREATE TABLE marks (
    agent TEXT NOT NULL PRIMARY KEY,
    rev INTEGER NOT NULL,
    etag TEXT NOT NULL,
    lsn INTEGER NOT NULL,
    hash BLOB NOT NULL,
    head BLOB NOT NULL,
    sent_boot TEXT NOT NULL,
    sent_boot_ms INTEGER NOT NULL,
    sent_wall_us INTEGER NOT NULL,
    sight_rev INTEGER NOT NULL,
    sight_boot TEXT NOT NULL,
    sight_boot_ms INTEGER NOT NULL,
    sight_wall_us INTEGER NOT NULL,
    trouble TEXT NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER remote_no_fall BEFORE UPDATE ON remote WHEN NEW.generation < OLD.generation
BEGIN SELECT RAISE(ABORT, 'generations never fall'); END;
