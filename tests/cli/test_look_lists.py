"""The lists: their rows, filters, order and forms."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from store.client import Client
from tests.cli.look_stores import AGENT, seed, seed_all
from tests.conftest import Run


@pytest.fixture
def directory(environment: dict[str, str]) -> Path:
    return Path(environment["RECALL_DIR"])


def _rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def _column(out: str, at: int) -> list[str]:
    return [line.split("\t")[at] for line in out.splitlines()]


# -- turns -------------------------------------------------------------------------------


@pytest.fixture
def talk(directory: Path) -> None:
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        for at in range(1, 31):
            agent.record_turn("user" if at % 2 else "assistant", f"message {at}")
        agent.record_turn("tool", "opening " + "long " * 4000, name="sh")


@pytest.mark.parametrize(
    ("arguments", "seqs"),
    [
        ((), range(12, 32)),
        (("--limit", "3"), range(29, 32)),
        (("--limit", "3", "--before", "10"), range(7, 10)),
        (("--all",), range(1, 32)),
        (("--role", "user", "--limit", "2"), (27, 29)),
        (("--text", "message 2", "--all"), (2, *range(20, 30))),
        (("--since", "1h", "--limit", "2"), (30, 31)),
        (("--since", "2999-01-01"), ()),
        (("--before", "1"), ()),
    ],
)
def test_which_turns_are_listed(
    run_recall: Run, talk: None, arguments: tuple[str, ...], seqs: tuple[int, ...] | range
) -> None:
    """The newest 20 unless told otherwise; filters count before the limit does; the newest is last."""
    ended = run_recall("turns", "list", AGENT, *arguments)
    assert ended.code == 0
    assert _column(ended.out, 0) == [str(seq) for seq in seqs]


def test_the_agent_may_come_from_the_environment(run_recall: Run, talk: None) -> None:
    """RECALL_AGENT stands for a missing AGENT."""
    assert run_recall("turns", "list", "--limit", "1", env={"RECALL_AGENT": AGENT}).out.startswith("31\t")


def test_full_turns_bring_their_output(run_recall: Run, talk: None) -> None:
    """A turn kept as an output is shown by its opening, and whole with --full or show."""
    short = run_recall("turns", "list", AGENT, "--limit", "1", "--jsonl")
    whole = run_recall("turns", "list", AGENT, "--limit", "1", "--jsonl", "--full")
    content = "opening " + "long " * 4000
    assert _rows(short.out)[0]["content"] != content
    assert _rows(whole.out)[0]["content"] == content
    assert run_recall("turns", "show", "-a", AGENT, "31").out.endswith("\n\n" + content + "\n")


def test_a_turn_is_one_harmless_line_in_a_pipe(run_recall: Run, directory: Path) -> None:
    """Line breaks and terminal sequences of a turn come out as escapes; JSON gives the text itself."""
    seed_all(directory)
    line = run_recall("turns", "list", AGENT, "--limit", "1").out
    assert line.split("\t", 4)[4] == "see\\nthis \\x1b]0;owned\\x07 [bold]now[/bold]\n"
    row = _rows(run_recall("turns", "list", AGENT, "--limit", "1", "--jsonl").out)[0]
    assert row["content"] == "see\nthis \x1b]0;owned\x07 [bold]now[/bold]"
    assert set(row) == {"agent", "seq", "role", "content", "name", "output_ref", "message_id", "brief", "at"}


def test_a_turn_on_a_terminal_cannot_forge_another(run_on_terminal: Run, directory: Path) -> None:
    """On a terminal the further lines of a turn are indented below its label."""
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        agent.record_turn("user", "real\n[user #2] forged")
    out = run_on_terminal("turns", "list", AGENT).out
    assert re.fullmatch(r"\[user #1\] \S+\n    real\n    \[user #2\] forged\n", out)


@pytest.mark.parametrize("arguments", [("--limit", "0"), ("--since", "soon"), ("--before", "0"), ("--role", "boss")])
def test_wrong_filters_are_refused_in_one_line(run_recall: Run, talk: None, arguments: tuple[str, ...]) -> None:
    """A value that means nothing is exit code 2, one line and a hint."""
    ended = run_recall("turns", "list", AGENT, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("recall: ")
    assert len(ended.err.splitlines()) <= 2


def test_a_turn_that_is_not_there(run_recall: Run, talk: None) -> None:
    """turns show of an unknown number is exit code 3."""
    ended = run_recall("turns", "show", "-a", AGENT, "99")
    assert (ended.code, ended.err.splitlines()[0]) == (3, f"recall: no turn 99 of {AGENT}")


# -- actions ------------------------------------------------------------------------------


@pytest.fixture
def work(directory: Path) -> None:
    seed_all(directory)  # its email becomes unknown at the next resumption
    with Client(local_dir=directory) as client:
        with client.resume(AGENT):
            pass
        with client.resume("other") as agent:
            agent.begin_action("charge", "idempotent", {"cents": 100}, step="pay")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), ["billing-migrator 3", "billing-migrator 2", "billing-migrator 1", "other 1"]),
        (("other",), ["other 1"]),
        (("--pending",), ["billing-migrator 1", "other 1"]),
        (("--pending", "--limit", "1"), ["billing-migrator 1"]),
        (("--status", "unknown"), ["billing-migrator 1"]),
        (("--status", "failed"), ["billing-migrator 3"]),
        (("--class", "idempotent"), ["billing-migrator 2", "other 1"]),
        (("--tool", "lint"), ["billing-migrator 3"]),
        (("--step", "pay"), ["other 1"]),
        (("--text", "a@example.com"), ["billing-migrator 1"]),
        (("--text", "exit 1", AGENT), ["billing-migrator 3"]),
        (("--older-than", "1h"), []),
        (("--newer-than", "1h", "other"), ["other 1"]),
    ],
)
def test_which_actions_are_listed(run_recall: Run, work: None, arguments: tuple[str, ...], found: list[str]) -> None:
    """Of all agents unless one is named; every filter narrows."""
    ended = run_recall("actions", "list", *arguments)
    assert ended.code == 0
    assert [" ".join(line.split("\t")[:2]) for line in ended.out.splitlines()] == found


@pytest.mark.parametrize(("arguments", "code"), [(("--pending",), 8), (("--older-than", "1h"), 0)])
def test_the_alert(run_recall: Run, work: None, arguments: tuple[str, ...], code: int) -> None:
    """--fail-if-any prints what it found and exits with 8, or with 0 when there is nothing."""
    ended = run_recall("actions", "list", *arguments, "--fail-if-any")
    assert ended.code == code
    assert bool(ended.out) is (code == 8)


def test_all_agents_whatever_the_environment_says(run_recall: Run, work: None) -> None:
    """RECALL_AGENT narrows the list, and --all-agents widens it again."""
    here = {"RECALL_AGENT": "other"}
    assert set(_column(run_recall("actions", "list", env=here).out, 0)) == {"other"}
    assert set(_column(run_recall("actions", "list", "--all-agents", env=here).out, 0)) == {"other", AGENT}


def test_a_filter_that_nothing_fits_is_not_an_empty_store(run_recall: Run, work: None) -> None:
    """What is said of an empty listing tells the two apart."""
    for filtered in (["--status", "archived"], ["--match", "zzz"], ["--older-than", "99d"]):
        assert run_recall("agents", "list", *filtered).err == "no agent that fits\n"


def test_one_action_whole(run_recall: Run, work: None) -> None:
    """actions show gives the whole result, every change of status and the log around them."""
    found = json.loads(run_recall("actions", "show", "-a", AGENT, "2", "--json").out)
    assert found["result"] == "R" * 9000
    assert found["result_ref"] == "act-2-result"
    assert [version["status"] for version in found["versions"]] == ["started", "done"]
    around = [row["lsn"] for row in found["around"]]
    assert around == sorted(set(around))
    assert {version["lsn"] for version in found["versions"]} < set(around)
    assert "incarnation" not in found
    text = run_recall("actions", "show", "-a", AGENT, "1").out
    assert "resolution:     interrupted; it is not known whether it happened\n" in text


# -- outputs and pointers -------------------------------------------------------------------


def test_an_output_to_a_pipe_or_a_file_is_exact(run_recall: Run, environment: dict[str, str], directory: Path) -> None:
    """outputs get gives the stored bytes: no line break is added, none changed, nothing escaped."""
    seed_all(directory)
    exact = "line one\r\nline two\x1b[31m\u202e"
    target = directory.parent / "report.txt"
    assert run_recall("outputs", "get", "-a", AGENT, "report").out == exact
    assert run_recall("outputs", "get", "-a", AGENT, "report", "-o", str(target)).out == ""
    assert target.read_bytes() == exact.encode()
    assert json.loads(run_recall("outputs", "get", "-a", AGENT, "report", "--json").out)["content"] == exact


def test_an_output_on_a_terminal_is_harmless_unless_raw(run_on_terminal: Run, directory: Path) -> None:
    """On a terminal an output shows its sequences as text; --raw sends them."""
    seed_all(directory)
    assert "line two\\x1b[31m\\u202e\n" in run_on_terminal("outputs", "get", "-a", AGENT, "report").out
    assert "line two\x1b[31m\u202e" in run_on_terminal("outputs", "get", "-a", AGENT, "report", "--raw").out


def test_an_output_never_overwrites_the_store(run_recall: Run, directory: Path) -> None:
    """-o refuses a file in the store's own directory."""
    seed_all(directory)
    ended = run_recall("outputs", "get", "-a", AGENT, "report", "-o", str(directory / "recall.db"))
    assert (ended.code, ended.out) == (2, "")
    assert run_recall("turns", "list", AGENT).code == 0


def test_outputs_are_listed_newest_first_without_contents(run_recall: Run, directory: Path) -> None:
    """A list of outputs has refs, tools, sizes and summaries only, over more than one page."""
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        for at in range(120):
            agent.store_output("content", tool="sh" if at % 2 else "rg", ref=f"o-{at}")
    rows = _rows(run_recall("outputs", "list", AGENT, "--jsonl").out)
    assert [row["ref"] for row in rows] == [f"o-{at}" for at in reversed(range(120))]
    assert set(rows[0]) == {"agent", "ref", "tool", "summary", "tokens", "at"}
    assert _column(run_recall("outputs", "list", AGENT, "--tool", "rg", "--limit", "2").out, 0) == ["o-118", "o-116"]


def test_an_output_that_is_not_there(run_recall: Run, directory: Path) -> None:
    """outputs get of an unknown ref is exit code 3, and the ref is shown harmlessly."""
    seed_all(directory)
    ended = run_recall("outputs", "get", "-a", AGENT, "x\x1b[31m")
    assert (ended.code, ended.err.splitlines()[0]) == (3, f"recall: no output 'x\\x1b[31m' of {AGENT}")


def test_pointers_in_force_by_name(run_recall: Run, directory: Path) -> None:
    """Removed pointers are not listed; the others come by name, in more than one page."""
    seed_all(directory)
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        for at in range(60):
            agent.set_pointer(f"p{at:02}", "object", {"uri": f"s3://b/{at}"})
    names = _column(run_recall("pointers", "list", AGENT).out, 0)
    assert names == [*(f"p{at:02}" for at in range(60)), "wip"]
    assert _column(run_recall("pointers", "list", AGENT, "--type", "git_ref").out, 0) == ["wip"]


# -- state and briefing ----------------------------------------------------------------------


def test_the_working_state_and_its_versions(run_recall: Run, directory: Path) -> None:
    """show gives the newest version or another; history lists them newest first."""
    seed(directory)
    newest = json.loads(run_recall("state", "show", AGENT, "--json").out)
    assert (newest["version"], newest["last_milestone"]) == (2, "call sites found")
    assert json.loads(run_recall("state", "show", AGENT, "--version", "1", "--json").out)["progress"] == ""
    assert run_recall("state", "show", AGENT, "--version", "9").code == 3
    assert _column(run_recall("state", "history", AGENT).out, 0) == ["2", "1"]
    assert _column(run_recall("state", "history", AGENT, "--milestones").out, 0) == ["2"]


def test_what_changed_between_versions(run_recall: Run, directory: Path) -> None:
    """diff says, field by field, what went and what came; lists item by item."""
    seed(directory)
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        agent.update_working_state(plan=["find call sites", "run the tests", "deploy"])
    assert run_recall("state", "diff", "-a", AGENT).out == "plan:\n  - migrate them\n  + deploy\n"
    change = json.loads(run_recall("state", "diff", "-a", AGENT, "1", "3", "--json").out)
    assert (change["from"], change["to"]) == (1, 3)
    assert set(change["changes"]) == {"plan", "progress", "last_milestone"}
    assert change["changes"]["plan"]["removed"] == ["migrate them"]
    same = run_recall("state", "diff", "-a", AGENT, "2", "2")
    assert (same.code, same.out) == (0, "")


def test_the_briefing_is_the_engines_text(run_recall: Run, directory: Path) -> None:
    """The command prints exactly what a resumed process is given, and one line break."""
    seed(directory)
    with Client(local_dir=directory) as client, client.resume(AGENT, defer_lease=True) as agent:
        text = agent.context.briefing
    assert run_recall("briefing", AGENT).out == text + "\n"
    found = json.loads(run_recall("briefing", AGENT, "--json").out)
    assert (found["agent_id"], found["briefing"], found["fresh"]) == (AGENT, text, False)


def test_the_briefing_of_an_earlier_moment(run_recall: Run, directory: Path) -> None:
    """--at shows what was known then; a position that the log does not have is refused."""
    seed(directory)
    assert "version 1" in run_recall("briefing", AGENT, "--at", "3").out
    assert run_recall("briefing", AGENT, "--at", "99").code == 3
    assert run_recall("briefing", AGENT, "--at", "0").code == 2
    assert run_recall("briefing", AGENT, "--budget", "10").code == 2


# -- agents -----------------------------------------------------------------------------------


def test_the_agents_and_their_states(run_recall: Run, environment: dict[str, str], directory: Path) -> None:
    """A live, a released and a provably dead holder are told apart."""
    seed(directory)
    script = (
        "import os, sys, time; from recall_cli import Client\n"
        "Client(local_dir=sys.argv[1]).resume('killed'); print('ready', flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    with Client(local_dir=directory) as client:
        client.resume("running", holder="me")
        rows = {row["agent"]: row for row in _rows(run_recall("agents", "--jsonl").out)}
        assert {name: row["state"] for name, row in rows.items()} == {
            AGENT: "released", "killed": "dead", "running": "live"
        }  # fmt: skip
        assert (rows[AGENT]["turns"], rows[AGENT]["goal"]) == (1, "Move billing to the v2 API")
        assert _column(run_recall("agents", "list", "--status", "dead").out, 0) == ["killed"]
        assert _column(run_recall("agents", "list", "--match", "r*").out, 0) == ["running"]
        assert _column(run_recall("agents", "list", "--match", "ill", "--limit", "1").out, 0) == [AGENT]
        assert run_recall("agents", "list", "--older-than", "1h").out == ""
        shown = json.loads(run_recall("agents", "show", "running", "--json").out)
    assert (shown["lease"]["holder"], shown["lease"]["process"], shown["lease"]["epoch"]) == ("me", "alive", 1)
    assert shown["lease"]["until"] > time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    assert shown["lsn"] == 1


def test_the_token_is_never_shown(run_recall: Run, directory: Path) -> None:
    """agents show does not tell the incarnation, with which somebody could write."""
    with Client(local_dir=directory) as client:
        client.resume(AGENT)
        lease = client.backend.lease(AGENT)
        assert lease is not None
        for form in ((), ("--json",)):
            assert lease.incarnation not in run_recall("agents", "show", AGENT, *form).out


def test_an_archived_agent_is_ended_until_brought_back(run_recall: Run, directory: Path) -> None:
    """After archive nobody resumes it; its epoch goes on rising, and unarchive lets it live."""
    seed(directory)
    assert run_recall("agents", "archive", "-a", AGENT).code == 2
    done = run_recall("agents", "archive", "-a", AGENT, "--reason", "finished", "--by", "ops")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == [
        f"archived {AGENT}", f"  → recall agents unarchive -a {AGENT} --reason TEXT"
    ]  # fmt: skip
    from store.access import once
    from store.errors import AgentArchived

    with Client(local_dir=directory) as client:
        with pytest.raises(AgentArchived):
            client.resume(AGENT)
        with pytest.raises(AgentArchived):
            once(client.backend, AGENT, lambda agent: agent.record_turn("user", "too late"))
    assert run_recall("agents", "archive", "-a", AGENT, "--reason", "again").code == 6
    shown = json.loads(run_recall("agents", "show", AGENT, "--json").out)
    assert (shown["state"], shown["archived"]["reason"], shown["archived"]["by"]) == ("archived", "finished", "ops")
    assert run_recall("agents", "unarchive", "-a", AGENT, "--reason", "needed").code == 0
    assert run_recall("agents", "unarchive", "-a", AGENT, "--reason", "needed").code == 3
    with Client(local_dir=directory) as client, client.resume(AGENT) as agent:
        assert agent.epoch > shown["lease"]["epoch"]


def test_a_live_agent_is_not_archived(run_recall: Run, directory: Path) -> None:
    """Archiving an agent that somebody acts for is exit code 4, and it goes on."""
    with Client(local_dir=directory) as client:
        agent = client.resume(AGENT)
        assert run_recall("agents", "archive", "-a", AGENT, "--reason", "x").code == 4
        assert agent.record_turn("user", "still here").seq == 1


@pytest.mark.parametrize("noun", ["agents", "state", "turns", "pointers", "outputs", "actions"])
def test_lists_are_one_json_document(run_recall: Run, directory: Path, noun: str) -> None:
    """--json is one valid document also where there is nothing to list."""
    with Client(local_dir=directory) as client, client.resume(AGENT):
        pass
    verb = ("history", AGENT) if noun == "state" else ("list",) if noun == "agents" else ("list", AGENT)
    found = json.loads(run_recall(noun, *verb, "--json").out)
    assert isinstance(found, list)
    assert bool(found) is (noun == "agents")


# -- one bad record ------------------------------------------------------------------------------


@pytest.fixture
def damaged(directory: Path) -> None:
    seed_all(directory)
    connection = sqlite3.connect(directory / "recall.db")
    connection.execute("DROP TRIGGER records_no_update")
    for key in ("turn:1", "ws:2", "out:act-2-result", "act:3"):
        connection.execute(
            'UPDATE records SET line = replace(line, \'"body":"{\', \'"body":"[\') WHERE key = ?', (key,)
        )
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("look", "shown", "bad"),
    [
        (("turns", "list", AGENT), "see\\nthis", "turn:1"),
        (("state", "show", AGENT), "version:        1", "ws:2"),
        (("state", "history", AGENT), "1\t", "ws:2"),
        (("outputs", "list", AGENT), "report\t", "out:act-2-result"),
        (("actions", "list"), f"{AGENT}\t2\tdone", "act:3"),
        (("agents", "list"), f"{AGENT}\treleased", "ws:2"),
        (("briefing", AGENT), "see\n    this", "turn:1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_one_bad_record_hides_no_other(
    run_recall: Run, damaged: None, look: tuple[str, ...], shown: str, bad: str
) -> None:
    """The readable records are shown, the bad one is named on stderr, and the command has done its work."""
    ended = run_recall(*look)
    assert ended.code == 0
    assert shown in ended.out
    assert f"recall: warning: agent {AGENT}: record {bad} (lsn " in ended.err


def test_what_refers_to_a_bad_output_is_still_shown(run_recall: Run, damaged: None) -> None:
    """An action whose result was kept in an output that is damaged is shown with words in its place."""
    ended = run_recall("actions", "show", "-a", AGENT, "2")
    assert ended.code == 0
    assert "status:         done\n" in ended.out
    assert f"result:         (agent {AGENT}: record out:act-2-result (lsn " in ended.out


@pytest.mark.parametrize("look", [("log", "--all"), ("records",)], ids=" ".join)
def test_damage_does_not_end_a_stream(run_recall: Run, damaged: None, look: tuple[str, ...]) -> None:
    """log and records print the damaged records among the others."""
    ended = run_recall(*look, AGENT)
    assert ended.code == 0
    assert len(ended.out.splitlines()) > 10
    assert "turn:1" in ended.out
    assert "turn:2" in ended.out
