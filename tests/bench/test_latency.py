"""The bench of latency and growth, in its quick form: everybody does each operation once or twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.latency import __main__ as latency
from bench.latency.contenders import everybody, opened
from bench.latency.durability import syncs
from bench.latency.tables import OPERATIONS, percentile
from bench.measure import megabytes
from recall_cli import Client
from store.backends.sqlite import SqliteBackend


def test_tables() -> None:
    """Each operation has its row at each size, with what was measured in it, and so have growth and the commands."""
    result = latency.main(["--alone", "--sizes", "0,60", "--times", "2", "--traced", "2"])
    tables = {each.name: each for each in result.tables}
    assert set(tables) >= {"latency", "latency-growth", "latency-shell"}
    rows = [[label, turns] for label in OPERATIONS.values() for turns in (0, 60)]
    assert [list(row[:2]) for row in tables["latency"].rows] == rows
    assert all(" / " in str(row[2]) for row in tables["latency"].rows)
    assert [row[1] for row in tables["latency-growth"].rows] == [0, 60]
    commands = [row[0] for row in tables["latency-shell"].rows]
    assert commands[0] == "python -c pass" and "recall run -- true" in commands
    assert {row[-1] for row in tables["latency-shell"].rows} == {2}
    assert all(isinstance(each, float) and each > 0 for name, each in result.figures.items() if " KB " not in name)


def test_ours_is_recorded(tmp_path: Path) -> None:
    """What the program says that it did is in the store, in one chain, and it goes on from there."""
    [ours] = everybody(tmp_path, None)
    with opened([ours]):
        assert ours.fill(20, 60) == 20
        for operation in ours.operations:
            assert ours.do(operation) > 0
        assert ours.fill(25, 60) == 25
        assert megabytes(ours.processes()) > 1
    assert not ours.processes()
    with SqliteBackend(ours.directory, read_only=True) as backend:
        found = backend.counters("a")
        assert (found.turns, found.actions, found.version) == (25, 1, 1)
    with Client(local_dir=ours.directory) as client, client.resume("a") as agent:
        assert not agent.context.pending_actions


def test_peers(python: Path, tmp_path: Path) -> None:
    """Each peer does what it is asked and finds its history again; nothing of it is left running."""
    contenders = everybody(tmp_path, python)[1:]
    with opened(contenders):
        for each in contenders:
            assert each.fill(5, 60) == 5
            for operation in each.operations:  # to resume is the last of them
                assert each.do(operation) > 0, (each.name, operation)
            assert each.fill(5, 60) == 6
            assert each.bytes() > 0
    assert not any(each.processes() for each in contenders)


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_syncs(tmp_path: Path) -> None:
    """Each of our writes has synced once when it answers."""
    table = syncs(everybody(tmp_path, None, traced=True), 2)
    assert [row[2:] for row in table.rows] == [(1.0, 0, "yes")] * 4


def test_what_runs_out_of_seconds_stops() -> None:
    """One that is slow is measured once, and holds nobody up; an action that was begun is ended."""

    done: list[str] = []

    class Slow:
        name = "slow"
        operations = ("begin", "end")

        def do(self, operation: str) -> float:
            done.append(operation)
            return 1.0

    taken = latency.in_turn([Slow()], [("begin", "end")], 50, 0.0)
    assert done == ["begin", "end"]
    assert taken == {("slow", "begin"): [1.0], ("slow", "end"): [1.0]}


def test_percentile() -> None:
    """Of 300 figures the 99th hundredth ends at the 297th."""
    figures = [float(n) for n in range(300, 0, -1)]
    assert percentile(figures, 0.99) == 297
    assert percentile([7.0], 0.99) == 7


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """A program whose bench is interrupted in the middle of filling it ends with it."""
    [ours] = everybody(tmp_path, None)

    def interrupted() -> None:
        with opened([ours]):
            process = ours._process
            assert process is not None and process.stdin is not None
            process.stdin.write(json.dumps(["fill", 10_000_000, 600]) + "\n")
            process.stdin.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not ours.processes()
