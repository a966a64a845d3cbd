"""The shell of the command: flags, refusals, exit codes, streams, and what it imports."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recall_cli.app import ACT, COMMANDS, KEEP, LOOK, SHIP, SPEAK
from recall_cli.exits import Exit, exit_of
from recall_cli.tree import tree
from store import errors, remote_errors
from tests.conftest import COMMAND, ROOT, Run

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is of Linux")
SAMPLE = (sys.executable, ROOT / "tests/cli/sample.py", "sample")


def _modules(environment: dict[str, str], *arguments: str) -> set[str]:
    """What a run of the command has imported by its end."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: sys.stderr.write('\\n'.join(sys.modules)))\n"
        "from recall_cli.app import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout
    return set(done.stderr.split("\n"))


@pytest.mark.parametrize("arguments", [("--help",), ("help", "exit-codes")])
def test_light_commands_import_nothing_heavy(environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    """Help and the exit codes import neither rich nor the engine nor any library of a later feature."""
    heavy = {"rich", "pydantic", "asyncio", "sqlite3", "sqlite_utils", "boto3", "store.client", "store.agent"}
    assert heavy.isdisjoint(_modules(environment, *arguments))


def test_root_help_imports_no_command_module(environment: dict[str, str]) -> None:
    """The root's help comes from the static table alone."""
    loaded = {name for name in _modules(environment, "--help") if name.startswith("recall_cli.commands.")}
    assert loaded == set()


def test_a_command_imports_only_its_own_module(environment: dict[str, str]) -> None:
    """Running one command leaves the modules of the others alone."""
    loaded = {name for name in _modules(environment, "help", "exit-codes") if name.startswith("recall_cli.commands.")}
    assert loaded == {"recall_cli.commands.help"}


def test_the_static_table_says_what_the_commands_say() -> None:
    """Each summary in the table is the first line of its command's own help."""
    real = {node.path[0]: node.summary for node in tree().children}
    assert {name: entry.help for name, entry in COMMANDS.items()} == real
    assert {entry.panel for entry in COMMANDS.values()} <= {LOOK, ACT, SHIP, KEEP, SPEAK}


def test_every_command_has_a_summary_and_every_option_a_help() -> None:
    """No command, option or argument is left unexplained."""
    for node in tree().walk():
        assert node.summary, node.name
        for param in node.params:
            assert param.help, f"{node.name} {param.label}"


def test_no_command_takes_a_global_flag_for_itself() -> None:
    """The names of the global flags mean the same everywhere."""
    for node in tree().walk():
        names = [name for param in node.options for name in param.names]
        assert len(names) == len(set(names)), node.name


def test_generated_files_are_current() -> None:
    """completions/, docs/commands.md and docs/python.md are what the code generates today."""
    argv = [sys.executable, "-m", "tools.generate", "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_lazy_names_are_the_typed_names() -> None:
    """What a type checker sees in recall_cli is what a program gets, from the same module."""
    import recall_cli

    typed = {
        name.name: node.module
        for node in ast.walk(ast.parse(Path(recall_cli.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("store.")
        for name in node.names
    }
    assert typed == recall_cli._NAMES
    assert recall_cli.RecallError is errors.RecallError
    assert set(typed) <= set(dir(recall_cli))
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        _ = getattr(recall_cli, "Cli" + "nt")


# -- exit codes -----------------------------------------------------------------------


def test_help_exit_codes_lists_the_fixed_table(run_recall: Run) -> None:
    """Exit codes are 0 to 9 and 130, one plain line each, and printed by help exit-codes."""
    ended = run_recall("help", "exit-codes")
    assert [line.split("\t")[0] for line in ended.out.splitlines()] == [str(n) for n in range(10)] + ["130"]
    assert (ended.code, ended.err) == (0, "")


def _situations() -> list[type[errors.RecallError]]:
    found, todo = [], [errors.RecallError]
    while todo:
        for kind in todo.pop().__subclasses__():
            found.append(kind)
            todo.append(kind)
    return sorted(
        (kind for kind in found if kind.__module__ in ("store.errors", "store.remote_errors")),
        key=lambda kind: kind.__name__,
    )


@pytest.mark.parametrize("kind", _situations(), ids=lambda kind: str(kind.__name__))
def test_every_situation_has_an_exit_code_of_its_own_kind(kind: type[errors.RecallError]) -> None:
    """No situation that the engine names ends as an unexpected error."""
    assert exit_of(kind.__new__(kind)) not in (Exit.DONE, Exit.UNEXPECTED, Exit.INTERRUPTED)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidInput, 2),
        (errors.StoreMissing, 3),
        (errors.LeaseHeld, 4),
        (errors.LeaseExpired, 5),
        (errors.ActionClosed, 6),
        (errors.StoreFull, 7),
        (errors.NeedsSettling, 8),
        (errors.StoreDamaged, 9),
        (remote_errors.NotAttached, 3),
        (remote_errors.OtherLog, 6),
        (remote_errors.RemoteUnreachable, 7),
        (remote_errors.Forked, 9),
    ],
)
def test_exit_codes_are_those_of_the_design(kind: type[errors.RecallError], code: int) -> None:
    """The base class of a refusal decides its exit code."""
    assert exit_of(kind.__new__(kind)) == code


# -- usage -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("hepl",), "recall: no such command: 'hepl'", "did you mean: recall help"),
        (("zzz",), "recall: no such command: 'zzz'", "see: recall --help"),
        (("help", "nothing"), "recall: no such command: 'nothing'", "see: recall --help, or: recall help exit-codes"),
        (("--bogus",), "recall: no such option: --bogus", "see: recall --help"),
        (("help", "--bogus"), "recall: no such option: --bogus", "see: recall help --help"),
        (("completions",), "recall: missing argument 'SHELL'", "see: recall completions --help"),
        (("--json", "--jsonl", "help"), "", ""),
    ],
)
def test_usage_errors_are_one_line_and_a_hint(
    run_recall: Run, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    """A call that cannot be understood ends with 2 and says why and where to look."""
    ended = run_recall(*arguments)
    assert (ended.code, ended.out) == (2, "")
    if message:
        assert ended.err.splitlines()[0].startswith(message)
        assert ended.err.splitlines()[1:] == [f"  → {hint}"]


@pytest.mark.parametrize("name", ["hel", "comp", "HELP", "--hel", "--js"])
def test_nothing_may_be_abbreviated(run_recall: Run, name: str) -> None:
    """A prefix of a command or an option is not that command or option."""
    assert run_recall(name).code == 2


def test_no_arguments_show_the_help_on_stderr(run_recall: Run) -> None:
    """recall alone did nothing, so it ends with 2, but shows what can be done."""
    ended = run_recall()
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Usage: recall")


def test_undecodable_and_active_arguments_are_shown_as_escapes(run_recall: Run) -> None:
    """Bytes that are no text and terminal sequences in a refused argument never reach the terminal raw."""
    ended = run_recall(b"\xff\x1b[31m")
    assert ended.code == 2
    assert ended.err.isprintable() is False  # it has line breaks
    assert "\x1b" not in ended.err
    assert "\\udcff\\x1b[31m" in ended.err


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_wins_over_missing_arguments(run_recall: Run, flag: str) -> None:
    """Help is shown for a command whose arguments are not there yet."""
    ended = run_recall("completions", flag)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == run_recall("help", "completions").out
    assert "Exit codes: 0, 2." in ended.out


def test_version(run_recall: Run) -> None:
    """--version prints the package's version."""
    from recall_cli import __version__

    assert run_recall("--version").out == f"recall {__version__}\n"


# -- global flags ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("--json", "help", "exit-codes"), ("help", "--json", "exit-codes"), ("help", "exit-codes", "--json")],
)
def test_global_flags_stand_before_and_after_the_command(run_recall: Run, arguments: tuple[str, ...]) -> None:
    """--json means the same wherever it stands."""
    rows = json.loads(run_recall(*arguments).out)
    assert [row["code"] for row in rows] == [*range(10), 130]


def test_jsonl_is_one_object_a_line(run_recall: Run) -> None:
    """--jsonl prints every row as one line of JSON."""
    lines = run_recall("help", "exit-codes", "--jsonl").out.splitlines()
    assert [json.loads(line)["code"] for line in lines] == [*range(10), 130]


@pytest.mark.parametrize("arguments", [("--json", "zzz"), ("help", "--bogus", "--json"), ("--jsonl", "--dir=")])
def test_errors_are_json_for_programs(run_recall: Run, arguments: tuple[str, ...]) -> None:
    """Under --json an error is one object on stderr, also when the parser failed before it saw the flag."""
    ended = run_recall(*arguments)
    assert ended.out == ""
    assert ended.code == 2
    assert set(json.loads(ended.err)) == {"code", "message", "hint"}


def test_a_word_after_two_dashes_is_no_flag(run_recall: Run) -> None:
    """After -- even --json is a word, so the error is plain."""
    assert run_recall("help", "--", "--json").err.startswith("recall: no such command: '--json'")


# -- streams ------------------------------------------------------------------------------


def test_a_closed_pipe_ends_quietly(environment: dict[str, str]) -> None:
    """A reader that leaves early, as head does, gets no complaint and no failure."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [COMMAND, "completions", "fish"], env=environment, stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@LINUX
@pytest.mark.parametrize("arguments", [("help", "exit-codes"), ("--help",), ("--version",), ("completions", "zsh")])
def test_a_full_disk_under_stdout_is_a_failure(environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    """Output that could not be written is never a success: one line and exit code 7."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [COMMAND, *arguments], env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 7
    assert done.stderr.splitlines()[0] == "recall: standard output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_closed_stdout_is_a_failure(environment: dict[str, str]) -> None:
    """Without a stdout there is nowhere for the data, which is said with exit code 7."""
    script = f'"{COMMAND}" help exit-codes >&-'
    done = subprocess.run(["sh", "-c", script], env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 7
    assert done.stderr.startswith("recall: standard output cannot be written: it is closed")


@pytest.mark.parametrize("arguments", ["nope", ""])
@pytest.mark.parametrize("stderr", ["2>&-", pytest.param("2>/dev/full", marks=LINUX)])
def test_a_lost_stderr_changes_no_exit_code(environment: dict[str, str], arguments: str, stderr: str) -> None:
    """Where nothing can be said the exit code still tells."""
    done = subprocess.run(["sh", "-c", f'"{COMMAND}" {arguments} {stderr}'], env=environment, check=False)
    assert done.returncode == 2


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "POSIX"}, {"PYTHONIOENCODING": "latin-1"}])
def test_output_is_utf8_whatever_the_locale(run_recall: Run, locale: dict[str, str]) -> None:
    """A C locale does not break characters outside ASCII."""
    assert "\n  → see: recall --help\n" in run_recall("zzz", env=locale).err


def test_an_interrupt_ends_with_130(environment: dict[str, str]) -> None:
    """Ctrl-C while a command waits is one line and exit code 130."""
    process = subprocess.Popen(
        [*SAMPLE, "fail", "wait"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "recall: interrupted\n")


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_defect_is_one_line_unless_debugging(run_recall: Run, debug: str) -> None:
    """An unexpected exception ends with 1 and one line; RECALL_DEBUG=1 adds the traceback."""
    ended = run_recall("fail", "defect", program=SAMPLE, env={"RECALL_DEBUG": debug})
    lines = ended.err.splitlines()
    assert ended.code == 1
    assert "recall: unexpected ZeroDivisionError: a\\x1b[31m\\nb" in lines
    assert ("Traceback (most recent call last):" in lines) is bool(debug)
    assert debug or len(lines) == 2


# -- colour and tables -----------------------------------------------------------------------


def test_a_terminal_gets_a_table_within_its_width(run_on_terminal: Run) -> None:
    """On a terminal there is a heading, and no line is wider than the terminal."""
    ended = run_on_terminal("help", "exit-codes", columns=60)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.out).splitlines()
    assert ended.code == 0
    assert plain[0].split() == ["CODE", "MEANING", "WHAT", "HELPS"]
    assert len(plain) == 1 + len(Exit)
    assert max(map(len, plain)) <= 60


@pytest.mark.parametrize(
    ("arguments", "env", "colored"),
    [
        (("zzz",), {}, True),
        (("zzz", "--no-color"), {}, False),
        (("--no-color", "zzz"), {}, False),
        (("zzz",), {"NO_COLOR": "1"}, False),
        (("zzz",), {"NO_COLOR": ""}, True),
        (("zzz",), {"TERM": "dumb"}, False),
        (("zzz",), {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        (("zzz",), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (("help", "exit-codes"), {"NO_COLOR": "1"}, False),
    ],
)
def test_colour_on_a_terminal(
    run_on_terminal: Run, arguments: tuple[str, ...], env: dict[str, str], colored: bool
) -> None:
    """A terminal gets colours unless NO_COLOR, --no-color or TERM=dumb say no."""
    assert ("\x1b[" in run_on_terminal(*arguments, env=env).out) is colored


def test_a_pipe_gets_colours_only_when_forced(run_recall: Run) -> None:
    """FORCE_COLOR colours a pipe too; nothing else does."""
    assert "\x1b[" not in run_recall("zzz").err
    assert "\x1b[31mrecall:\x1b[0m" in run_recall("zzz", env={"FORCE_COLOR": "1"}).err
