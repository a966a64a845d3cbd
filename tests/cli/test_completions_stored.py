"""Completions of what the store has, in real bash, zsh and fish on terminals of their own."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from recall_cli import candidates
from recall_cli.completions import SHELLS, script
from recall_cli.shellwords import quoted, split
from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.keeper import Keeper
from store.records import ACTION, NEXT, OUTPUT, STEP, Draft
from store.values import Action
from tests.cli.look_stores import grow
from tests.conftest import COMMAND, Run
from tests.needs import need

# Names that a shell would act on, were they inserted as they are. All of them pass check_name.
ODD_STEP = "s$(touch${IFS}owned)`id`;x|y&z!1"
ODD_REF = "r'single\"double\\back"
ODD_TOOL = "t 'quoted' \"$HOME\" !! *"
ODD_POINTER = "p:with=signs~and#more"


def fill(directory: Path) -> None:
    """Agents billing-migrator and x; x has odd names of every kind, and actions 1 (done), 2, 3 (pending) to 13."""
    with Client(local_dir=directory) as client:
        client.resume("billing-migrator").release()
        with client.resume("x") as it:
            done = it.begin_action(ODD_TOOL, "external", {}, step=ODD_STEP)
            it.end_action(done.seq, "done")
            it.begin_action("mail", "external")
            it.begin_action("mail", "external")
            for _ in range(10):
                it.end_action(it.begin_action("lint", "pure").seq, "done")
            it.store_output("text", ref=ODD_REF, summary="a: b\tc\n$(id)")
            it.set_pointer(ODD_POINTER, "object", {"uri": "s3://b/k"})
            it.set_pointer("plain", "object", {"uri": "s3://b/k"})
            it.set_pointer("gone", "object", {"uri": "s3://b/k"})
            it.remove_pointer("gone")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A store with odd names, elsewhere than where RECALL_DIR points."""
    directory = tmp_path / "other store"
    fill(directory)
    return directory


# What is typed after `recall `, with \t for the key, and the words that the command then gets.
# DIR stands for the directory, quoted.
TYPED: list[tuple[str, list[str]]] = [
    ("--dir DIR briefing bil\t", ["--dir", "DIR", "briefing", "billing-migrator"]),
    ("briefing --json --dir DIR bil\t", ["briefing", "--json", "--dir", "DIR", "billing-migrator"]),
    ("--dir DIR release -a bil\t", ["--dir", "DIR", "release", "-a", "billing-migrator"]),
    ("--dir DIR outputs get -a x r\t", ["--dir", "DIR", "outputs", "get", "-a", "x", ODD_REF]),
    ("--dir DIR outputs get -a x -- r\t", ["--dir", "DIR", "outputs", "get", "-a", "x", "--", ODD_REF]),
    ("--dir DIR run -a x --step s\t-- ls", ["--dir", "DIR", "run", "-a", "x", "--step", ODD_STEP, "--", "ls"]),
    ("--dir DIR actions list x --tool t\t", ["--dir", "DIR", "actions", "list", "x", "--tool", ODD_TOOL]),
    ("--dir DIR pointers rm -a x p:\t", ["--dir", "DIR", "pointers", "rm", "-a", "x", ODD_POINTER]),
    ("--dir DIR pointers rm -a x pl\t", ["--dir", "DIR", "pointers", "rm", "-a", "x", "plain"]),
    ("--dir DIR pointers set plain ob\t", ["--dir", "DIR", "pointers", "set", "plain", "object"]),
    ("--dir DIR actions end -a x 2\tfai\t", ["--dir", "DIR", "actions", "end", "-a", "x", "2", "failed"]),
    (
        "--dir DIR actions resolve -a x 2 3\tab\t",
        ["--dir", "DIR", "actions", "resolve", "-a", "x", "2", "3", "abandoned"],
    ),
    ("--dir DIR actions show -a x 13\t", ["--dir", "DIR", "actions", "show", "-a", "x", "13"]),
    ("--dir DIR log x --kind out\t", ["--dir", "DIR", "log", "x", "--kind", "output"]),
    ("--dir DIR verify x bil\t", ["--dir", "DIR", "verify", "x", "billing-migrator"]),
]
# Inside quotes that are still open.
QUOTED: list[tuple[str, list[str]]] = [
    ("--dir DIR outputs get -a x 'r\t", ["--dir", "DIR", "outputs", "get", "-a", "x", ODD_REF]),
    ('--dir DIR actions list x --tool "t \t', ["--dir", "DIR", "actions", "list", "x", "--tool", ODD_TOOL]),
    ("--dir DIR run -a x --step 's\t-- ls", ["--dir", "DIR", "run", "-a", "x", "--step", ODD_STEP, "--", "ls"]),
    ('--dir DIR run -a x --step "s\t-- ls', ["--dir", "DIR", "run", "-a", "x", "--step", ODD_STEP, "--", "ls"]),
]


def _startup(shell: str, home: Path) -> tuple[Sequence[str], dict[str, str | None]]:
    """How to start it with the completions loaded; recall prints the words that it gets.

    The prompt counts its calls, since a shell that repaints shows a prompt twice, and keys typed early may be lost.
    """
    if shell == "bash":
        (home / "rc").write_text(
            script("bash")
            + "bind 'set bell-style none'\nbind 'set enable-bracketed-paste off'\n"
            + "N=0\nrecall() { (( N++ )); printf '\\nRAN'; printf '<%s>' \"$@\"; printf '\\n'; }\nPS1='READY$N.'\n"
        )
        return ("--noprofile", "--rcfile", str(home / "rc"), "-i"), {"HISTFILE": None}
    if shell == "zsh":
        (home / "_recall").write_text(script("zsh"))
        (home / ".zshrc").write_text(
            f"fpath=({home} $fpath)\nautoload -U compinit; compinit -u -D\nunsetopt zle_bracketed_paste beep\n"
            "N=0\nrecall() { (( N++ )); printf '\\nRAN'; printf '<%s>' \"$@\"; printf '\\n'; }\n"
            "setopt promptsubst\nPS1='READY$N.'\n"
        )
        return ("-i",), {"ZDOTDIR": str(home)}
    (home / "init.fish").write_text(
        script("fish")
        + "set -g N 0\n"
        + "function recall; set -g N (math $N + 1); printf '\\nRAN'; printf '<%s>' $argv; printf '\\n'; end\n"
        + "function fish_prompt; printf READY$N.; end\nset -g fish_greeting\nset -g fish_autosuggestion_enabled 0\n"
    )
    return ("--no-config", "-i", "-C", f"source {home}/init.fish"), {}


def _complete(
    shell: str,
    run_on_terminal: Run,
    tmp_path: Path,
    typed: Sequence[str],
    env: dict[str, str | None],
    tools: Path = Path("/nowhere"),
) -> list[list[str]]:
    """The words that the command got for each line that was typed."""
    home = tmp_path / "shell"
    home.mkdir()
    words, more = _startup(shell, home)
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}{os.pathsep}{tools}"
    lines = [*(f"recall {line}" for line in typed), "exit"]
    ended = run_on_terminal(
        *words,
        program=(need(shell),),
        dialogue=[(f"READY{at}.", line + "\n") for at, line in enumerate(lines)],
        columns=400,
        env={"PATH": path, "TERM": "dumb", **more, **env},
        timeout=150,
    )
    return [re.findall(r"<(.*?)>(?=<|$)", ran) for ran in re.findall(r"\nRAN(.*)", ended.out)]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_the_store_has_is_inserted_so_that_the_command_gets_it(
    shell: str, run_on_terminal: Run, tmp_path: Path, stored: Path
) -> None:
    """Agents, refs, steps, tools, pointers, kinds and numbers arrive as they are, and nothing in them is run."""
    cases = TYPED + QUOTED
    typed = [line.replace("DIR", f"'{stored}'") for line, _ in cases]
    got = _complete(shell, run_on_terminal, tmp_path, typed, {})
    assert got == [[str(stored) if word == "DIR" else word for word in words] for _, words in cases]
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_store_and_the_agent_come_from_the_environment_too(
    shell: str, run_on_terminal: Run, tmp_path: Path, stored: Path
) -> None:
    """RECALL_DIR and RECALL_AGENT count, a variable in the line is read, and a substitution in it is never run."""
    typed = [
        "outputs get r\t",
        "pointers rm pl\t",
        "--dir $ELSEWHERE briefing ot\t",
        '--dir "$ELSEWHERE" agents show ot\t',
        "--dir ~/third agents show th\t",
        "--dir $(touch owned) briefing bil\t\x15recall cleared",
        "run -- ls-unlikely-na\t",
        "exec x -- ls-unlikely-na\t",
    ]
    with Client(local_dir=tmp_path / "elsewhere") as client:
        client.resume("other").release()
    with Client(local_dir=tmp_path / "home" / "third") as client:
        client.resume("third").release()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ls-unlikely-name").write_text("")
    (tools / "ls-unlikely-name").chmod(0o755)
    env: dict[str, str | None] = {"RECALL_DIR": str(stored), "RECALL_AGENT": "x", "ELSEWHERE": f"{tmp_path}/elsewhere"}
    got = _complete(shell, run_on_terminal, tmp_path, typed, env, tools=tools)
    assert [words[-1] for words in got[:5]] == [ODD_REF, "plain", "other", "other", "third"]
    assert (got[5], (tmp_path / "owned").exists()) == (["cleared"], False)
    assert got[6:] == [["run", "--", "ls-unlikely-name"], ["exec", "x", "--", "ls-unlikely-name"]]


def _ask(run: Run, *words: str, **settings: object) -> list[str]:
    """What recall __complete prints, which never fails and never complains."""
    done = run("__complete", *words, **settings)
    assert (done.code, done.err) == (0, "")
    return str(done.out).splitlines()


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("agent", "recall briefing ", ["billing-migrator\t", "x\t"]),
        ("agent", "recall release --agent=b", ["billing-migrator\t"]),
        ("agent", "recall briefing y", []),
        ("pending", "recall actions end -a x ", ["2\tmail (external, started)", "3\tmail (external, started)"]),
        ("pending", "recall actions end -ax 3", ["3\tmail (external, started)"]),
        ("pending", "recall actions end -a x 1", []),
        ("action", "recall actions show --agent=x 13", ["13\tlint (pure, done)"]),
        ("action", "recall actions show -a x 0", []),
        ("action", "recall actions show -a nobody ", []),
        ("action", "recall actions show ", []),
        ("step", "recall run -a x --run tonight --step ", []),
        ("pointer", "recall pointers rm -a x ", [f"{ODD_POINTER}\tobject", "plain\tobject"]),
        ("ref", "recall outputs get -a x ", [f"{ODD_REF}\ta: b\\tc\\n$(id)"]),
        ("kind", "recall log x --kind a", ["action\t"]),
        ("kind", "recall log $(x) --kind a", []),
    ],
)
def test_candidates_are_those_of_the_line(
    run_recall: Run, tmp_path: Path, kind: str, line: str, expected: list[str]
) -> None:
    """What begins as the word being typed does, of the agent that the line names."""
    fill(tmp_path / "recall-data")
    if kind == "action" and line.endswith("13"):
        assert [each.partition("\t")[0] for each in _ask(run_recall, "fish", "action", line[:-1])] == [
            *("1", "13", "12", "11", "10")
        ]
    assert _ask(run_recall, "fish", kind, line) == expected


def test_steps_are_those_of_the_run(run_recall: Run, tmp_path: Path) -> None:
    """--run, else RECALL_RUN, chooses among the steps of one name or another."""
    with Client(local_dir=tmp_path / "recall-data") as client, client.resume("x") as it:
        for run, step in ((None, "alone"), ("tonight", "backup"), ("tonight", "mail"), ("last", "backup")):
            it.begin_action("sh", "pure", step=step, run=run)
    assert _ask(run_recall, "fish", "step", "recall run -a x --step ") == ["alone\t"]
    assert _ask(run_recall, "fish", "step", "recall run -a x --run tonight --step ") == ["backup\t", "mail\t"]
    assert _ask(run_recall, "fish", "step", "recall run -a x --step m", env={"RECALL_RUN": "tonight"}) == ["mail\t"]


def test_what_a_person_cannot_type_is_not_offered(run_recall: Run, tmp_path: Path) -> None:
    """Names that came in by other ways, with line breaks, controls or an option's dash, stay out."""
    backend = SqliteBackend(tmp_path / "recall-data")
    keeper = Keeper(backend, "x", ttl_ms=60_000, holder="test", background=False)
    keeper.acquire()
    names = ["two\nlines", "tab\there", "esc\x1b[31m", "--force", "-a", ".hidden", "\u202eright", "fine", "ünïcode"]
    backend.append(keeper.fence, [Draft(OUTPUT, {"tool": "t"}, name=name) for name in names])
    backend.append(keeper.fence, [Draft(STEP, {"action": 1}, name="/" + name) for name in names])
    keeper.release()
    backend.close()
    for kind, command in (("ref", "outputs get -a x "), ("step", "run -a x --step ")):
        for shell, end in (("bash", ""), ("zsh", ""), ("fish", "\t")):
            assert _ask(run_recall, shell, kind, f"recall {command}") == [f"fine{end}", f"ünïcode{end}"]


@pytest.mark.parametrize("words", [(), ("bash",), ("bash", "nothing", "recall x "), ("tcsh", "agent", ""), ("a",) * 9])
def test_a_wrong_call_offers_nothing(run_recall: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    """A script of another version gets no candidates, and no complaint that would land in a person's line."""
    fill(tmp_path / "recall-data")
    assert _ask(run_recall, *words) in ([], ["billing-migrator", "x"])


def test_without_a_store_nothing_is_offered_or_made(run_recall: Run, tmp_path: Path) -> None:
    """A missing directory stays missing."""
    assert _ask(run_recall, "bash", "agent", "recall briefing ") == []
    assert _ask(run_recall, "bash", "agent", "recall --backend s3://b briefing ") == []
    assert not (tmp_path / "recall-data").exists()


def test_a_damaged_store_offers_nothing(run_recall: Run, tmp_path: Path) -> None:
    """Neither a file that is no database nor one with a hole in it is complained about."""
    fill(tmp_path / "recall-data")
    database = tmp_path / "recall-data" / "recall.db"
    whole = database.read_bytes()
    for damage in (b"not a database" * 1000, whole[:4096] + b"\xff" * (len(whole) - 4096), b""):
        database.write_bytes(damage)
        assert _ask(run_recall, "zsh", "agent", "recall briefing ") == []


def test_a_busy_store_offers_nothing_soon(run_recall: Run, tmp_path: Path) -> None:
    """A database that somebody has locked whole is waited for 2 seconds, not for ever."""
    fill(tmp_path / "recall-data")
    other = sqlite3.connect(tmp_path / "recall-data" / "recall.db", isolation_level=None)
    try:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        assert _ask(run_recall, "bash", "agent", "recall briefing ") == []
        assert time.monotonic() - began < 4.5
    finally:
        other.close()


def test_candidates_are_bounded(run_recall: Run, tmp_path: Path) -> None:
    """At most 200 are offered, whatever there is, and a longer word finds the rest."""
    backend = SqliteBackend(tmp_path / "recall-data")
    keeper = Keeper(backend, "x", ttl_ms=60_000, holder="test", background=False)
    keeper.acquire()
    body = Action(0, "tool", "pure", "0" * 32, "started", started_at="2026-01-01T00:00:00Z").body()
    backend.append(keeper.fence, [Draft(ACTION, body, seq=NEXT)] * 1500)
    backend.append(keeper.fence, [Draft(OUTPUT, {"tool": "t"}, name=f"r{at:04}") for at in range(1500)])
    keeper.release()
    backend.close()
    for kind in ("ref", "action", "pending"):
        assert len(_ask(run_recall, "bash", kind, "recall get -a x ")) == 200
    assert len(_ask(run_recall, "bash", "action", "recall get -a x 14")) == 1 + 10 + 100 - 0
    assert _ask(run_recall, "bash", "pending", "recall get -a x 1499") == ["1499"]
    assert _ask(run_recall, "bash", "ref", "recall get -a x r149") == [f"r149{at}" for at in range(10)]


_MEASURED = """
import atexit, sys
def tell():
    with open("/proc/self/io") as file:
        read = next(line.split()[1] for line in file if line.startswith("rchar"))
    print(read, *sys.modules, file=sys.stderr)
atexit.register(tell)
from recall_cli.app import main
sys.exit(main())
"""


def _measure(environment: dict[str, str], *words: str) -> tuple[int, set[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, "__complete", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    read, *modules = done.stderr.split()
    return int(read), set(modules), done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads are counted in /proc/self/io")
def test_a_key_press_is_cheap(environment: dict[str, str], tmp_path: Path) -> None:
    """It imports neither the parser nor rich nor what writes or briefs, and reads no history."""
    directory = Path(environment["RECALL_DIR"])
    grow(directory, "many", 0, 40_000)
    grow(directory, "few", 0, 200)
    read = {}
    for agent in ("few", "many"):
        read[agent], modules, out = _measure(environment, "bash", "action", f"recall actions show -a {agent} 1")
        assert len(out.split()) > 100
    assert read["many"] - read["few"] < 400_000
    heavy = {"rich", "typer", "pydantic", "asyncio", "logging", "platformdirs", "sqlite_utils", "boto3", "subprocess"}
    engine = {"store.briefing", "store.agent", "store.client", "store.keeper", "store.acting", "store.verify"}
    assert modules & (heavy | engine) == set()
    assert not [name for name in modules if name.startswith(("recall_cli.commands", "recall_cli.options"))]


def test_looking_for_candidates_touches_nothing(run_recall: Run, tmp_path: Path) -> None:
    """The store's files are the same afterwards, in a directory that cannot be written too."""
    fill(tmp_path / "recall-data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "recall-data").rglob("*") if path.is_file()}
    (tmp_path / "recall-data").chmod(0o500)
    try:
        assert len(_ask(run_recall, "bash", "agent", "recall briefing ")) == 2
    finally:
        (tmp_path / "recall-data").chmod(0o700)
    after = {path.name: path.read_bytes() for path in (tmp_path / "recall-data").rglob("*") if path.is_file()}
    assert {name: data for name, data in after.items() if not name.endswith(("-wal", "-shm"))} == {
        name: data for name, data in before.items() if not name.endswith(("-wal", "-shm"))
    }


def test_the_hidden_command_is_in_no_help(run_recall: Run) -> None:
    """It is the scripts' own: neither help nor the reference nor a completion names it as a command."""
    assert "__complete" not in run_recall("--help").out
    assert candidates.__doc__ and "__complete" in candidates.__doc__


# -- the words of a line --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [""]),
        ("recall ", ["recall", ""]),
        ("a  b", ["a", "b"]),
        ("'a b'c \"d e\"", ["a bc", "d e"]),
        (r"a\ b c\\", ["a b", "c\\"]),
        (r'"a\$b\"\`c\d"', [r'a$b"`c\d']),
        ("$HOME/x ${HOME} '$HOME'", ["/h/x", "/h", "$HOME"]),
        ("~ ~/x a~ '~'", ["/h", "/h/x", "a~", "~"]),
        ("$NOT_THERE x", [None, "x"]),
        ("$(id) `id` $'a' *.db ~root", [None] * 5),
        ('"$(id)" "`id`"', [None, None]),
        ('$SPACED "$SPACED"', [None, "a b"]),
        ("'open", ["open"]),
        ("a\\", ["a"]),
    ],
)
def test_a_line_is_read_without_running_it(line: str, words: list[str | None]) -> None:
    """Quotes, backslashes, the home directory and variables are understood; what a shell would run is unknown."""
    environ = {"HOME": "/h", "SPACED": "a b"}
    assert [word.text for word in split(line, shell="bash", environ=environ)] == words


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_any_visible_character_is_quoted_for_bash(quote: str) -> None:
    """bash reads back what was quoted for it, in each kind of quotes, and with history expansion on."""
    text = "a" + "".join(chr(code) for code in range(32, 127)) + "üß漢字$(touch owned)"
    source = f"set -H -o history\nprintf '%s' {quote}{quoted(text, quote)}{quote}\n"
    done = subprocess.run([need("bash"), "--norc"], input=source, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (text, "")
