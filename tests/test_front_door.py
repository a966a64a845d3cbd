"""``recall_cli`` as Python programs see it: its names, its help, and what stands in its way."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import recall_cli
from store import errors, remote_errors

ROOT = Path(__file__).resolve().parent.parent


def python(*words: str, here: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in a directory, with the packages in the way that an installed one has them: last."""
    script = f"import sys; sys.path.append({str(ROOT)!r})\n"
    environ = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
    if words[0] == "-c":
        words = ("-c", script + words[1])
    argv = [sys.executable, *words]
    return subprocess.run(argv, cwd=here, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_every_name_is_there_and_is_the_engines() -> None:
    """Each exported name can be had, and is listed by ``dir``."""
    assert set(recall_cli.__all__) <= set(dir(recall_cli))
    for name in recall_cli.__all__:
        assert getattr(recall_cli, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        getattr(recall_cli, "Cleint")  # noqa: B009 (a type checker would refuse it)


def test_every_error_that_a_program_can_meet_is_exported() -> None:
    """An error can be caught by its name; ``Stale`` never leaves the engine."""
    there = [*inspect.getmembers(errors, inspect.isclass), *inspect.getmembers(remote_errors, inspect.isclass)]
    kinds = {name for name, kind in there if issubclass(kind, errors.RecallError)}
    assert kinds - {"Stale"} == {each for each in recall_cli.__all__ if each in kinds}


def test_a_star_import_and_help_know_the_names(tmp_path: Path) -> None:
    """They are loaded when they are asked for, as a whole if need be."""
    told = python("-c", "from recall_cli import *\nprint(Client.__name__, LeaseHeld.code, AsyncClient)", here=tmp_path)
    assert told.stdout == "Client lease_held <class 'store.aio.AsyncClient'>\n", told.stderr
    told = python("-c", "import recall_cli; help(recall_cli)", here=tmp_path)
    assert "class Client(" in told.stdout
    assert "class LeaseHeld(" in told.stdout
    lazy = "import recall_cli, sys; print([each for each in sys.modules if each.startswith('store.')])"
    assert python("-c", lazy, here=tmp_path).stdout == "[]\n"


@pytest.mark.parametrize("name", ["store.py", "store/__init__.py"])
@pytest.mark.parametrize("program", ["from recall_cli import Client", "import store; from recall_cli import *"])
def test_a_module_of_the_users_that_shadows_the_engine_is_named(tmp_path: Path, name: str, program: str) -> None:
    """One clear error says which file it is and what to do, instead of ``'store' is not a package``."""
    shadow = tmp_path / name
    shadow.parent.mkdir(exist_ok=True)
    shadow.write_text("mine = 1\n")
    (tmp_path / "main.py").write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{program}\n")
    told = python("main.py", here=tmp_path)
    assert told.returncode == 1
    assert told.stderr.count("Traceback") == 1
    assert told.stderr.splitlines()[-1] == (
        f"ImportError: recall_cli needs its own package 'store', but Python found {shadow} under that name; "
        "rename that file, or start the program from elsewhere"
    )


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    """``python -m recall_cli`` beside such a file shows no traceback."""
    (tmp_path / "store.py").write_text("mine = 1\n")
    told = python("-m", "recall_cli", "agents", "list", here=tmp_path)
    assert (told.returncode, told.stdout) == (7, "")
    assert told.stderr == (
        f"recall: recall_cli needs its own package 'store', but Python found {tmp_path}/store.py under that name; "
        "rename that file, or start the program from elsewhere\n"
    )


def test_a_directory_of_that_name_is_no_hindrance(tmp_path: Path) -> None:
    """Data in ``./store`` is no module, and shadows nothing."""
    (tmp_path / "store").mkdir()
    told = python("-c", "from recall_cli import Client; print(Client.__name__)", here=tmp_path)
    assert told.stdout == "Client\n", told.stderr
