"""What a write command imports: its time is mostly that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.acting import session
from tests.conftest import Run

RUN = (
    "import atexit, sys\n"
    "atexit.register(lambda: sys.stderr.write('\\nMODULES ' + ' '.join(sys.modules)))\n"
    "from recall_cli.app import main\n"
    "sys.exit(main())\n"
)
_EMPTY = (
    "import sys, typer\n"
    "app = typer.Typer(rich_markup_mode=None)\n"
    "app.command()(lambda: None)\n"
    "app(standalone_mode=False)\n"
    "sys.stderr.write('MODULES ' + ' '.join(sys.modules))\n"
)


def modules(code: str, environment: dict[str, str], *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return set(done.stderr.rpartition("MODULES ")[2].split())


HEAVY = set(
    "rich pydantic asyncio logging platformdirs sqlite_utils boto3 http h11 email getpass pwd concurrent".split()
)
ELSEWHERE = {
    "store.client",
    "store.remote_errors",
    "recall_cli.walk",
    "recall_cli.resolving",
    "recall_cli.tree",
    "recall_cli.completions",
}


@pytest.mark.parametrize(
    "command",
    [
        ("turns", "add", "--role", "user", "hi"),
        ("actions", "begin", "--tool", "t", "--class", "external", "--args", "{}"),
        ("state", "set", "--goal", "g"),
    ],
)
def test_a_write_imports_little_beside_the_parser(
    run_recall: Run, environment: dict[str, str], command: tuple[str, ...]
) -> None:
    """It loads nothing heavy, no other command, and at most 120 modules more than an empty typer application."""
    env = {**environment, **session(run_recall)}
    loaded, empty = modules(RUN, env, *command), modules(_EMPTY, environment)
    top = {name.partition(".")[0] for name in loaded}
    assert HEAVY & top == set()
    assert ELSEWHERE & loaded == set()
    assert {name for name in loaded if name.startswith("recall_cli.commands.")} == {f"recall_cli.commands.{command[0]}"}
    more = loaded - empty
    assert "subprocess" not in more  # typer imports it for its completions; the engine does not
    assert len(more) < 120, sorted(more)
