"""``recall query``: it answers, in every form, and nothing that it is told can write."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from store.backends.sqlite.querying import querying
from store.errors import InvalidInput
from tests.conftest import COMMAND, Run


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, but SQLite's own two, which a reader may make."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("recall.db-wal", "recall.db-shm")
    }


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records",
        "UPDATE leases SET epoch = 9",
        "INSERT INTO heads VALUES ('a', 'turn', 1, '', 1, 1, 0) RETURNING 1",
        "REPLACE INTO leases (agent) VALUES ('x')",
        "WITH x AS (SELECT 1) DELETE FROM heads",
        "EXPLAIN DELETE FROM heads",
        "ATTACH 'evil.db' AS e",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO 'evil.db'",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "CREATE VIRTUAL TABLE x USING fts5(a)",
        "DROP TABLE records",
        "DROP TRIGGER records_no_delete",
        "ALTER TABLE records ADD COLUMN x",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "BEGIN EXCLUSIVE",
        "SAVEPOINT s",
        "COMMIT",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version = 99",
        "PRAGMA query_only = 0",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA temp_store_directory = '/'",
        "SELECT * FROM pragma_user_version(99)",
        "SELECT load_extension('evil.so')",
        "SELECT writefile('evil.db', 'x')",
        "SELECT fts3_tokenizer('simple', x'00')",
        "SELECT 1; DELETE FROM records",
        "/* harmless */ DELETE FROM records",
    ],
)
def test_nothing_but_reading_is_allowed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Each way to change the store, or to make a file, is refused, and everything is as it was."""
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(InvalidInput), querying(str(store), statement, {}) as answer:
        list(answer.rows)
    assert contents(tmp_path) == before


def test_a_statement_that_writes_ends_with_one_line(store: Path, run_recall: Run) -> None:
    """The refusal says why, with exit code 2."""
    ended = run_recall("query", "DELETE FROM records")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[0] == "recall: SQL: only reading is allowed (not authorized)"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["SELECT * FROM nope"], "no such table: nope"),
        (["SELEC 1"], 'near "SELEC": syntax error'),
        (["SELECT :x"], ":x"),
        (["SELECT 1", "-p", "x"], "is not NAME=VALUE"),
        ([";"], "is not a statement that answers"),
        (["  "], "has no statement"),
        ([], "give one statement, or --tables"),
        (["SELECT 1", "--tables"], "give one statement, or --tables"),
        (["SELECT 1", "--csv", "--json"], "cannot be combined"),
        (["SELECT '\x1b[31m' FROM \x1b[31m"], "unrecognized token"),
        (["SELECT zeroblob(3000000000)"], "too big"),
        (["SELECT json('[1')"], "malformed JSON"),
        (["SELECT json_extract(line, '$[') FROM records"], "JSON path error|bad JSON path"),
        (["SELECT [database disk image is malformed]"], "no such column"),
        (["SELECT [file is not a database]"], "no such column"),
        (["SELECT * FROM [disk I/O error]"], "no such table"),
        (["SELECT [database is locked]()"], "no such function|near"),
        (["SELECT sum(9223372036854775807) FROM (SELECT 1 UNION ALL SELECT 2)"], "integer overflow"),
    ],
)
def test_a_wrong_statement_is_one_line(store: Path, run_recall: Run, arguments: list[str], reason: str) -> None:
    """SQLite's own message is shown, harmlessly, with exit code 2."""
    ended = run_recall("query", *arguments)
    assert ended.code == 2
    assert any(each in ended.err for each in reason.split("|"))
    assert "\x1b" not in ended.err
    assert "Traceback" not in ended.err


def test_a_damaged_file_is_told_from_a_wrong_statement(store: Path, run_recall: Run) -> None:
    """What SQLite says of the file itself ends with 9, and names the store."""
    file = store / "recall.db"
    data = bytearray(file.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    file.write_bytes(data)
    ended = run_recall("query", "SELECT count(*), max(line) FROM records")
    assert ended.code == 9
    assert ended.err.splitlines()[0] == f"recall: store {store} is damaged: database disk image is malformed"


def test_the_views_answer(store: Path, run_recall: Run) -> None:
    """Plain columns come out as lines, as JSON and as JSON lines, with parameters by name."""
    sql = "SELECT agent, tool, status FROM pending_actions WHERE agent = :a"
    assert run_recall("query", sql, "-p", "a=billing").out == "billing\tsend_email\tunknown\n"
    row = {"agent": "billing", "tool": "send_email", "status": "unknown"}
    assert json.loads(run_recall("query", sql, "-p", "a=billing", "--json").out) == [row]
    assert json.loads(run_recall("query", sql, "-p", "a=billing", "--jsonl").out) == row
    nobody = run_recall("query", sql, "-p", "a=nobody")
    assert (nobody.code, nobody.out, nobody.err) == (0, "", "no rows\n")


def test_the_statement_may_come_from_a_file_or_stdin(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """``@FILE`` and ``-`` are read as everywhere else."""
    (tmp_path / "q.sql").write_text("SELECT 'from a file' -- comment\n")
    assert run_recall("query", "@q.sql").out == "from a file\n"
    assert run_recall("query", "-", input="SELECT 'from stdin'").out == "from stdin\n"


def test_odd_values_have_a_form(store: Path, run_recall: Run) -> None:
    """Blobs are hexadecimal, infinity is text, NULL is null, equal names are told apart, control characters escaped."""
    sql = "SELECT x'00ff' AS a, 9e999 AS a, NULL AS c, char(27, 0, 8238) AS d, 9007199254740993 AS e"
    assert json.loads(run_recall("query", sql, "--json").out) == [
        {"a": "00ff", "a_2": "Infinity", "c": None, "d": "\x1b\x00\u202e", "e": 9007199254740993}
    ]
    assert run_recall("query", sql).out == "00ff\tInfinity\t\t\\x1b\\x00\\u202e\t9007199254740993\n"


def test_csv_can_be_read_back(store: Path, run_recall: Run) -> None:
    """Quotes, commas and line breaks in values survive CSV."""
    ended = run_recall("query", "SELECT 'a,\"b\"' || char(10) || 'c' AS \"x y\", 1.5 AS n", "--csv")
    assert list(csv.reader(io.StringIO(ended.out))) == [["x y", "n"], ['a,"b"\nc', "1.5"]]


def test_tables_and_their_columns_are_listed(store: Path, run_recall: Run) -> None:
    """Whoever knows no table finds them."""
    rows = json.loads(run_recall("query", "--tables", "--json").out)
    assert {"turns", "actions", "pending_actions", "records", "agents"} <= {each["name"] for each in rows}
    assert next(each["columns"] for each in rows if each["name"] == "heads").startswith("agent, kind, seq")


def test_a_missing_store_is_not_made(run_recall: Run, environment: dict[str, str]) -> None:
    """Looking does not create."""
    ended = run_recall("query", "SELECT 1")
    assert ended.code == 3
    assert not Path(environment["RECALL_DIR"]).exists()


def test_an_endless_statement_streams_and_can_be_interrupted(store: Path, environment: dict[str, str]) -> None:
    """Rows come as they are found, and Ctrl-C ends one that finds none, with 130."""
    count = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
    with subprocess.Popen([COMMAND, "query", f"{count} x FROM c"], env=environment, stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        assert endless.stdout.readline() == b"1\n"
        endless.stdout.close()
        assert endless.wait(timeout=30) == 0
    with subprocess.Popen(
        [COMMAND, "query", f"{count} max(x) FROM c"], env=environment, stderr=subprocess.PIPE, text=True
    ) as silent:
        time.sleep(1.5)
        silent.send_signal(signal.SIGINT)
        _, err = silent.communicate(timeout=30)
    assert (silent.returncode, err) == (130, "recall: interrupted\n")


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, hex(zeroblob(200)) FROM n"


@pytest.mark.parametrize("form", [(), ("--json",), ("--jsonl",), ("--csv",)], ids=lambda form: "".join(form) or "plain")
def test_a_reader_that_leaves_ends_it_quietly(store: Path, run_recall: Run, form: tuple[str, ...]) -> None:
    """With a closed pipe nothing is said, and with a full disk one line."""
    command = ("sh", "-c", 'recall "$@" | head -c 10 >/dev/null; recall "$@" >/dev/full; echo $?', "sh")
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    done = run_recall("query", ENDLESS, *form, program=command, env={"PATH": path})
    lines = 1 if form in (("--json",), ("--jsonl",)) else 2  # the refusal, and for people its hint
    assert (done.out, done.err.count("\n"), "cannot be written: No space" in done.err) == ("7\n", lines, True)


@pytest.mark.parametrize(
    ("sql", "given", "said"),
    [
        (
            "SELECT :a",
            ("-p", "b=1"),
            "recall: SQL has :a, and no value was given for it\n  → give it with: -p a=VALUE\n",
        ),
        ("SELECT ?", ("-p", "b=1"), "recall: SQL has a parameter without a name\n"),
    ],
)
def test_a_parameter_without_a_value_is_named(
    store: Path, run_recall: Run, sql: str, given: tuple[str, ...], said: str
) -> None:
    """The refusal names the parameter and the option that gives its value."""
    done = run_recall("query", sql, *given)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(said)
