"""What the frame gives every command: values, the store's directory, forms of output, questions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recall_cli.options import Globals
from recall_cli.values import age, duration
from store.errors import InvalidInput
from tests.conftest import ROOT, Run

SAMPLE = (sys.executable, ROOT / "tests/cli/sample.py", "sample")
SHOWN = r"a\x1b[31m\t[bold]b[/bold]\u202e\nc\ud800"


# -- flags and values -----------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--json", "--jsonl", "--dir", "--help", "--", "-rf"])
def test_a_flag_after_an_option_that_takes_a_value_is_its_value(run_recall: Run, flag: str) -> None:
    """--goal --json stores the text --json; no word of the line is moved or taken away."""
    ended = run_recall("set", "-a", "x", "--goal", flag, program=SAMPLE)
    assert (ended.code, ended.out.splitlines()[1]) == (0, f"goal: {flag}")


@pytest.mark.parametrize("at", range(5))
def test_global_flags_work_at_every_place(run_recall: Run, at: int) -> None:
    """--dir and --json are taken between any two words that belong together."""
    parts: list[list[str]] = [["set"], ["--agent", "x"], ["--goal", "g"], ["--plan", "p"]]
    parts.insert(at, ["--dir", "/d", "--json"])
    ended = run_recall(*(word for part in parts for word in part), program=SAMPLE)
    assert json.loads(ended.out) == {"agent": "x", "goal": "g", "plan": "p", "directory": "/d"}
    assert ended.err == ""


def test_the_agent_comes_from_the_environment_unless_named(run_recall: Run) -> None:
    """RECALL_AGENT stands in for --agent, and --agent beats it."""
    env = {"RECALL_AGENT": "from-env"}
    assert json.loads(run_recall("set", "--json", program=SAMPLE, env=env).out)["agent"] == "from-env"
    assert json.loads(run_recall("set", "--json", "-a", "b", program=SAMPLE, env=env).out)["agent"] == "b"
    assert run_recall("set", program=SAMPLE).err == (
        "recall: the agent is not named\n  → name it with -a AGENT, or set RECALL_AGENT\n"
    )


def test_a_noun_alone_is_its_default_verb(run_recall: Run) -> None:
    """A noun with a default verb runs it, with global flags too."""
    assert run_recall(program=SAMPLE).out == run_recall("list", program=SAMPLE).out
    assert len(run_recall("--jsonl", program=SAMPLE).out.splitlines()) == 2


def test_an_unknown_verb_is_refused_with_near_names(run_recall: Run) -> None:
    """A misspelt verb names the noun's own."""
    ended = run_recall("lost", program=SAMPLE)
    assert (ended.code, ended.err) == (
        2,
        "recall: no such command: 'lost'\n  → did you mean: recall sample list\n",
    )


def test_long_values_come_from_stdin_and_files_byte_for_byte(run_recall: Run, tmp_path: Path) -> None:
    """- is standard input and @FILE a file, with nothing stripped; @@ is a literal at-sign."""
    (tmp_path / "plan").write_bytes("ü\r\n".encode())
    ended = run_recall("set", "-a", "x", "--goal", "-", "--plan", "@plan", "--json", program=SAMPLE, input="a\n\n")
    assert (json.loads(ended.out)["goal"], json.loads(ended.out)["plan"]) == ("a\n\n", "ü\r\n")
    ended = run_recall("set", "-a", "x", "--goal", "@@here", "--json", program=SAMPLE)
    assert json.loads(ended.out)["goal"] == "@here"


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("@missing", "recall: goal: 'missing' cannot be read: No such file or directory"),
        ("@", "recall: goal: @ needs a file name"),
        ("@.", "recall: goal: '.' cannot be read: Is a directory"),
        ("-", "recall: goal: standard input is not UTF-8 text (byte 1)"),
        (b"a\xff", "recall: goal is not UTF-8 text (character 1)"),
        ("@/dev/zero", "recall: goal: '/dev/zero' has more than 67,108,864 bytes"),
    ],
)
def test_values_that_cannot_be_read_are_refused_in_one_line(run_recall: Run, goal: str | bytes, message: str) -> None:
    """A value that is no readable UTF-8 text ends with 2 and one line that names the field."""
    ended = run_recall("set", "-a", "x", "--goal", goal, program=SAMPLE, input=b"a\xff")
    assert (ended.code, ended.out, ended.err.splitlines()[0]) == (2, "", message)


def test_stdin_is_given_to_one_value_only(run_recall: Run) -> None:
    """A second - is refused, since it would silently be empty."""
    ended = run_recall("set", "-a", "x", "--goal", "-", "--plan", "-", program=SAMPLE, input="a")
    assert (ended.code, ended.err) == (2, "recall: plan: standard input was already read for goal\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("15m", 900),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds or numbers with units."""
    assert duration("ttl", text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1x", "m", "nan", "inf", "1e9", "99999999d", "\uff11h", "1h\n-"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Signs, exponents, other digits and unknown units are no durations."""
    with pytest.raises(InvalidInput):
        duration("ttl", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (185, "3m"),
        (7500, "2h 5m"),
        (7200, "2h"),
        (90000, "1d 1h"),
        (2592000, "30d"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    """An age has at most two parts and never a sign."""
    assert age(seconds) == text


# -- the store's directory ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "variables", "directory"),
    [
        ({"dir": "/flag"}, {"RECALL_DIR": "/env"}, "/flag"),
        ({"backend": "sqlite:/flag"}, {"RECALL_DIR": "/env"}, "/flag"),
        ({"backend": "sqlite:///flag"}, {}, "/flag"),
        ({"backend": "local:rel"}, {}, "rel"),
        ({}, {"RECALL_DIR": "/env", "RECALL_BACKEND": "s3", "RECALL_BACKEND_URL": "/url"}, "/env"),
        ({}, {"RECALL_BACKEND": "local", "RECALL_BACKEND_URL": "/url"}, "/url"),
        ({}, {"RECALL_DIR": "", "RECALL_BACKEND": "sqlite", "RECALL_BACKEND_URL": "sqlite:/url"}, "/url"),
    ],
)
def test_the_directory_is_the_first_that_is_named(
    flags: dict[str, str], variables: dict[str, str], directory: str
) -> None:
    """A flag beats RECALL_DIR, which beats RECALL_BACKEND_URL."""
    here = Globals(variables)
    vars(here).update(flags)
    assert here.directory == Path(directory)


def test_without_a_name_the_directory_is_that_of_the_user(run_recall: Run, environment: dict[str, str]) -> None:
    """Nothing named means the user's data directory."""
    ended = run_recall("set", "-a", "x", "--json", program=SAMPLE, env={"RECALL_DIR": None})
    assert Path(json.loads(ended.out)["directory"]).is_relative_to(environment["HOME"])


@pytest.mark.parametrize(
    ("flags", "variables", "message"),
    [
        ({"backend": "postgresql://u:secret@h/db"}, {}, "--backend: backend 'postgresql' is not supported"),
        ({"backend": "sqlite:"}, {}, "--backend must not be empty"),
        ({}, {"RECALL_BACKEND": "s3", "RECALL_BACKEND_URL": "/d"}, "RECALL_BACKEND: backend 's3' is not supported"),
        (
            {},
            {"RECALL_BACKEND": "local", "RECALL_BACKEND_URL": "s3://b"},
            "RECALL_BACKEND_URL: backend 's3' is not supported",
        ),
    ],
)
def test_other_backends_are_refused_without_their_secrets(
    flags: dict[str, str], variables: dict[str, str], message: str
) -> None:
    """A backend of another kind is named by its scheme only, since a URL may hold a password."""
    here = Globals(variables)
    vars(here).update(flags)
    with pytest.raises(InvalidInput) as refused:
        _ = here.directory
    assert refused.value.message.startswith(message)
    assert "secret" not in refused.value.message


# -- output ---------------------------------------------------------------------------------


def test_a_pipe_gets_whole_plain_lines_with_active_text_shown(run_recall: Run) -> None:
    """In a pipe a row is one tab-separated line, and stored text can neither add lines nor act."""
    assert run_recall("list", program=SAMPLE).out == f"1\t{SHOWN} 1\tdone\n2\t{SHOWN} 2\tfailed\n"
    assert run_recall("lines", "1", program=SAMPLE).out == f"1 {SHOWN} 1\n"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_json_and_jsonl_carry_whole_rows_unchanged(run_recall: Run, count: int) -> None:
    """Programs get all fields, the very same text, and no raw active character."""
    from tests.cli.sample import HOSTILE

    for verb in (["list", "--count"], ["lines"]):
        one = run_recall(*verb, str(count), "--json", program=SAMPLE)
        many = run_recall(*verb, str(count), "--jsonl", program=SAMPLE)
        rows = json.loads(one.out)
        assert rows == [json.loads(line) for line in many.out.split("\n")[:-1]]
        assert [row["text"] for row in rows] == [f"{HOSTILE} {seq}" for seq in range(1, count + 1)]
        assert not re.search("[\x1b\u202e\ud800]", one.out + many.out)
        assert one.err == ""


def test_an_empty_list_is_said_on_stderr(run_recall: Run) -> None:
    """Nothing to list is empty data and a note for the person."""
    ended = run_recall("list", "--count", "0", program=SAMPLE)
    assert (ended.code, ended.out, ended.err) == (0, "", "no rows yet\n")


def test_a_terminal_shows_markup_as_text_and_one_line_a_row(run_on_terminal: Run) -> None:
    """On a terminal square brackets are text, and every row beyond the first page keeps the widths."""
    ended = run_on_terminal("list", "--count", "450", program=SAMPLE, columns=70)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.out).splitlines()
    assert plain[0].split() == ["SEQ", "TEXT", "STATUS"]
    assert len(plain) == 451
    assert r"[bold]b[/bold]\u202e" in plain[1]
    assert {line.index("done") for line in plain[1:] if "done" in line} == {plain[0].index("STATUS")}
    assert "\x1b[32mdone" in ended.out


@pytest.mark.parametrize("columns", [1, 10, 20])
def test_a_narrow_terminal_breaks_nothing(run_on_terminal: Run, columns: int) -> None:
    """Even on a terminal that is too narrow a table is shown without a failure."""
    assert run_on_terminal("list", program=SAMPLE, columns=columns).code == 0


def test_a_long_list_needs_no_more_memory_than_a_short_one(environment: dict[str, str]) -> None:
    """Rows are streamed: 200,000 of them raise the peak by less than 8 MiB."""

    def peak(count: int) -> int:
        wrapper = (
            "import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        words = [sys.executable, "-c", wrapper, *map(str, SAMPLE), "list", "--count", str(count)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)

    assert peak(200_000) - peak(10) < 8 * 1024 * 1024


def test_a_live_line_arrives_before_the_command_ends(environment: dict[str, str]) -> None:
    """A follower's lines are not held back by a buffer."""
    process = subprocess.Popen([*SAMPLE, "fail", "wait"], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"waiting\n"
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_messages_are_for_people_only(run_recall: Run) -> None:
    """What changed and the next command go to stderr, and are left out under --json."""
    assert run_recall("set", "-a", "x", program=SAMPLE).err == "set ''\n  → recall sample list\n"
    assert run_recall("set", "-a", "x", "--jsonl", program=SAMPLE).err == ""


@pytest.mark.parametrize(
    ("how", "code", "lines"),
    [
        (
            "held",
            4,
            [
                r"recall: agent a: lease is held by h\x1b[1m\nx (epoch 3) until 12:00",
                "  → let it finish; who it is, and whether it lives: recall lease show a",
            ],
        ),
        ("full", 7, ["recall: no space left on the disk of /s; nothing was written", "  → free some space"]),
        ("system", 7, [r"recall: /some\nfile: Permission denied", "  → RECALL_DEBUG=1"]),
        ("answer", 3, []),
    ],
)
def test_refusals_are_one_line_and_a_hint(run_recall: Run, how: str, code: int, lines: list[str]) -> None:
    """Every refusal ends with the code of its kind and shows its message and hint on one line each."""
    ended = run_recall("fail", how, program=SAMPLE)
    assert (ended.code, ended.out) == (code, "")
    assert len(ended.err.splitlines()) == len(lines)
    for shown, expected in zip(ended.err.splitlines(), lines, strict=True):
        assert shown.startswith(expected)


def test_warnings_do_not_change_the_exit_code(run_recall: Run) -> None:
    """A warning is said on stderr, as an object of its own for programs."""
    ended = run_recall("fail", "warn", program=SAMPLE)
    assert (ended.code, ended.err.splitlines()[0][:25]) == (0, "recall: warning: no space")
    assert json.loads(run_recall("fail", "warn", "--json", program=SAMPLE).err)["warning"] == "store_full"


# -- questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "outcome"), [("y\n", "went on"), ("YES\n", "went on"), ("\n", "stopped"), ("\x04", "stopped")]
)
def test_a_terminal_is_asked(run_on_terminal: Run, keys: str, outcome: str) -> None:
    """A person is asked, and anything but yes, also the end of input, means no."""
    ended = run_on_terminal("confirm", program=SAMPLE, dialogue=[("go on? [y/N] ", keys)])
    assert ended.out.endswith(f"{outcome}\n")


def test_ctrl_c_at_a_question_ends_with_130(run_on_terminal: Run) -> None:
    """An interrupted question did nothing and says so."""
    ended = run_on_terminal("confirm", program=SAMPLE, dialogue=[("go on? [y/N] ", "\x03")], env={"NO_COLOR": "1"})
    assert (ended.code, ended.out.splitlines()[-1]) == (130, "recall: interrupted")


def test_without_a_terminal_nothing_is_asked(run_recall: Run) -> None:
    """A script is never left waiting for an answer: it needs --yes."""
    ended = run_recall("confirm", program=SAMPLE, input="y\n")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("recall: --yes is needed, since there is no terminal to ask on")
    assert run_recall("confirm", "--yes", program=SAMPLE).out == "went on\n"
