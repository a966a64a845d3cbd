"""Looking costs what it shows: not the history, not a heavy import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.look_stores import grow, seed
from tests.conftest import Run

MANY, SOME, FEW = 100_000, 20_000, 200

# Runs the command and says, after it, how many bytes it read, its peak memory in KiB, and its modules.
_MEASURED = """
import atexit, os, resource, sys
def tell():
    with open("/proc/self/io") as file:
        read = next(line.split()[1] for line in file if line.startswith("rchar"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(read, peak, *sys.modules, file=sys.stderr)
atexit.register(tell)
from recall_cli.app import main
code = main()
sys.stdout.flush()
sys.exit(code)
"""


def _measure(environment: dict[str, str], *arguments: str) -> tuple[int, int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout
    read, peak, *modules = done.stderr.splitlines()[-1].split()
    return int(read), int(peak), set(modules)


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store with a long history and a short one."""
    directory = tmp_path_factory.mktemp("histories")
    grow(directory, "many", MANY // 2, MANY // 2)
    grow(directory, "some", SOME // 2, SOME // 2)
    grow(directory, "few", FEW // 2, FEW // 2)
    return directory


@pytest.mark.skipif(sys.platform != "linux", reason="reads are counted in /proc/self/io")
@pytest.mark.parametrize(
    "look",
    [
        ("turns", "list", "AGENT"),
        ("turns", "list", "AGENT", "--before", "50", "--limit", "5"),
        ("turns", "show", "-a", "AGENT", "7"),
        ("log", "AGENT"),
        ("log", "AGENT", "--since", "150", "--limit", "10"),
        ("log", "AGENT", "--since", "2h", "--limit", "10"),
        ("actions", "list", "AGENT", "--limit", "10"),
        ("actions", "show", "-a", "AGENT", "9"),
        ("agents", "show", "AGENT"),
        ("briefing", "AGENT"),
    ],
    ids=" ".join,
)
def test_a_look_reads_what_it_shows(environment: dict[str, str], histories: Path, look: tuple[str, ...]) -> None:
    """At 100,000 records a look reads at most 400 KB more, and holds at most 8 MB more, than at 200."""
    measured = {}
    for agent in ("few", "many"):
        words = [agent if word == "AGENT" else word for word in look]
        measured[agent] = _measure({**environment, "RECALL_DIR": str(histories)}, *words)
    assert measured["many"][0] - measured["few"][0] < 400_000
    assert measured["many"][1] - measured["few"][1] < 8_000


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB")
@pytest.mark.parametrize("look", [("records",), ("log", "--all"), ("actions", "list"), ("turns", "list", "--all")])
def test_even_a_whole_history_is_streamed(environment: dict[str, str], histories: Path, look: tuple[str, ...]) -> None:
    """Showing all of 20,000 records, of 7 MB, takes at most 4 MB more memory than showing 200."""
    peaks = [_measure({**environment, "RECALL_DIR": str(histories)}, *look, agent)[1] for agent in ("few", "some")]
    assert peaks[1] - peaks[0] < 4_000


def test_a_list_in_a_pipe_imports_little(environment: dict[str, str]) -> None:
    """turns list in a pipe imports neither rich, nor the briefing, nor what only writers need."""
    seed(Path(environment["RECALL_DIR"]))
    _, _, modules = _measure(environment, "turns", "list", "billing-migrator")
    heavy = {"rich", "pydantic", "asyncio", "logging", "sqlite_utils", "boto3"}
    engine = {"store.briefing", "store.agent", "store.client", "store.keeper", "store.acting"}
    assert "recall_cli.commands.turns" in modules
    assert modules & (heavy | engine) == set()


def test_the_head_of_a_long_list_ends_it(run_recall: Run, environment: dict[str, str], histories: Path) -> None:
    """A pipe that is closed after the first line ends the command quietly."""
    from tests.conftest import COMMAND

    script = f'"{COMMAND}" log many --all | head -n 1; echo "${{PIPESTATUS[0]}}"'
    variables = {**environment, "RECALL_DIR": str(histories)}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=True)
    first, code = done.stdout.splitlines()
    assert (first.split("\t")[0], code, done.stderr) == ("1", "0", "")
