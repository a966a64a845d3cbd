"""A host of the real server: its process, its pipes, its messages."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from store.backends.sqlite import SqliteBackend
from tests.conftest import COMMAND

if TYPE_CHECKING:
    from tests.mcp.web import StartServer

Json = Any
META = "io.modelcontextprotocol/"


class Refused(Exception):
    """A tool's error; its text is what the model reads."""


class Host:
    """One ``recall mcp`` and the pipes to it.

    Every line that comes must parse as JSON; ``receive`` sees to that.
    """

    def __init__(
        self, *arguments: str, env: Mapping[str, str], cwd: Path, words: Sequence[str] = (), **more: Any
    ) -> None:
        self.process = subprocess.Popen(
            [COMMAND, *(words or ["mcp", *arguments])],
            **{
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "env": env,
                "cwd": cwd,
                **more,
            },
        )
        self._rest = b""
        self._id = 0

    # -- messages ---------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: Json) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float = 30) -> Json:
        """The next message; None at the end of stdout."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            assert left > 0, "no answer"
            if not select.select([self.process.stdout], [], [], left)[0]:
                continue
            chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            if not chunk:
                assert not self._rest, f"half a line: {self._rest!r}"
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def request(self, method: str, params: Json = None, *, id: Json = None) -> Json:
        """Send a request and wait for its answer: the whole message."""
        if id is None:
            self._id += 1
            id = self._id
        self.send({"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params}))
        answer = self.receive()
        assert answer["id"] == id and answer["jsonrpc"] == "2.0"
        return answer

    def initialize(self, version: str = "2025-11-25") -> Any:
        client = {"name": "test", "version": "1"}
        answer = self.request(
            "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": client}, id="init"
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    def call(self, tool: str, /, **arguments: Any) -> Json:
        """A tool's result. Raises Refused with its text."""
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        assert "error" not in answer, answer
        result = answer["result"]
        (content,) = result["content"]
        assert content["type"] == "text"
        if result["isError"]:
            raise Refused(str(content["text"]))
        value: Json = json.loads(content["text"])
        return value

    # -- its end ----------------------------------------------------------------------------

    def end(self, timeout: float = 20) -> int:
        """Close stdin and wait; the exit code."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        code: int = self.process.wait(timeout)
        return code

    def log(self) -> str:
        """What it wrote to stderr, once it has ended."""
        assert self.process.stderr is not None
        text: str = self.process.stderr.read().decode()
        return text

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


Start = Callable[..., Host]


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts servers and ends them: ``start(*arguments, env=..., ready=True)``; ready ones are initialized."""
    hosts: list[Host] = []

    def run(*arguments: str, env: Mapping[str, str] | None = None, ready: bool = True, **more: Any) -> Host:
        host = Host(*arguments, env={**environment, **(env or {})}, cwd=tmp_path, **more)
        hosts.append(host)
        if ready:
            host.initialize()
        return host

    yield run
    for host in hosts:
        host.kill()


@pytest.fixture
def serve(environment: dict[str, str], tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers over HTTP, with the tests' token, and ends them: ``serve(*arguments, env=..., address=...)``."""
    from tests.mcp.web import TOKEN, Server

    servers: list[Server] = []

    def run(*arguments: str, env: Mapping[str, str | None] | None = None, address: str = "0") -> Server:
        merged = {**environment, "RECALL_MCP_TOKEN": TOKEN, **(env or {})}
        given = {name: value for name, value in merged.items() if value is not None}
        servers.append(Server(*arguments, env=given, cwd=tmp_path, address=address))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


@pytest.fixture
def writer(start: Start) -> Host:
    """A server that writes, initialized."""
    return start("--write")


@pytest.fixture(scope="module")
def sturdy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One server for all the bad input of a module: it has to stay up. It has resumed agent ``a``."""
    home = tmp_path_factory.mktemp("sturdy")
    plain = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LANG": "C.UTF-8"}
    host = Host("--write", env={**plain, "RECALL_DIR": str(home / "store"), "PYTHONWARNINGS": "error"}, cwd=home)
    host.initialize()
    host.call("agent_resume", agent_id="a")
    yield host
    assert host.end() == 0
    host.kill()


def modern(**params: Any) -> dict[str, Any]:
    """The params of a request without a session."""
    return {**params, "_meta": {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}}


def released(environment: dict[str, str], agent: str = "a") -> bool:
    """Whether the agent's lease was given back, and is not only free because its holder is dead."""
    with store(environment) as backend:
        lease = backend.lease(agent)
        assert lease is not None
        return lease.state == "released"


@contextmanager
def store(environment: dict[str, str]) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(Path(environment["RECALL_DIR"]), read_only=True)
    try:
        yield backend
    finally:
        backend.close()


def wait_for(what: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@contextmanager
def held_up(environment: dict[str, str]) -> Iterator[None]:
    """No write gets through meanwhile: each waits for the store's write lock."""
    with (Path(environment["RECALL_DIR"]) / "recall.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def record(number: int) -> dict[str, Any]:
    turn = {"agent_id": "a", "role": "user", "content": str(number)}
    return {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": "record_turn", "arguments": turn},
    }
