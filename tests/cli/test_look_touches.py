"""Looking does not touch: no look command makes, changes or needs to write anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.look_stores import LOOKS, seed_all
from tests.conftest import COMMAND, Run


@pytest.fixture
def store(environment: dict[str, str]) -> Path:
    directory = Path(environment["RECALL_DIR"])
    seed_all(directory)
    return directory


def _contents(directory: Path) -> dict[str, str]:
    """Every file's digest but those of SQLite's own two, which a reader may make where it may write."""
    own = ("recall.db-wal", "recall.db-shm")
    files = (path for path in directory.rglob("*") if path.name not in own)
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_a_missing_store_stays_missing(run_recall: Run, environment: dict[str, str], look: tuple[str, ...]) -> None:
    """Without a store every look command is one line, exit code 3, and nothing is made."""
    ended = run_recall(*look)
    assert (ended.code, ended.out) == (3, "")
    assert [line for line in ended.err.splitlines() if not line.startswith("  →")] == [
        f"recall: no store in {environment['RECALL_DIR']}"
    ]
    assert not Path(environment["RECALL_DIR"]).exists()


@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_looking_changes_no_file(run_recall: Run, store: Path, look: tuple[str, ...]) -> None:
    """A look command leaves the names and the bytes of the store as they were."""
    before = _contents(store)
    ended = run_recall(*look)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out
    assert _contents(store) == before


@pytest.mark.parametrize("look", [look for look in LOOKS if "show" in look or "records" in look], ids=" ".join)
def test_an_unknown_agent_is_not_made(run_recall: Run, store: Path, look: tuple[str, ...]) -> None:
    """A wrong name is exit code 3 and leaves no agent behind."""
    words = [word if word != "billing-migrator" else "nobody" for word in look]
    ended = run_recall(*words)
    assert ended.code == 3
    assert ended.err.startswith("recall: no agent nobody\n")
    assert "nobody" not in run_recall("agents", "list").out


@pytest.mark.parametrize("with_wal", [False, True], ids=["closed", "wal"])
def test_a_read_only_directory_is_enough(
    run_recall: Run, environment: dict[str, str], store: Path, tmp_path: Path, with_wal: bool
) -> None:
    """Every look command shows the same where nothing can be written, also beside an unfinished WAL."""
    directory = store
    if with_wal:
        from store.client import Client

        client = Client(local_dir=store)
        with client.resume("other") as agent:
            agent.record_turn("user", "only in the log")
        directory = tmp_path / "copy"  # as a crashed writer leaves it: a WAL without its index
        directory.mkdir()
        for name in ("recall.db", "recall.db-wal"):
            shutil.copyfile(store / name, directory / name)
        client.close()
    expected = [run_recall(*look, "--jsonl").out for look in LOOKS]
    before = {path.name: sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
    with_variables = {**environment, "RECALL_DIR": str(directory)}
    os.chmod(directory, 0o555)
    try:
        if with_wal:
            done = _read_only(directory, [str(COMMAND), "turns", "list", "other"], with_variables)
            assert "only in the log" in done.stdout
        for look, wanted in zip(LOOKS, expected, strict=True):
            done = _read_only(directory, [str(COMMAND), *look, "--jsonl"], with_variables)
            assert (done.returncode, done.stderr) == (0, ""), look
            if look[0] not in ("agents", "briefing"):  # those tell ages and sizes
                assert done.stdout == wanted, look
    finally:
        os.chmod(directory, 0o755)
    assert {path.name: sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()} == before


def _read_only(directory: Path, words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs where ``directory`` cannot be written; root, whom modes do not stop, in a mount namespace."""
    if os.geteuid() == 0:
        bind = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        probe = subprocess.run(
            ["unshare", "-m", "sh", "-c", bind, str(directory), "true"], capture_output=True, check=False
        )
        if probe.returncode != 0:
            pytest.skip("root without the right to mount cannot have a read-only directory")
        words = ["unshare", "-m", "sh", "-c", bind, str(directory), *words]
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=60)
