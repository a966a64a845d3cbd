"""``recall log``: every record, a part of them, and new ones as they come."""

from __future__ import annotations

import hashlib
import itertools
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.client import Client
from tests.cli.look_stores import AGENT, grow, seed, seed_all
from tests.conftest import COMMAND, Run


@pytest.fixture
def directory(environment: dict[str, str]) -> Path:
    return Path(environment["RECALL_DIR"])


def _lsns(out: str) -> list[int]:
    return [int(line.split("\t")[0]) for line in out.splitlines()]


def test_the_exact_lines_and_their_chain(run_recall: Run, directory: Path) -> None:
    """--jsonl gives each record's line and hash, from which anybody can follow the chain."""
    seed_all(directory)
    rows = [json.loads(line) for line in run_recall("log", AGENT, "--all", "--jsonl").out.splitlines()]
    assert [row["lsn"] for row in rows] == list(range(1, len(rows) + 1))
    for before, row in itertools.pairwise(rows):
        chained = hashlib.sha256(b"recall/1\0" + bytes.fromhex(before["hash"]) + row["line"].encode())
        assert row["hash"] == chained.hexdigest()
        assert json.loads(row["line"])["lsn"] == row["lsn"]


@pytest.mark.parametrize(
    ("arguments", "lsns"),
    [
        ((), range(1152, 1202)),
        (("--limit", "2"), (1200, 1201)),
        (("--since", "1199"), (1199, 1200, 1201)),
        (("--since", "1000", "--limit", "1"), (1201,)),
        (("--since", "2000"), ()),
        (("--since", "1h"), range(1, 1202)),
        (("--since", "2999-01-01"), ()),
        (("--all",), range(1, 1202)),
        (("--kind", "lease"), (1,)),
        (("--kind", "turn", "--limit", "1"), (1200,)),
        (("--kind", "action"), (1201,)),
        (("--kind", "nonsense"), ()),
    ],
)
def test_which_records_are_shown(
    run_recall: Run, directory: Path, arguments: tuple[str, ...], lsns: tuple[int, ...] | range
) -> None:
    """The newest 50 unless told otherwise, of a kind or of all, from a position or a time on."""
    grow(directory, AGENT, turns=1199, actions=1)
    ended = run_recall("log", AGENT, *arguments)
    assert ended.code == 0
    assert _lsns(ended.out) == list(lsns)


def test_a_summary_is_one_harmless_line(run_recall: Run, directory: Path) -> None:
    """Each record is one line with its key and what it says, whatever that is."""
    seed_all(directory)
    lines = run_recall("log", AGENT, "--all").out.splitlines()
    rows = {line.split("\t")[3]: line.split("\t")[4] for line in lines}
    assert rows["lease:1"] == "acquired by worker (first)"
    assert rows["ws:2"] == "milestone: call sites found"
    assert rows["ptr:gone"] == "removed"
    assert rows["turn:2"] == "user: see this \\x1b]0;owned\\x07 [bold]now[/bold]"
    assert rows["act:3"] == "failed: pure lint exit 1"


class Follower:
    """A running ``recall log --follow``."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        words = [str(COMMAND), "log", AGENT, "--follow", *arguments]
        self.process = subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self._seen = b""

    def line(self, within: float = 30) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + within
        while b"\n" not in self._seen:
            assert select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0], "no line"
            piece = self.process.stdout.read(65536)
            assert piece, "it has ended"
            self._seen += piece
        line, _, self._seen = self._seen.partition(b"\n")
        return line.decode()


@pytest.fixture
def following(environment: dict[str, str], directory: Path) -> Iterator[Follower]:
    seed(directory)
    follower = Follower(environment, "--limit", "1")
    yield follower
    follower.process.kill()
    follower.process.communicate()


def test_new_records_are_shown_as_they_come(following: Follower, directory: Path) -> None:
    """A follower prints what another process writes, under each new epoch, until it is interrupted."""
    assert following.line().split("\t")[0] == "5"
    for number in (2, 3):
        with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
            agent.record_turn("user", f"message {number}")
        assert following.line().split("\t")[3] == f"lease:{number}"
        assert following.line().split("\t")[3:] == [f"turn:{number}", f"user: message {number}"]
    following.process.send_signal(signal.SIGINT)
    assert following.process.wait(30) == 130


def test_a_follower_does_not_pin_the_log(following: Follower, directory: Path) -> None:
    """While somebody follows, a checkpoint can still empty the write-ahead log."""
    following.line()
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        for at in range(50):
            agent.record_turn("user", f"message {at}")
        for _ in range(51):
            following.line()
        connection = client.backend._opened()
        deadline = time.monotonic() + 20
        while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            assert time.monotonic() < deadline  # busy again and again: a reader holds it
        assert (directory / "recall.db-wal").stat().st_size == 0


def test_a_follower_ends_quietly_with_its_reader(following: Follower) -> None:
    """When the reader goes, the follower ends by itself, without a word and without waiting for a record."""
    following.line()
    assert following.process.stdout is not None
    following.process.stdout.close()
    assert following.process.wait(30) == 0
    assert following.process.stderr is not None
    assert following.process.stderr.read() == b""
    following.process.stdout = None


def test_a_document_cannot_go_on_for_ever(run_recall: Run, directory: Path) -> None:
    """--follow with --json is refused, naming --jsonl."""
    seed(directory)
    ended = run_recall("log", AGENT, "--follow", "--json")
    assert ended.code == 2
    assert "use --jsonl" in ended.err


def test_a_follower_goes_on_after_a_tail_was_set_aside(following: Follower, directory: Path) -> None:
    """When the log's tail is set aside, the follower says so and shows what takes its place."""
    following.line()
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        agent.record_turn("user", "to be set aside")
        assert [following.line().split("\t")[0] for _ in range(2)] == ["6", "7"]
        lease = client.backend.lease(AGENT)
        assert lease is not None
        client.backend.set_aside(lease.fence, 6, "test")
        agent.record_turn("user", "in its place")
    assert following.line().split("\t")[0::4] == ["7", "user: in its place"]
    following.process.send_signal(signal.SIGINT)
    _, err = following.process.communicate(timeout=30)
    assert err.splitlines()[0] == b"the records after lsn 6 were set aside; going on from there"


def test_a_kind_that_is_not_there_is_said(run_recall: Run, directory: Path) -> None:
    """A misspelt kind is no error, since newer versions may have it; the kinds of this log are listed on stderr."""
    seed_all(directory)
    for command in ("log", "records"):
        ended = run_recall(command, AGENT, "--kind", "trun")
        assert (ended.code, ended.out) == (0, "")
        assert ended.err.startswith(f"no record of the kind 'trun'; {AGENT} has: action, lease")
        assert run_recall(command, AGENT, "--kind", "turn").err == ""


def test_a_dead_holder_is_not_taken_for_the_one_after_it(run_recall: Run, directory: Path) -> None:
    """A takeover says that the holder before was dead; one after a release says nothing."""
    script = (
        "import os, signal, sys; from recall_cli import Client\n"
        "Client(local_dir=sys.argv[1]).resume('x', holder='one'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, directory], check=False)
    with Client(local_dir=directory) as client:
        client.resume("x", holder="two").release()
        client.resume("x", holder="three").release()
    told = [line.split("\t")[4] for line in run_recall("log", "x", "--kind", "lease").out.splitlines()]
    assert told == ["acquired by one (first)", "acquired by two (the holder before was dead)", "acquired by three"]
