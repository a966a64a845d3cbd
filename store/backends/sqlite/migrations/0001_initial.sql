-- The first format. records and blobs are the truth and only grow; heads is a
-- projection of records, leases and branches say who writes where.

CREATE TABLE store (id TEXT NOT NULL, created_at TEXT NOT NULL);

CREATE TABLE leases (
    agent TEXT NOT NULL PRIMARY KEY,
    lineage TEXT NOT NULL,
    branch INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    state TEXT NOT NULL,
    holder TEXT NOT NULL,
    host TEXT NOT NULL,
    boot TEXT NOT NULL,
    pidns TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    renewed_boot TEXT NOT NULL,
    renewed_boot_ms INTEGER NOT NULL,
    renewed_wall_us INTEGER NOT NULL,
    acquired_at TEXT NOT NULL,
    imported INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE branches (
    agent TEXT NOT NULL,
    branch INTEGER NOT NULL,
    lineage TEXT NOT NULL,
    parent INTEGER NOT NULL,
    start INTEGER NOT NULL,
    start_hash BLOB NOT NULL,
    reason TEXT NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (agent, branch)
) WITHOUT ROWID;

CREATE TABLE records (
    agent TEXT NOT NULL,
    branch INTEGER NOT NULL,
    lsn INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,
    line TEXT NOT NULL,
    at TEXT NOT NULL,
    hash BLOB NOT NULL,
    -- With a rowid on purpose: an append then fills one page after another,
    -- where the clustered form would rebalance several at every tenth.
    PRIMARY KEY (agent, branch, lsn)
);

-- The history of one key, for the kinds whose keys change. Turns and working
-- states never do, and pay nothing for it.
CREATE INDEX records_key ON records (agent, kind, seq, name, lsn, branch)
    WHERE kind NOT IN ('turn', 'working_state');

CREATE TABLE blobs (
    agent TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (agent, name)
);

CREATE TABLE heads (
    agent TEXT NOT NULL,
    kind TEXT NOT NULL,
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,
    branch INTEGER NOT NULL,
    lsn INTEGER NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (agent, kind, seq, name)
) WITHOUT ROWID;

-- open: 0 out of force, 1 in force, 2 in force and to be settled by the next
-- incarnation, which must not read the open ones that it has nothing to do about.
CREATE INDEX heads_open ON heads (kind, agent, seq, lsn) WHERE open > 0;
CREATE INDEX heads_to_settle ON heads (agent, seq) WHERE open = 2;

CREATE TRIGGER records_no_update BEFORE UPDATE ON records
BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE TRIGGER records_no_delete BEFORE DELETE ON records
BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
-- INSERT OR REPLACE deletes without firing the trigger above, by the key or by the rowid.
CREATE TRIGGER records_no_replace BEFORE INSERT ON records
WHEN EXISTS (SELECT 1 FROM records WHERE agent = NEW.agent AND branch = NEW.branch AND lsn = NEW.lsn)
    OR EXISTS (SELECT 1 FROM records WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE TRIGGER blobs_no_update BEFORE UPDATE ON blobs
BEGIN SELECT RAISE(ABORT, 'blobs are append-only'); END;
CREATE TRIGGER blobs_no_delete BEFORE DELETE ON blobs
BEGIN SELECT RAISE(ABORT, 'blobs are append-only'); END;
CREATE TRIGGER blobs_no_replace BEFORE INSERT ON blobs
WHEN EXISTS (SELECT 1 FROM blobs WHERE agent = NEW.agent AND name = NEW.name)
    OR EXISTS (SELECT 1 FROM blobs WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(ABORT, 'blobs are append-only'); END;
CREATE TRIGGER branches_no_update BEFORE UPDATE ON branches
BEGIN SELECT RAISE(ABORT, 'branches are append-only'); END;
CREATE TRIGGER branches_no_delete BEFORE DELETE ON branches
BEGIN SELECT RAISE(ABORT, 'branches are append-only'); END;
CREATE TRIGGER branches_no_replace BEFORE INSERT ON branches
WHEN EXISTS (SELECT 1 FROM branches WHERE agent = NEW.agent AND branch = NEW.branch)
BEGIN SELECT RAISE(ABORT, 'branches are append-only'); END;
CREATE TRIGGER leases_no_delete BEFORE DELETE ON leases
BEGIN SELECT RAISE(ABORT, 'epochs are kept for ever'); END;
CREATE TRIGGER leases_no_replace BEFORE INSERT ON leases
WHEN EXISTS (SELECT 1 FROM leases WHERE agent = NEW.agent)
BEGIN SELECT RAISE(ABORT, 'epochs are kept for ever'); END;
CREATE TRIGGER leases_no_fall BEFORE UPDATE ON leases WHEN NEW.epoch < OLD.epoch OR NEW.agent <> OLD.agent
BEGIN SELECT RAISE(ABORT, 'epochs never fall'); END;

-- For sqlite3, sqlite-utils and Datasette.
CREATE VIEW newest AS
    SELECT r.agent, r.lsn, r.epoch, r.key, r.kind, r.seq, r.name, r.at, h.open > 0 AS open,
           json_extract(r.line, '$.body') AS body
    FROM heads h JOIN records r ON r.agent = h.agent AND r.branch = h.branch AND r.lsn = h.lsn;
CREATE VIEW turns AS
    SELECT agent, seq, json_extract(body, '$.role') AS role, json_extract(body, '$.name') AS name,
           json_extract(body, '$.content') AS content, json_extract(body, '$.brief') AS brief,
           json_extract(body, '$.message_id') AS message_id, json_extract(body, '$.output_ref') AS output_ref,
           at, epoch, lsn
    FROM newest WHERE kind = 'turn';
CREATE VIEW actions AS
    SELECT agent, seq, json_extract(body, '$.tool') AS tool, json_extract(body, '$.class') AS class,
           json_extract(body, '$.status') AS status, json_extract(body, '$.key') AS key,
           json_extract(body, '$.step') AS step, json_extract(body, '$.args') AS args,
           json_extract(body, '$.result') AS result, json_extract(body, '$.error') AS error,
           json_extract(body, '$.resolution') AS resolution, json_extract(body, '$.by') AS "by",
           json_extract(body, '$.started_at') AS started_at, json_extract(body, '$.ended_at') AS ended_at,
           epoch, lsn, open
    FROM newest WHERE kind = 'action';
CREATE VIEW pending_actions AS SELECT * FROM actions WHERE open = 1;
CREATE VIEW working_states AS
    SELECT agent, seq AS version, json_extract(body, '$.goal') AS goal, json_extract(body, '$.plan') AS plan,
           json_extract(body, '$.progress') AS progress, json_extract(body, '$.focus') AS focus,
           json_extract(body, '$.decisions') AS decisions, json_extract(body, '$.open_questions') AS open_questions,
           json_extract(body, '$.notes') AS notes, json_extract(body, '$.step') AS step,
           json_extract(body, '$.last_milestone') AS last_milestone, at, epoch, lsn
    FROM newest WHERE kind = 'working_state';
CREATE VIEW pointers AS
    SELECT agent, name, json_extract(body, '$.type') AS type, json_extract(body, '$.fields') AS fields,
           json_extract(body, '$.note') AS note, at, epoch, lsn
    FROM newest WHERE kind = 'pointer' AND open = 1;
CREATE VIEW outputs AS
    SELECT agent, name AS ref, json_extract(body, '$.tool') AS tool, json_extract(body, '$.summary') AS summary,
           json_extract(body, '$.tokens') AS tokens, at, epoch, lsn
    FROM newest WHERE kind = 'output';
CREATE VIEW agents AS
    SELECT agent, epoch, state AS lease, holder, lineage, branch, acquired_at FROM leases;
