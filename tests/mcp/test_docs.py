"""What docs/mcp.md shows is so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recall_cli.mcp.fitting import LONGEST_ANSWER
from recall_cli.mcp.hosts import HOSTS
from recall_cli.mcp.protocol import SESSIONLESS, SESSIONS
from tests.conftest import COMMAND, ROOT, Run
from tests.mcp.conftest import Start
from tools import readme

TEXT = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def _servers() -> Iterator[tuple[str, Any]]:
    """Each host's entry for the server, as that host's format nests it."""
    for language, text in BLOCKS:
        if language == "toml":
            tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no parser for TOML")
            yield "codex", tomllib.loads(text)["mcp_servers"]["recall"]
        elif language == "json":
            found = json.loads(text)
            (top,) = found
            assert top in ("mcpServers", "servers")
            yield top, found[top]["recall"]


def test_the_hosts_configurations_start_the_server(start: Start, tmp_path: Path) -> None:
    """Each snippet is well-formed, has no field that its host does not know, and names a command line that serves."""
    servers = list(_servers())
    assert [host for host, _ in servers] == ["mcpServers", "mcpServers", "servers", "codex"]
    for _, server in servers:
        assert set(server) <= {"type", "command", "args", "env"}
        assert server.get("type", "stdio") == "stdio" and server["command"] == "recall"
        words = [each.replace("${workspaceFolder}", str(tmp_path)) for each in server["args"]]
        assert "mcp" in words and "--write" in words
        host = start(words=words)
        names = [each["name"] for each in host.request("tools/list")["result"]["tools"]]
        assert "agent_resume" in names


def test_a_printed_configuration_needs_nothing_of_this_shell(run_recall: Run, start: Start, tmp_path: Path) -> None:
    """The store and the mode that variables name here are arguments there: the host has other variables, or none."""
    place = str(tmp_path / "named by a variable")
    done = run_recall("mcp", "--print-config", "cursor", env={"RECALL_DIR": place, "RECALL_SHIP": "lazy"})
    arguments = json.loads(done.out)["mcpServers"]["recall"]["args"]
    assert arguments == ["--dir", place, "mcp", "--ship", "lazy"]
    assert start(words=arguments, ready=False).initialize()["serverInfo"]["database"]["url"] == place
    home = {"HOME": str(tmp_path), "RECALL_DIR": ""}
    assert json.loads(run_recall("mcp", "--print-config", "cursor", env=home).out)["mcpServers"]["recall"]["args"] == [
        "mcp"
    ]


@pytest.mark.parametrize("name", HOSTS)
def test_a_printed_configuration_starts_the_server(name: str, run_recall: Run, start: Start, tmp_path: Path) -> None:
    """It is as the page shows it for the host, with whole paths and the options given; where it goes is said."""
    place = tmp_path / "a store"
    done = run_recall("--dir", place, "mcp", "--write", "--no-agent-tools", "--print-config", name)
    assert done.code == 0 and HOSTS[name].file in done.err and not place.exists()
    if name == "codex":
        tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no parser for TOML")
        server = tomllib.loads(done.out)["mcp_servers"]["recall"]
    else:
        server = json.loads(done.out)[HOSTS[name].table]["recall"]
    shown = dict(zip(("claude-code", "cursor", "vscode", "codex"), _servers(), strict=True))[name][1]
    assert set(server) == set(shown) and server["command"] == str(COMMAND)
    host = start(words=server["args"])
    names = [each["name"] for each in host.request("tools/list")["result"]["tools"]]
    assert "resolve_action" in names and "agent_resume" not in names
    assert host.initialize()["serverInfo"]["database"]["url"] == str(place)


@pytest.mark.parametrize("name", HOSTS)
def test_a_printed_configuration_for_http_names_the_variable_of_the_token(name: str, run_recall: Run) -> None:
    """As the host's documentation has it: the address, and a header with what is in the host's environment."""
    done = run_recall("mcp", "--http", "box.example:8765", "--print-config", name, env={"RECALL_MCP_TOKEN": "x" * 20})
    assert done.code == 0 and HOSTS[name].file in done.err and "x" * 20 not in done.out + done.err
    url = "http://box.example:8765/mcp"
    if name == "codex":
        tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no parser for TOML")
        server = tomllib.loads(done.out)["mcp_servers"]["recall"]
        assert server == {"url": url, "bearer_token_env_var": "RECALL_MCP_TOKEN"}
        return
    found = json.loads(done.out)
    named = {
        "claude-code": "Bearer ${RECALL_MCP_TOKEN}",
        "cursor": "Bearer ${env:RECALL_MCP_TOKEN}",
        "vscode": "Bearer ${input:recall-token}",
    }[name]
    typed = {} if name == "cursor" else {"type": "http"}
    assert found[HOSTS[name].table]["recall"] == {**typed, "url": url, "headers": {"Authorization": named}}
    assert [each["id"] for each in found.get("inputs", [])] == (["recall-token"] if name == "vscode" else [])


@pytest.mark.parametrize("address", ["0", "0.0.0.0:8765", "[::]:8765"])
def test_a_configuration_needs_an_address_to_connect_to(run_recall: Run, address: str) -> None:
    """Any port, and any address, are for listening only."""
    done = run_recall("mcp", "--http", address, "--print-config", "cursor")
    assert done.code == 2 and "could connect to" in done.err and done.out == ""


def test_the_session_by_hand_is_what_happens(tmp_path: Path) -> None:
    """The block for a shell is run, and its outputs are those of the page."""
    block = "\n".join(f"```{language}\n{text}```" for language, text in BLOCKS if language == "console")
    ((name, exchanges),) = readme.run(f"## mcp\n{block}\n", readme.prepared(tmp_path, block), tmp_path)
    assert len(exchanges) == 3 and readme.differences(name, exchanges) == []


def test_every_block_is_checked() -> None:
    """There is none in a language that the tests above pass over."""
    assert {language for language, _ in BLOCKS} == {"json", "toml", "console"}


def test_the_numbers_of_the_page_are_the_codes() -> None:
    """The protocol's revisions and the longest answer."""
    assert f"{SESSIONS[0]} to {SESSIONS[-1]} (with `initialize`) and {SESSIONLESS[0]} (without)" in TEXT
    assert f"An answer is at most {LONGEST_ANSWER >> 20} MiB" in TEXT
