"""A store that ships to a bucket is served like any other, and its agent goes on elsewhere."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.mcp.conftest import Refused, Start
from tests.mcp.web import StartServer
from tests.shipping.machines import attach
from tests.shipping.servers import CREDENTIALS, NAMES, shared_server


def test_an_agent_goes_on_where_only_the_bucket_is_known(
    start: Start, environment: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a session recorded, and the call that was cut off in it, are in the briefing of another machine's host."""
    location = shared_server(NAMES[0], tmp_path_factory).location()
    here, there = Path(environment["RECALL_DIR"]), tmp_path / "there"
    for place in (here, there):
        attach(place, location)
    first = start("--write", env=CREDENTIALS)
    assert first.call("agent_resume", agent_id="a")["epoch"] == 1
    first.call("update_working_state", agent_id="a", goal="the goal")
    first.call("begin_action", agent_id="a", tool="send", **{"class": "external"}, args="to x")
    assert first.call("verify")["ok"] is True and first.call("list_agents")["agents"][0]["pending"] == 1
    assert first.end(30) == 0 and first.log() == ""
    second = start("--write", env={**CREDENTIALS, "RECALL_DIR": str(there)})
    resumed = second.call("agent_resume", agent_id="a")
    assert resumed["working_state"]["goal"] == "the goal" and resumed["epoch"] == 2
    assert [(each["tool"], each["status"]) for each in resumed["pending_actions"]] == [("send", "unknown")]
    settled = second.call("resolve_action", agent_id="a", seq=1, status="done", reason="it was in the outbox")
    assert settled["status"] == "done" and second.call("pending_actions", agent_id="a") == []
    assert second.end(30) == 0


def test_sessions_of_one_server_ship_side_by_side(
    serve: StartServer,
    start: Start,
    environment: dict[str, str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Over HTTP, each client's agent goes on elsewhere from what it recorded; a session that ended left its lease."""
    location = shared_server(NAMES[0], tmp_path_factory).location()
    here, there = Path(environment["RECALL_DIR"]), tmp_path / "there"
    for place in (here, there):
        attach(place, location)
    server = serve("--write", env=CREDENTIALS)
    clients = [server.client() for _ in range(3)]
    for number, client in enumerate(clients):
        client.initialize()
        client.call("agent_resume", agent_id=f"a{number}")
        client.call("begin_action", agent_id=f"a{number}", tool="send", **{"class": "external"})
    assert clients[0].send("DELETE").status == 204
    second = start("--write", env={**CREDENTIALS, "RECALL_DIR": str(there)})
    assert second.call("agent_resume", agent_id="a0")["epoch"] == 2
    with pytest.raises(Refused, match="lease is held"):
        second.call("agent_resume", agent_id="a1")
    assert server.end(signal.SIGTERM, 30) == 0
    for agent in ("a1", "a2"):
        resumed = second.call("agent_resume", agent_id=agent)
        assert [each["status"] for each in resumed["pending_actions"]] == ["unknown"]
    assert second.end(30) == 0
