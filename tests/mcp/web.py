"""The real server over HTTP: its process, its clients, and sockets for what no client would send."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import COMMAND
from tests.mcp.conftest import META, Json, Refused

TOKEN = "a-token-of-the-tests-0123456789"
LISTENING = re.compile(r"recall mcp: listening on http://(\S+):(\d+)/mcp\n")


class Answer:
    """A response: its status, its headers by name in lower case, its body as JSON if there is one."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body: Json = json.loads(body) if body else None


class Server:
    """One ``recall mcp --http`` on a free port, which listens once this is made."""

    def __init__(self, *arguments: str, env: Mapping[str, str], cwd: Path, address: str = "0") -> None:
        self.process = subprocess.Popen(
            [COMMAND, "mcp", "--http", address, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
        )
        assert self.process.stderr is not None
        self.said = [self.process.stderr.readline().decode()]
        found = LISTENING.fullmatch(self.said[0])
        assert found, self.said
        self.host, self.port = found[1].strip("[]"), int(found[2])
        self._opened: list[socket.socket | Client] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.decode())

    def socket(self) -> socket.socket:
        stream = socket.create_connection((self.host, self.port), timeout=30)
        self._opened.append(stream)
        return stream

    def raw(self, data: bytes, *, until_closed: bool = True) -> bytes:
        """Send bytes; all that comes back until the server closes the connection."""
        with self.socket() as stream:
            try:
                stream.sendall(data)
                got = b""
                while chunk := stream.recv(65536):
                    got += chunk
                    if not until_closed and b"\r\n\r\n" in got:
                        break
            except ConnectionError:
                pass
            return got

    def client(self, *, timeout: float = 60, **headers: str) -> Client:
        client = Client(self, timeout, **headers)
        self._opened.append(client)
        return client

    def end(self, number: int, timeout: float = 20) -> int:
        self.process.send_signal(number)
        code: int = self.process.wait(timeout)
        self._reader.join(10)
        return code

    def log(self) -> str:
        return "".join(self.said)

    def close(self) -> None:
        for each in self._opened:
            each.close()
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class Client:
    """One client, on one connection that is kept."""

    def __init__(self, server: Server, timeout: float, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
        self.headers = {
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        self._id = 0

    def send(self, method: str, body: Any = None, path: str = "/mcp", **headers: str | None) -> Answer:
        """A request; ``body`` as JSON unless it is bytes. A header of None is left out."""
        changes = {name.replace("_", "-"): value for name, value in headers.items()}
        named = {name: value for name, value in {**self.headers, **changes}.items() if value is not None}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, named)
        response = self._connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def post(self, method: str, params: Json = None, **headers: str | None) -> Answer:
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method}
        return self.send("POST", message | ({} if params is None else {"params": params}), "/mcp", **headers)

    def initialize(self, version: str = "2025-11-25") -> Answer:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        answer = self.post("initialize", params)
        assert answer.status == 200, answer.body
        self.headers |= {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": version}
        noted = self.send("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert noted.status == 202 and noted.body is None
        return answer

    def call(self, tool: str, /, **arguments: Any) -> Json:
        """A tool's result. Raises Refused with its text."""
        return result(self.post("tools/call", {"name": tool, "arguments": arguments}))

    def call_without_session(self, tool: str, /, **arguments: Any) -> Json:
        """The same as the revision without sessions has it."""
        meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        headers = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": "tools/call", "Mcp_Name": tool}
        return result(self.post("tools/call", params, **headers))

    def close(self) -> None:
        self._connection.close()


def result(answer: Answer) -> Json:
    assert answer.status == 200, answer.body
    told = answer.body["result"]
    text = told["content"][0]["text"]
    if told["isError"]:
        raise Refused(text)
    return json.loads(text)


StartServer = Callable[..., Server]
