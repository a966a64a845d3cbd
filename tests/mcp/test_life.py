"""A server's life: its leases, its end, its host's end, and its streams."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Run
from tests.mcp.conftest import Host, Refused, Start, held_up, modern, record, released, wait_for

# A host that resumes an agent, says so, and then waits to be killed. Its server is a child like any host's.
_HOST = """
import json, os, subprocess, sys, time
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def request(id, method, params):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\\n")
    server.stdin.flush()
    return server.stdout.readline()
request(1, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
request(2, "tools/call", {"name": "agent_resume", "arguments": {"agent_id": "a", "lease_ttl_seconds": 3600}})
print(server.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_closed_stdin_ends_it_and_releases(writer: Host, environment: dict[str, str]) -> None:
    """Whatever was asked before is done and answered first; then all leases are given back and the exit code is 0."""
    for agent in ("a", "b"):
        writer.call("agent_resume", agent_id=agent)
    turn = {"name": "record_turn", "arguments": {"agent_id": "a", "role": "user", "content": "last"}}
    writer.send({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": turn})
    assert writer.end() == 0
    assert writer.receive()["id"] == 9 and writer.receive() is None
    assert released(environment, "a") and released(environment, "b")
    assert writer.log() == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_releases(
    writer: Host, environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    """Told to end it gives the lease back and says nothing, although stdin is still open."""
    writer.call("agent_resume", agent_id="a")
    writer.process.send_signal(number)
    assert writer.process.wait(20) == code
    assert released(environment) and writer.log() == "" and writer.receive() is None


def test_a_client_that_is_gone_ends_it(writer: Host, environment: dict[str, str]) -> None:
    """Where nobody reads the answers any more it ends quietly and releases, although stdin is still open."""
    writer.call("agent_resume", agent_id="a")
    assert writer.process.stdout is not None
    writer.process.stdout.close()
    writer.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert writer.process.wait(20) == 0
    assert released(environment) and writer.log() == ""


def test_a_killed_host_frees_the_agent_at_once(environment: dict[str, str], start: Start, tmp_path: Path) -> None:
    """The server sees its stdin end, releases and ends; the next one resumes within a moment, not after the ttl."""
    argv = [sys.executable, "-c", _HOST, str(COMMAND), "mcp", "--write"]
    host = subprocess.Popen(argv, env=environment, cwd=tmp_path, stdout=subprocess.PIPE)
    assert host.stdout is not None
    server = int(host.stdout.readline())
    next_host = start("--write")
    with pytest.raises(Refused, match="lease is held"):
        next_host.call("agent_resume", agent_id="a")
    host.kill()
    host.wait()
    host.stdout.close()
    wait_for(lambda: released(environment), 5)
    wait_for(lambda: gone(server), 5)
    assert next_host.call("agent_resume", agent_id="a")["epoch"] == 2


def test_a_killed_server_frees_the_agent_at_once(writer: Host, start: Start) -> None:
    """It could release nothing, but it is provably dead."""
    writer.call("agent_resume", agent_id="a", lease_ttl_seconds=3600)
    writer.process.kill()
    writer.process.wait()
    assert start("--write").call("agent_resume", agent_id="a")["epoch"] == 2


@pytest.mark.parametrize("told", ["by signal", "by stdin"])
def test_a_client_that_reads_nothing_cannot_keep_it_alive(writer: Host, environment: dict[str, str], told: str) -> None:
    """With its answers stuck in the pipe it still ends when told to, and releases."""
    writer.call("agent_resume", agent_id="a")
    writer.call("store_output", agent_id="a", content="x" * 1_000_000, ref="big")
    fetch = {"name": "fetch_output", "arguments": {"agent_id": "a", "ref": "big"}}
    writer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": fetch})
    time.sleep(0.3)
    if told == "by signal":
        writer.process.send_signal(signal.SIGTERM)
        assert writer.process.wait(5) == 0
    else:
        assert writer.end(6) == 0
    assert released(environment)


def test_a_slow_client_does_not_lose_the_lease(writer: Host, start: Start) -> None:
    """While an answer waits to be read for longer than the ttl, the lease is renewed and nobody gets in."""
    writer.call("agent_resume", agent_id="a", lease_ttl_seconds=5)
    writer.call("store_output", agent_id="a", content="x" * 1_000_000, ref="big")
    fetch = {"name": "fetch_output", "arguments": {"agent_id": "a", "ref": "big"}}
    writer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": fetch})
    time.sleep(6)
    other = start("--write")
    with pytest.raises(Refused, match="lease is held"):
        other.call("agent_resume", agent_id="a")
    assert writer.receive()["id"] == 1
    assert writer.call("record_turn", agent_id="a", role="user", content="still here")["seq"] == 1
    assert writer.call("agent_context", agent_id="a")["epoch"] == 1


def test_while_a_call_takes_long_the_next_are_heard(writer: Host, environment: dict[str, str]) -> None:
    """A ping is answered meanwhile, and what is cancelled before its turn is neither done nor answered."""
    writer.call("agent_resume", agent_id="a")
    with held_up(environment):
        for number in (1, 2, 3):
            writer.send(record(number))
        writer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        assert writer.request("ping")["result"] == {}
    assert [writer.receive()["id"] for _ in range(2)] == [1, 3]
    assert [each["content"] for each in writer.call("recent_turns", agent_id="a")] == ["1", "3"]


def test_a_large_call_that_is_cancelled_makes_room(writer: Host, environment: dict[str, str]) -> None:
    """What waits may be so much that nothing more is read; if just that is cancelled, reading goes on."""
    writer.call("agent_resume", agent_id="a")
    junk = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"junk": "x" * (65 << 20)}}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
    with held_up(environment):
        writer.send(record(1))
        writer.send_bytes(json.dumps(junk).encode())
        writer.send_bytes(b"\n" + json.dumps(cancel).encode() + b"\n")
        assert writer.request("ping", id="heard")["result"] == {}
    assert writer.receive()["id"] == 1


@pytest.mark.parametrize("told", ["stdin", "signal"])
def test_a_ping_that_is_answered_at_length_holds_nothing_up(writer: Host, told: str) -> None:
    """Its answer, with the id that it came with, fills the pipe of a silent client; it ends all the same."""
    writer.send({"jsonrpc": "2.0", "id": "x" * 500_000, "method": "ping"})
    time.sleep(0.3)
    assert writer.process.stdin is not None
    writer.process.stdin.close() if told == "stdin" else writer.process.send_signal(signal.SIGTERM)
    assert writer.process.wait(8) == 0


def test_it_ends_although_its_store_is_held_up(writer: Host, environment: dict[str, str]) -> None:
    """A call that waits and a release that cannot be written keep it for seconds at most; its death frees the agent."""
    writer.call("agent_resume", agent_id="a", lease_ttl_seconds=3600)
    with held_up(environment):
        writer.send(record(1))
        time.sleep(0.3)
        writer.process.send_signal(signal.SIGTERM)
        assert writer.process.wait(15) == 0


def test_it_takes_no_more_than_it_can_hold(writer: Host, environment: dict[str, str]) -> None:
    """A client that sends more than can be worked on is made to wait; nothing is lost, and memory stays bounded."""
    writer.call("agent_resume", agent_id="a")

    def send_much() -> None:
        for number in range(2, 42):
            junk = {"name": "list_agents", "arguments": {"junk": "x" * 4_000_000}}
            writer.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": junk})

    sender = threading.Thread(target=send_much)
    with held_up(environment):
        writer.send(record(1))
        sender.start()
        sender.join(2)
        assert sender.is_alive()
    assert [writer.receive(60)["id"] for _ in range(41)] == list(range(1, 42))
    sender.join()
    peak = next(line for line in Path(f"/proc/{writer.process.pid}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 140_000, peak  # of 160 MB that were sent


def test_nothing_but_answers_comes_on_stdout(environment: dict[str, str], tmp_path: Path) -> None:
    """What a careless print or a child writes to descriptor 1 goes to stderr, and a child gets neither pipe."""
    code = (
        "import os, subprocess, sys\n"
        "from recall_cli.mcp import handlers, tools\n"
        "from recall_cli.mcp.protocol import Protocol\n"
        "before = Protocol._call\n"
        "def call(self, params):\n"
        "    print('careless')\n"
        "    os.write(1, b'more careless\\n')\n"
        '    code = \'import os; print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")'
        ' if os.path.exists(f"/proc/self/fd/{n}")))\'\n'
        "    subprocess.run([sys.executable, '-c', code, 'child'], close_fds=False)\n"
        "    return before(self, params)\n"
        "Protocol._call = call\n"
        "from recall_cli.app import script\n"
        "import recall_cli.mcp.protocol as p\n"
        "p._OF_SESSIONS = {**p._OF_SESSIONS, 'tools/call': call}\n"
        "sys.argv = ['recall', 'mcp', '--write']\n"
        "script()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
    )
    assert process.stdin is not None and process.stdout is not None
    pipes = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1)]
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "agent_release", "arguments": {}}},
    ]
    out, err = process.communicate(b"".join(json.dumps(each).encode() + b"\n" for each in lines), timeout=30)
    assert [json.loads(line)["id"] for line in out.splitlines()] == [1, 2]
    assert b"careless\n" in err and b"more careless\n" in err
    seen_by_child = next(line for line in err.decode().splitlines() if line.startswith("["))
    assert "pipe:" in seen_by_child  # stderr's is one
    assert not any(pipe in seen_by_child for pipe in pipes)


def test_looking_makes_nothing(start: Start, environment: dict[str, str]) -> None:
    """A server without --write, and one with it that was asked nothing that writes, makes no file."""
    for host in (start(), start("--write")):
        with pytest.raises(Refused, match="no store"):
            host.call("list_agents")
        with pytest.raises(Refused, match="no store"):
            host.call("agent_briefing", agent_id="a")
        assert host.end() == 0
    assert not Path(environment["RECALL_DIR"]).exists()


def test_a_reading_server_sees_what_others_write(start: Start, run_recall: Run) -> None:
    """It was started before there was a store; each call looks anew."""
    host = start()
    with pytest.raises(Refused, match="no store"):
        host.call("list_agents")
    for number in (1, 2):
        run_recall("turns", "add", "-a", "x", "--role", "user", f"n{number}")
        assert [each["turns"] for each in host.call("list_agents")["agents"]] == [number]
        assert host.call("recent_turns", agent_id="x")[-1]["content"] == f"n{number}"


def test_it_loads_nothing_heavy(environment: dict[str, str], tmp_path: Path) -> None:
    """Neither the SDK, nor pydantic, nor asyncio, nor what only other commands need: not to start, nor for a turn."""
    code = (
        "import sys\n"
        "from recall_cli.app import main\n"
        "sys.argv = ['recall', 'mcp', '--write']\n"
        "main()\n"
        "sys.stderr.write('\\nMODULES ' + ' '.join(sys.modules))\n"
    )
    resume = {"name": "agent_resume", "arguments": {"agent_id": "a"}}
    turn = {"name": "record_turn", "arguments": {"agent_id": "a", "role": "user", "content": "x"}}
    messages = [("initialize", {"protocolVersion": "2025-11-25"}), ("tools/call", resume), ("tools/call", turn)]
    lines = [
        {"jsonrpc": "2.0", "id": at, "method": name, "params": params} for at, (name, params) in enumerate(messages)
    ]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=b"".join(json.dumps(each).encode() + b"\n" for each in lines),
        capture_output=True,
        env=environment,
        cwd=tmp_path,
        check=True,
        timeout=30,
    )
    assert done.stdout.count(b'"isError":false') == 2
    loaded = set(done.stderr.decode().rpartition("MODULES ")[2].split())
    top = {name.partition(".")[0] for name in loaded}
    heavy = "typer mcp pydantic asyncio logging rich http h11 email boto3 sqlite_utils platformdirs subprocess"
    assert not top & set(heavy.split())
    assert not {name for name in loaded if name.startswith("recall_cli.commands.")}
    assert not {f"recall_cli.mcp.{name}" for name in ("http", "connection", "endpoint", "sessions")} & loaded
    assert not loaded & {"recall_cli.resolving", "recall_cli.look", "store.verify", "store.restore"}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--write"],
        ["--write", "--no-agent-tools"],
        ["--no-agent-tools", "--agent-tools"],
        ["-write", "-agent", "-text"],
        ["--dir", "elsewhere", "mcp", "--write"],
    ],
)
def test_the_short_way_in_is_the_parsers(environment: dict[str, str], tmp_path: Path, words: list[str]) -> None:
    """What is started without the parser offers the same tools on the same directory as what is started with it."""
    theirs = {"RECALL_BACKEND": "local", "RECALL_BACKEND_URL": str(tmp_path / "theirs")}
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    answers = []
    for more in ([], ["--no-color"]):
        done = subprocess.run(
            [COMMAND, *(words if "mcp" in words else ["mcp", *words]), *more],
            input=b"".join(json.dumps(each).encode() + b"\n" for each in asked),
            capture_output=True,
            env={**environment, **theirs},
            cwd=tmp_path,
            timeout=30,
            check=True,
        )
        answers.append([json.loads(line)["result"] for line in done.stdout.splitlines()])
    assert answers[0] == answers[1]
    place = answers[0][0]["serverInfo"]["database"]["url"]
    assert Path(place).name == ("theirs" if "-write" in words else "elsewhere" if "mcp" in words else "recall-data")


def test_who_types_it_is_told_what_it_is_for(run_on_terminal: Run) -> None:
    """On a terminal it says that a host starts it, and how to end it."""
    done = run_on_terminal("mcp", dialogue=[("Ctrl-D ends it", "\x04")])
    assert done.code == 0 and "MCP host" in done.out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_ends_it_quietly(run_recall: Run, closed: str) -> None:
    """A host that gives it no stdin, no stdout or no stderr gets no traceback and no store."""
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}})
    script = f'"$0" mcp --write {closed}'
    done = run_recall("-c", script, COMMAND, program=("sh",), input=asked + "\n")
    assert done.code == 0 and done.err == ""
    assert done.out.count("\n") == (1 if closed == "2>&-" else 0)


def test_a_host_that_never_reads_the_log_holds_nothing_up(writer: Host, environment: dict[str, str]) -> None:
    """Each bad record is named once, and what stderr does not take is left unsaid: every call is answered."""
    writer.call("agent_resume", agent_id="a")
    for _ in range(900):
        writer.call("record_turn", agent_id="a", role="user", content="x")
    writer.call("agent_release", agent_id="a")
    with closing(sqlite3.connect(Path(environment["RECALL_DIR"]) / "recall.db")) as database, database:
        database.execute("DROP TRIGGER records_no_update")
        database.execute("UPDATE records SET line = 'broken' WHERE kind = 'turn'")
    for _ in range(3):
        seen = 900
        while seen > 200:
            assert writer.call("recent_turns", agent_id="a", limit=200, before_seq=seen) == []
            seen -= 200
    assert writer.end() == 0
    said = writer.log().splitlines()
    assert len(said) == len(set(said)) > 500


def test_a_process_with_many_descriptors_serves(environment: dict[str, str], tmp_path: Path) -> None:
    """A host that leaves it more than a thousand open ones is served like any other."""
    start = (
        "import os, sys\n"
        "for _ in range(1100): os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    asked = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": modern()}
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 4096 && exec "$0" "$@"', sys.executable, "-c", start, COMMAND, "mcp", "--write"],
        input=json.dumps(asked).encode() + b"\n",
        capture_output=True,
        env=environment,
        cwd=tmp_path,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == b""
    assert json.loads(done.stdout)["result"]["capabilities"]
