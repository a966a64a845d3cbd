"""``recall sync``: what is stored here and what is shipped, and bringing either side up to the other."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path

import pytest

from store.shipping.s3 import S3Bucket
from tests.conftest import COMMAND, Run
from tests.shipping.commands import Machines, variables
from tests.shipping.servers import Server, shared_server

OFF = {"RECALL_SHIP": "off"}


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """One server: these tests are not about servers."""
    return shared_server("seaweedfs", tmp_path_factory)


@pytest.fixture
def machines(run_recall: Run, tmp_path: Path, server: Server) -> Machines:
    """Machines a and b on one place, an agent with one turn on a."""
    machines = Machines(run_recall, tmp_path, server.location())
    machines.prepare("a", "b")
    return machines


def test_stored_and_shipped_are_shown_apart(machines: Machines) -> None:
    """What lies between would be lost with the machine: records, bytes, since when; a push brings it over."""
    clean = machines.json("a", "sync", "status")[0]
    assert (clean["stored"], clean["shipped"], clean["pending_records"], clean["pending_since"]) == (2, 2, 0, "")
    assert (clean["lease"], clean["here"], clean["trouble"], clean["asides"]) == ("released", True, "", 0)
    assert machines("a", "sync", "status", "--pending-older-than", "0s", "--fail-if-any").out == ""
    machines.write("a", "pending", env=OFF)
    row = machines.json("a", "sync", "status", "bot")[0]
    assert (row["stored"], row["shipped"], row["pending_records"], row["ship"]) == (4, 2, 2, "off")
    assert row["pending_bytes"] > 100
    assert row["pending_since"].endswith("Z")
    machines("a", "sync", "status", "--fail-if-any", code=7)
    assert machines("a", "sync", "status", "--pending-older-than", "1h", "--fail-if-any").out == ""
    cells = machines("a", "sync", "status").out.rstrip("\n").split("\t")
    assert cells[:4] == ["bot", "4", "2", "2"]
    pushed = machines.json("a", "sync", "push", env=OFF)
    assert pushed == [
        {"agent": "bot", "outcome": "carried", "records": 2, "lsn": 5, "detail": "under a lease taken for it"}
    ]
    assert "nothing is pending" in machines("a", "sync", "push").err
    checked = machines.json("a", "sync", "status", "--check")[0]
    assert (checked["bucket"]["lsn"], checked["pending_records"]) == (5, 0)


def test_one_damaged_head_does_not_hide_the_others(machines: Machines) -> None:
    """Asked what the bucket has, status names the trouble of one agent in its row, and shows the rest."""
    machines.write("a", "hello", agent="cat")
    head = S3Bucket.open(machines.location)
    found = head.get("agents/bot/head.json")
    assert found is not None and head.swap("agents/bot/head.json", b"{", found.etag).outcome == "done"
    bot, cat = machines.json("a", "sync", "status", "--check")
    assert "damaged" in bot["trouble"] and bot["bucket"]["lsn"] == 0
    assert (cat["trouble"], cat["bucket"]["lsn"]) == ("", 2)
    machines("a", "sync", "status", "--check", "--fail-if-any", code=9)


def test_a_push_goes_under_the_lease_that_is_held_here(machines: Machines) -> None:
    """A session's lazy records are shipped without ending it: its epoch stays."""
    taken = machines.json("a", "resume", "bot", "--export", "--holder-pid", str(os.getpid()))
    session = {"RECALL_AGENT": "bot", "RECALL_LEASE": taken["lease"]}
    machines("a", "turns", "add", "--role", "user", "lazy", env=session)
    assert machines.json("a", "sync", "push", "bot")[0]["outcome"] == "shipped"
    status = machines.json("a", "sync", "status", "bot")[0]
    assert (status["pending_records"], status["lease"], status["epoch"]) == (0, "held", taken["epoch"])
    machines("a", "release", env=session)


def test_a_pull_takes_no_lease(machines: Machines) -> None:
    """An agent that works elsewhere can be looked at here; one that the bucket has not is named."""
    assert "recall sync pull --all" in machines("b", "agents", "list").err
    assert "recall sync pull bot" in machines("b", "turns", "list", "bot", code=3).err
    assert [each["outcome"] for each in machines.json("b", "sync", "pull", "--all")] == ["fetched"]
    assert machines.texts("b") == ["turn 0"]
    before = machines.json("b", "sync", "status", "--check")[0]["bucket"]
    machines.write("a", "more")
    assert machines.json("b", "sync", "pull", "bot")[0]["records"] == 2
    assert machines.texts("b") == ["turn 0", "more"]
    assert machines.json("b", "sync", "status", "--check")[0]["bucket"]["epoch"] == before["epoch"] + 1  # of a's write
    absent = machines("b", "sync", "pull", "bot", "nobody", code=3)
    assert "the bucket has no such agent" in absent.out
    assert machines.sound("a", "b")


def test_a_lease_elsewhere_is_in_the_way_of_a_push(machines: Machines) -> None:
    """Records of a machine that lost its lease wait for it, and --wait tries for so long; then they are set aside."""
    machines("b", "sync", "pull", "bot")
    machines.write("b", "late", env=OFF)
    taken = machines.json("a", "resume", "bot", "--export", "--holder-pid", str(os.getpid()))
    assert "lease is held by" in machines("b", "sync", "push", "bot", "--wait", "1200ms", code=4).err
    machines("a", "release", env={"RECALL_AGENT": "bot", "RECALL_LEASE": taken["lease"]})
    assert machines.json("b", "sync", "push", "bot")[0]["outcome"] == "aside"
    assert machines.json("b", "sync", "status", "bot")[0]["asides"] == 1
    assert machines.sound("a", "b")


def test_a_network_that_is_gone_is_one_line(machines: Machines) -> None:
    """What asks the bucket ends with 7; what looks here answers as ever."""
    machines.cut("a")
    for words in (("pull", "bot"), ("pull", "--all", "--wait", "100ms"), ("status", "--check")):
        gone = machines("a", "sync", *words, code=7).err
        assert "cannot be reached" in gone
        assert gone.count("\n") <= 2
    assert machines.json("a", "sync", "status")[0]["stored"] == 2


def test_watch_prints_what_changes_and_ends_with_its_reader(machines: Machines) -> None:
    """Each row once, and again when it is another one; a closed pipe ends it with 0, quietly."""
    env = {**os.environ, **variables(machines.directory("a"))}
    command = [str(COMMAND), "--jsonl", "sync", "watch", "--interval", "100ms"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert json.loads(process.stdout.readline())["stored"] == 2
            machines.write("a", "news", env=OFF)
            row = json.loads(process.stdout.readline())
            while row["pending_records"] < 2 or row["lease"] == "held":  # it may be seen half done
                row = json.loads(process.stdout.readline())
            assert not select.select([process.stdout], [], [], 0.3)[0]
            process.stdout.close()
            assert process.wait(timeout=20) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_the_flag_beats_the_variable(machines: Machines) -> None:
    """``--ship`` says when records ship, before or after the command, whatever RECALL_SHIP says."""
    machines("a", "turns", "add", "-a", "bot", "--role", "user", "x", "--ship", "barrier", env=OFF)
    assert machines.json("a", "sync", "status")[0]["pending_records"] == 0
    machines("a", "--ship", "off", "turns", "add", "-a", "bot", "--role", "user", "y")
    assert machines.json("a", "sync", "status")[0]["pending_records"] == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("sync", "status"), 3, "no store in"),
        (("sync", "push"), 3, "no store in"),
        (("sync", "pull", "--all"), 3, "no store in"),
        (("sync", "watch"), 3, "no store in"),
        (("sync", "pull"), 2, "--all"),
        (("sync", "pull", "-bad-"), 2, ""),
        (("sync", "push", "a/b"), 2, "a/b"),
        (("sync", "status", "--pending-older-than", "soon"), 2, "not a duration"),
        (("sync", "push", "--wait", "soon"), 2, "not a duration"),
        (("sync", "watch", "--interval", "1ms"), 2, "at least 100ms"),
        (("--ship", "sometimes", "sync", "status"), 2, "sometimes"),
        (("--ship", "", "sync", "status"), 2, ""),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    run_recall: Run, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """Each refusal says what was wrong, with its exit code, and makes no store."""
    machines = Machines(run_recall, tmp_path, None)
    assert said in machines("a", *words, code=code).err
    assert not machines.directory("a").exists()


def test_a_store_without_a_bucket_says_so(run_recall: Run, tmp_path: Path) -> None:
    """Every ship command names the command that would attach it."""
    machines = Machines(run_recall, tmp_path, None)
    machines.write("a", "one")
    for words in (("sync", "status"), ("sync", "push", "bot"), ("sync", "pull", "bot"), ("remote", "check")):
        assert "recall remote attach s3://BUCKET/PREFIX" in machines("a", *words, code=3).err
