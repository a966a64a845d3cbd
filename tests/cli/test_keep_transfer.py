"""``recall verify``, ``export``, ``import`` and ``aside`` as people and scripts meet them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Run
from tests.keeping import checked, fill, problems, set_aside, tampering


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "store"
    fill(directory)
    fill(directory, "other", turns=1)
    set_aside(directory, "other", 4, "diverged \x1b[31m")
    return directory


# -- verify ---------------------------------------------------------------------------


def test_verify_prints_a_head_that_verify_takes_back(store: Path, run_recall: Run) -> None:
    """The last word of an agent's line is a head; given back with --head it finds a lost tail."""
    ended = run_recall("verify")
    assert (ended.code, ended.err) == (0, "")
    heads = [line.split()[-1] for line in ended.out.splitlines()]
    assert [each.split(":")[0] for each in heads] == ["billing", "other"]
    assert run_recall("verify", "--head", heads[0], "--head", heads[1]).code == 0
    lsn = checked(store, "billing").lsn
    with tampering(store) as connection:
        connection.execute("DELETE FROM records WHERE agent = 'billing' AND lsn = ?", (lsn,))
        connection.execute("DELETE FROM heads WHERE agent = 'billing' AND lsn = ?", (lsn,))
    assert run_recall("verify", "billing").code == 0
    lost = run_recall("verify", "billing", "--head", heads[0].partition(":")[2])
    assert lost.code == 9
    assert lost.out.startswith(f"billing lsn {lsn}: the saved head is gone: the log ends at lsn {lsn - 1}\n")
    assert lost.err.startswith("1 problem(s) found\n")


def test_verify_names_each_problem_and_goes_on(store: Path, run_recall: Run) -> None:
    """One line a problem, the other agents are still checked, and programs get the same as objects."""
    with tampering(store) as connection:
        connection.execute("UPDATE records SET line = replace(line, 'turn 1', 'turn 9') WHERE agent = 'billing'")
    ended = run_recall("verify", "--jsonl")
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 9
    assert [(each["type"], each["agent"]) for each in found] == [
        ("problem", "billing"),
        ("agent", "billing"),
        ("agent", "other"),
    ]
    assert (found[0]["lsn"], found[0]["key"], found[1]["problems"]) == (6, "turn:2", 1)
    assert run_recall("verify", "other").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nobody"], 3),
        (["../x"], 2),
        (["billing", "--head", "5"], 2),
        (["--head", "5:" + "0" * 64], 2),
        (["billing", "--head", "other:5:" + "0" * 64], 2),
        (["--head", "nobody:5:" + "0" * 64], 3),
        (["--head", "billing:0:" + "0" * 64], 2),
        (["billing", "--head", "5:" + "0" * 64], 9),
    ],
)
def test_verify_refuses_what_it_cannot_check(store: Path, run_recall: Run, arguments: list[str], code: int) -> None:
    """Unknown agents and heads that are none are told apart from damage."""
    assert run_recall("verify", *arguments).code == code


def test_verify_shows_its_progress_on_a_terminal(store: Path, run_on_terminal: Run) -> None:
    """A person sees the outcome, and no escape of the stored text acts."""
    ended = run_on_terminal("verify")
    assert ended.code == 0
    assert "billing: ok, " in ended.out


# -- export and import -------------------------------------------------------------------


def test_an_export_goes_to_a_private_file_and_back(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """The file is complete and private, its import verifies, and both say what they did."""
    out = run_recall("export", "-o", "all.jsonl", "--json")
    assert (out.code, [each["agent"] for each in json.loads(out.out)["agents"]]) == (0, ["billing", "other"])
    assert stat.S_IMODE((tmp_path / "all.jsonl").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    back = run_recall("import", "all.jsonl", "--dir", "copy")
    assert (back.code, back.err.splitlines()[0]) == (0, "imported 2 agent(s)")
    assert problems(tmp_path / "copy") == []
    again = run_recall("import", "all.jsonl", "--dir", "copy")
    assert (again.code, again.out) == (6, "")


def test_an_export_passes_through_a_pipe(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """``export | import -`` copies the named agent."""
    out = run_recall("export", "billing")
    assert out.code == 0
    back = run_recall("import", "-", "--dir", "copy", input=out.out)
    assert back.code == 0
    assert checked(tmp_path / "copy", "billing") == checked(store, "billing")


def test_an_export_does_not_replace_a_file_unless_told(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """What is there stays; --force replaces it when the new one is complete; a directory is no file."""
    (tmp_path / "kept").write_text("precious")
    refused = run_recall("export", "-o", "kept")
    assert (refused.code, (tmp_path / "kept").read_text()) == (2, "precious")
    assert "'kept' exists" in refused.err
    with tampering(store) as connection:
        connection.execute("DELETE FROM blobs WHERE agent = 'other'")
    damaged = run_recall("export", "-o", "kept", "--force")
    assert (damaged.code, (tmp_path / "kept").read_text()) == (9, "precious")
    assert run_recall("export", "billing", "-o", "kept", "--force").code == 0
    assert json.loads((tmp_path / "kept").read_text().splitlines()[0])["format"] == "recall.export/1"
    assert run_recall("export", "-o", ".", "--force").code == 2
    assert run_recall("export", "-o", "missing/x").code == 7
    assert run_recall("export", "-o", "/dev/full", "--force").code == 2
    assert [path.name for path in tmp_path.rglob("*partial*")] == []


def test_an_export_that_fills_the_disk_of_stdout_says_so(store: Path, environment: dict[str, str]) -> None:
    """A full disk behind a redirection is exit 7, not a short file with exit 0."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run([COMMAND, "export"], env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 7


def test_an_export_is_not_thrown_on_a_terminal(store: Path, run_on_terminal: Run) -> None:
    """Thousands of lines of JSON on a screen help nobody; the hint says how to get them."""
    ended = run_on_terminal("export")
    assert ended.code == 2
    assert "standard output is a terminal" in ended.out
    assert run_on_terminal("import", "-").code == 2


@pytest.mark.parametrize("name", ["missing.jsonl", ".", "\udcff"])
def test_a_file_that_cannot_be_read_is_one_line(store: Path, run_recall: Run, name: str) -> None:
    """A wrong path is a usage error."""
    ended = run_recall("import", os.fsencode(name))
    assert ended.code == 2
    assert len(ended.err.splitlines()) <= 2


def test_what_is_no_export_makes_no_store(run_recall: Run, tmp_path: Path, environment: dict[str, str]) -> None:
    """A wrong file is refused with 9 before a directory is made."""
    (tmp_path / "notes.txt").write_text("hello\n")
    ended = run_recall("import", "notes.txt")
    assert (ended.code, ended.err.splitlines()[0]) == (
        9,
        "recall: line 1: not an export of recall; nothing was imported",
    )
    assert not Path(environment["RECALL_DIR"]).exists()


def test_a_dry_run_checks_the_file_and_imports_nothing(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """A backup can be tested; a known agent and a cut file are found without touching a store."""
    run_recall("export", "-o", "all.jsonl")
    ended = run_recall("import", "--dry-run", "all.jsonl", "--dir", "copy")
    assert (ended.code, ended.err) == (0, "the file is sound; nothing was imported\n")
    assert not (tmp_path / "copy").exists()
    assert run_recall("import", "--dry-run", "all.jsonl").code == 6
    (tmp_path / "cut.jsonl").write_bytes((tmp_path / "all.jsonl").read_bytes()[:5000])
    assert run_recall("import", "--dry-run", "cut.jsonl", "--dir", "copy").code == 9


def test_an_import_that_is_killed_leaves_nothing(store: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """SIGKILL in the middle of an import: the next look finds a store without the agents, and the import runs again."""
    code = (
        "import os, signal, sys\n"
        "from store.backends.sqlite import SqliteBackend\n"
        "from store.restore import restore\n"
        "def watch(lines):\n"
        "    for at, line in enumerate(lines):\n"
        "        if at == 20: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield line\n"
        "restore(SqliteBackend(sys.argv[1]), open(sys.argv[2], 'rb'), watch=watch)\n"
    )
    exported = tmp_path / "all.jsonl"
    subprocess.run([COMMAND, "export", "-o", exported], env=environment, check=True, capture_output=True)
    copy = tmp_path / "copy"
    killed = subprocess.run([sys.executable, "-c", code, copy, exported], check=False)
    assert killed.returncode == -signal.SIGKILL
    listed = [str(COMMAND), "query", "SELECT count(*) FROM records", "--dir", str(copy)]
    assert subprocess.run(listed, env=environment, capture_output=True, check=True).stdout == b"0\n"
    subprocess.run([COMMAND, "import", exported, "--dir", copy], env=environment, check=True, capture_output=True)
    assert problems(copy) == []


def test_a_slow_pipe_keeps_no_writer_waiting(store: Path, environment: dict[str, str]) -> None:
    """While an import waits for its input, others write."""
    with subprocess.Popen(
        [COMMAND, "import", "-"], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as slow:
        assert slow.stdin is not None
        slow.stdin.write(b'{"type":"header","format":"recall.export/1"}\n')
        slow.stdin.flush()
        time.sleep(1)
        set_aside(store, "billing", 6, "meanwhile")
        slow.stdin.close()
        assert slow.wait(timeout=30) == 9


# -- aside ----------------------------------------------------------------------------------


def test_what_was_set_aside_is_listed_shown_and_exported(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """Count, range, reason and time; every record that was left; and a file that import refuses."""
    set_aside(store, "other", 3, "again")
    listed = json.loads(run_recall("aside", "--json").out)
    assert [(each["agent"], each["number"], each["branch"], each["first"], each["reason"]) for each in listed] == [
        ("other", 2, 1, 5, "diverged \x1b[31m"),
        ("other", 3, 2, 4, "again"),
    ]
    assert "diverged \\x1b[31m" in run_recall("aside", "list", "other").out
    shown = [run_recall("aside", "show", "other", str(each["number"]), "--jsonl").out for each in listed]
    lsns = [[json.loads(line)["lsn"] for line in text.splitlines()] for text in shown]
    assert lsns == [list(range(each["first"], each["last"] + 1)) for each in listed]
    assert [each["records"] for each in listed] == [len(each) for each in lsns]
    on_path = int(run_recall("query", "SELECT count(*) FROM records WHERE agent = 'other'").out) - sum(map(len, lsns))
    assert on_path == checked(store, "other").lsn
    assert run_recall("aside", "export", "other", "2", "-o", "aside.jsonl").code == 0
    lines = [json.loads(line) for line in (tmp_path / "aside.jsonl").read_text().splitlines()]
    assert (lines[0]["format"], lines[0]["reason"]) == ("recall.aside/1", "diverged \x1b[31m")
    assert [json.loads(each["line"])["lsn"] for each in lines if each["type"] == "record"] == lsns[0]
    refused = run_recall("import", "aside.jsonl", "--dir", "copy")
    assert refused.code == 9
    assert "never merged" in refused.err


def test_an_agent_without_asides_has_none(store: Path, run_recall: Run) -> None:
    """Nothing set aside is said, and a number that is none is not found."""
    ended = run_recall("aside", "list", "billing")
    assert (ended.code, ended.out, ended.err) == (0, "", "nothing was set aside\n")
    assert run_recall("aside", "list", "nobody").code == 3
    assert run_recall("aside", "show", "billing", "2").code == 3
    assert run_recall("aside", "show", "billing", "0").code == 2


def test_an_import_that_is_refused_leaves_no_directory(store: Path, run_recall: Run, tmp_path: Path) -> None:
    """A changed export makes neither the directory nor those above it; a sound one makes a private store."""
    file, new = tmp_path / "export", tmp_path / "a" / "b"
    assert run_recall("export", "-o", file).code == 0
    sound = file.read_bytes()
    lines = sound.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-2]))
    before = sorted(tmp_path.iterdir())
    assert run_recall("import", file, "--dir", new).code == 9
    assert sorted(tmp_path.iterdir()) == before
    file.write_bytes(sound)
    assert run_recall("import", file, "--dir", new).code == 0
    assert [each.name for each in new.parent.iterdir()] == ["b"]
    assert stat.S_IMODE(new.stat().st_mode) == 0o700
    assert run_recall("verify", "--dir", new).code == 0
