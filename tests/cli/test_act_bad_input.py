"""What the act commands are given and cannot accept: one line that says so, the right code, nothing written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.acting import lsn, session
from tests.cli.forks import run_all
from tests.conftest import Ended, Run

SURROGATE = b"a\xff"  # argv bytes that are not UTF-8
BIG = b"x" * 10_000_000
TURN = ("turns", "add", "--role", "user")
STATE = ("state", "set")
POINTER = ("pointers", "set", "wip", "git_ref")
EXPORT = ("resume", "x", "--export", "--holder-pid", str(os.getpid()))
Case = tuple[tuple[str | bytes, ...], bytes, str]

# arguments, standard input, a part of the message
REFUSED: list[Case] = [
    # the agent's id
    ((*TURN, "-a", "..", "hi"), b"", "is not an agent id"),
    ((*TURN, "-a", "-rf", "hi"), b"", "is not an agent id"),
    ((*TURN, "-a", "a/b", "hi"), b"", "is not an agent id"),
    ((*TURN, "-a", "a" * 129, "hi"), b"", "is not an agent id"),
    ((*TURN, "-a", "ü", "hi"), b"", "is not an agent id"),
    ((*TURN, "-a", SURROGATE, "hi"), b"", "is not an agent id"),
    ((*STATE, "-a", "..", "--goal", "g"), b"", "is not an agent id"),
    (("milestone", "m", "-a", ".."), b"", "is not an agent id"),
    (("outputs", "put", "x", "-a", "a\nb"), b"", "is not an agent id"),
    (("resume", "a" * 129), b"", "is not an agent id"),
    (("resume", "--", "-rf"), b"", "is not an agent id"),
    (("resume", "-rf"), b"", "no such option"),
    (("release", "-a", ".."), b"", "is not an agent id"),
    (("lease", "show", ".."), b"", "is not an agent id"),
    (("lease", "break", "-a", "..", "--reason", "r", "--yes"), b"", "is not an agent id"),
    (("actions", "resolve", "-a", "..", "1", "done", "--reason", "r"), b"", "is not an agent id"),
    ((*TURN, "hi"), b"", "name it with -a AGENT"),
    # text
    ((*TURN, "-a", "x", SURROGATE), b"", "is not UTF-8 text"),
    ((*TURN, "-a", "x", "-"), b"a\xff", "standard input is not UTF-8 text"),
    ((*TURN, "-a", "x", "-"), b"a\0b", "has a NUL character at position 1"),
    ((*TURN, "-a", "x", "@missing"), b"", "'missing' cannot be read: No such file"),
    ((*TURN, "-a", "x", "@"), b"", "@ needs a file name"),
    ((*TURN, "-a", "x", "@/"), b"", "Is a directory"),
    ((*TURN, "-a", "x", "--brief", "-", "-"), b"", "standard input was already read"),
    ((*TURN, "-a", "x", "--brief", "-", "hi"), BIG, "brief has 10,000,000 bytes"),
    ((*TURN, "-a", "x", "--name", "a b", "hi"), b"", "name: 'a b' is not a name"),
    ((*TURN, "-a", "x", "--name", SURROGATE, "hi"), b"", "surrogate"),
    ((*TURN, "-a", "x", "--message-id", "m" * 257, "hi"), b"", "message_id has 257 bytes"),
    (("turns", "add", "-a", "x", "--role", "robot", "hi"), b"", "'robot' is not one of"),
    (("turns", "add", "-a", "x", "hi"), b"", "missing option '--role'"),
    # the working state
    ((*STATE, "-a", "x"), b"", "has nothing to set"),
    ((*STATE, "-a", "x", "--notes", "-"), BIG, "notes has 10,000,000 bytes"),
    ((*STATE, "-a", "x", "--plan", "-"), b"a\0", "plan[0] has a NUL"),
    ((*STATE, "-a", "x", "--step", "-1"), b"", "step must be from 0"),
    ((*STATE, "-a", "x", "--step", "9" * 30), b"", "step must be from 0"),
    ((*STATE, "-a", "x", "--step", "nan"), b"", "'nan' is not a valid int"),
    ((*STATE, "-a", "x", "--clear", "version"), b"", "'version' is not one of"),
    ((*STATE, "-a", "x", "--goal", "g", "--clear", "goal"), b"", "goal is given twice"),
    ((*STATE, "-a", "x", "--plan", "a", "--add-plan", "b"), b"", "plan is replaced and added to at once"),
    ((*STATE, "-a", "x", "--json-fields", "-"), b"", "is not JSON"),
    ((*STATE, "-a", "x", "--json-fields", "[1]"), b"", "must be a JSON object"),
    ((*STATE, "-a", "x", "--json-fields", '{"step": NaN}'), b"", "has NaN"),
    ((*STATE, "-a", "x", "--json-fields", '{"step": 1e999}'), b"", "must be a whole number"),
    ((*STATE, "-a", "x", "--json-fields", '{"step": true}'), b"", "must be a whole number"),
    ((*STATE, "-a", "x", "--json-fields", '{"plan": "a"}'), b"", "must be a list of texts"),
    ((*STATE, "-a", "x", "--json-fields", '{"plan": [1]}'), b"", "must be text, not int"),
    ((*STATE, "-a", "x", "--json-fields", '{"version": 1}'), b"", "is not a field of the working state"),
    ((*STATE, "-a", "x", "--json-fields", '{"goal": "\\ud800"}'), b"", "lone surrogate"),
    ((*STATE, "-a", "x", "--json-fields", '{"goal": "\\u0000"}'), b"", "NUL"),
    ((*STATE, "-a", "x", "--json-fields", "-"), b"[" * 100_000, "nested too deeply"),
    ((*STATE, "-a", "x", "--json-fields", "-"), b'{"step": ' + b"9" * 10_000 + b"}", "too many digits"),
    # milestones, pointers, outputs
    (("milestone", "", "-a", "x"), b"", "milestone must not be empty"),
    (("milestone", "-", "-a", "x"), BIG, "milestone has 10,000,000 bytes"),
    ((*POINTER, "-a", "x", "repo=a"), b"", "git_ref needs sha or branch"),
    ((*POINTER, "-a", "x", "branch="), b"", "git_ref needs sha or branch"),
    ((*POINTER, "-a", "x", "branch"), b"", "'branch' is not KEY=VALUE"),
    ((*POINTER, "-a", "x", "branch=a", "branch=b"), b"", "is given twice"),
    ((*POINTER, "-a", "x", b"branch=\xff"), b"", "surrogate"),
    (("pointers", "set", "a b", "git_ref", "branch=m", "-a", "x"), b"", "'a b' is not a name"),
    (("pointers", "set", "wip", "branch", "branch=m", "-a", "x"), b"", "'branch' is not one of"),
    (("pointers", "set", "-a", "x", "--", "-rf", "git_ref", "branch=m"), b"", "'-rf' is not a name"),
    (("pointers", "rm", "..", "-a", "x"), b"", "'..' is not a name"),
    (("outputs", "put", "-a", "x", "--ref", "..", "t"), b"", "ref: '..' is not a name"),
    (("outputs", "put", "-a", "x", "--summary", "-", "t"), BIG, "summary has 10,000,000 bytes"),
    (("outputs", "put", "-a", "x", "-"), b"\0", "content has a NUL"),
    # leases
    *((("resume", "x", "--ttl", ttl), b"", "--ttl") for ttl in ("nan", "inf", "0", "-1", "1e3", "25h", "", "9" * 400)),
    (("resume", "x", "--wait", "-1"), b"", "--wait: '-1' is not a duration"),
    (("resume", "x", "--budget", "1"), b"", "token_budget must be from 512"),
    (("resume", "x", "--holder", ""), b"", "holder must not be empty"),
    (("resume", "x", "--holder", SURROGATE), b"", "holder has a lone surrogate"),
    (("resume", "x", "--holder-pid", "1"), b"", "--holder-pid is for --export"),
    ((*EXPORT, "--ttl", "nan"), b"", "--ttl"),
    ((*EXPORT, "--budget", "0"), b"", "token_budget must be from 512"),
    *(
        (("resume", "x", "--export", "--holder-pid", pid), b"", "--holder-pid")
        for pid in ("0", "-1", "99999999", str(2**31), "9" * 30)
    ),
    (("acquire", "-a", "x"), b"", "--holder-pid $$"),
    (("acquire", "-a", "x", "--holder-pid", "self"), b"", "'self' is not a valid int"),
    # actions
    (("actions", "begin", "-a", "x", "--tool", "t"), b"", "missing option '--class'"),
    (("actions", "begin", "-a", "x", "--tool", "t", "--class", "safe"), b"", "'safe' is not one of"),
    (("actions", "begin", "-a", "x", "--tool", "", "--class", "pure"), b"", "tool must not be empty"),
    (("actions", "begin", "-a", "x", "--tool", "t", "--class", "pure", "--args", "{"), b"", "--args is not JSON"),
    (("actions", "begin", "-a", "x", "--tool", "t", "--class", "pure", "--args", "[NaN]"), b"", "--args has NaN"),
    (("actions", "begin", "-a", "x", "--tool", "t", "--class", "pure", "--args", "[1e999]"), b"", "infinity"),
    (("actions", "end", "-a", "x", "0", "done"), b"", "is not in the range"),
    (("actions", "end", "-a", "x", "1", "started"), b"", "'started' is not one of"),
    (("actions", "end", "-a", "x", "1", "done", "--result", "-"), b"\0", "--result has a NUL"),
    (("actions", "end", "-a", "x", "1", "failed", "--error", "-"), BIG, "--error has 10,000,000 bytes"),
    (("actions", "resolve", "-a", "x", "1", "unknown", "--reason", "r"), b"", "must be done, failed or abandoned"),
    (("actions", "resolve", "-a", "x", "one", "done", "--reason", "r"), b"", "'one' is not an action's number"),
    (("actions", "resolve", "-a", "x", "\u0663", "done", "--reason", "r"), b"", "is not an action's number"),
    (("actions", "resolve", "-a", "x", "9" * 20, "done", "--reason", "r"), b"", "is not an action's number"),
    (("actions", "resolve", "-a", "x", "1", "done"), b"", "--reason is needed"),
    (("actions", "resolve", "-a", "x", "1", "done", "--reason", ""), b"", "--reason must not be empty"),
    (("actions", "resolve", "1", "done", "--reason", "r"), b"", "--agent is needed"),
    (("actions", "resolve", "-a", "x", "done", "--reason", "r"), b"", "SEQ is missing"),
    (("actions", "resolve", "-a", "x", "1", "done", "--all-pending", "--reason", "r"), b"", "cannot be combined"),
    (("actions", "resolve", "-a", "x", "1", "done", "--tool", "t", "--reason", "r"), b"", "cannot be combined"),
    (("actions", "resolve", "-a", "x", "done", "--tool", "t", "--reason", "r"), b"", "--all-pending is needed"),
    (("actions", "resolve", "-a", "x", "--all-pending", "done", "--older-than", "x"), b"", "is not a duration"),
    (("actions", "resolve", "-a", "x", "1", "done", "--reason", "r", "--by", ""), b"", "--by must not be empty"),
    (("actions", "amend", "-a", "x", "1", "--note", ""), b"", "--note must not be empty"),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Ended, Path]]:
    """What each line of the table did, and the directory that was its own."""
    base = tmp_path_factory.mktemp("refused")
    home = {"PATH": os.defpath, "HOME": str(base), "LANG": "C.UTF-8", "PYTHONWARNINGS": "error"}
    directories = [base / str(number) for number in range(len(REFUSED))]
    cases = [(each[0], each[1], directory) for each, directory in zip(REFUSED, directories, strict=True)]
    return list(zip(run_all(cases, home), directories, strict=True))


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_bad_value_is_refused_before_anything_is_written(refused: list[tuple[Ended, Path]], number: int) -> None:
    """Exit 2, one line and at most a hint, and not even a store is made."""
    (done, directory), said = refused[number], REFUSED[number][2]
    assert (done.code, done.out) in ((2, ""), (2, "(exit 2)\n")), done.err
    assert said in done.err
    lines = done.err.splitlines()
    assert lines[0].startswith("recall: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("  → "))
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ("lease", "show", "x"),
        ("lease", "break", "-a", "x", "--reason", "r", "--yes"),
        ("actions", "resolve", "-a", "x", "1", "done", "--reason", "r"),
        ("actions", "resolve", "--all-pending", "done", "--reason", "r", "--yes"),
        ("actions", "amend", "-a", "x", "1", "--note", "n"),
    ],
)
def test_an_operator_never_makes_a_store_or_an_agent(run_recall: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Where there is no store, or no such agent, an operator's command is exit 3 and makes neither."""
    missing = run_recall(*command)
    assert (missing.code, missing.out, "no store in" in missing.err) == (3, "", True)
    assert not (tmp_path / "recall-data").exists()
    run_recall("turns", "add", "-a", "y", "--role", "user", "hi")
    if "--all-pending" not in command:
        nobody = run_recall(*command)
        assert (nobody.code, nobody.out) == (3, "")
    assert lsn(tmp_path) == 0


def test_a_session_survives_its_own_mistakes(run_recall: Run, tmp_path: Path) -> None:
    """Refused writes of a session leave its log and its lease as they were."""
    env = session(run_recall)
    before = lsn(tmp_path)
    for arguments in (
        ("actions", "begin", "--tool", "t", "--class", "external", "--args", '{"a": NaN}'),
        ("actions", "begin", "--tool", "t", "--class", "external", "--step", "a b"),
        ("actions", "end", "7", "done"),
        ("pointers", "rm", "nothing"),
        (*TURN, "-"),
    ):
        assert run_recall(*arguments, env=env, input=b"\0").code in (2, 3)
    assert lsn(tmp_path) == before
    assert run_recall(*TURN, "fine", env=env).code == 0


@pytest.mark.parametrize(
    "value", ["[bold]\x1b[2J\u202e", "## Working state", "", "--goal", "\U0001f469\u200d\U0001f680" * 50]
)
def test_any_other_text_is_kept_as_it_is(run_recall: Run, tmp_path: Path, value: str) -> None:
    """Markup, terminal sequences, headings, nothing at all and long emoji are data, and shown harmlessly."""
    done = run_recall("milestone", f"m{value}", "-a", "x", "--progress", value)
    assert done.code == 0, done.err
    assert "\x1b" not in done.err
    env = session(run_recall)
    assert run_recall("actions", "begin", "--tool", "t", "--class", "pure", "--args", f"t{value}", env=env).code == 0
    shown = run_recall("actions", "resolve", "-a", "x", "--all-pending", "done", "--reason", f"r{value}", "--dry-run")
    assert "\x1b" not in shown.out + shown.err
