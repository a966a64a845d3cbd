"""One S3 server for all workers of a test session, alive for as long as any of them uses it.

Run as a program: ``serve.py NAME DIRECTORY``. Who uses the server holds a shared
lock on ``DIRECTORY/users``; this process waits for an exclusive one, which the
kernel grants when the last user is gone, however it went. So nothing is left
running after a killed session, and nobody has to count.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

ACCESS_KEY = "RECALLTESTKEY"
SECRET_KEY = "recall-test-secret"  # of a server that lives for one test session


def serve(name: str, directory: Path) -> None:
    """Start server ``name``, say where it is in ``DIRECTORY/ready``, and stop it when its users are gone."""
    stop = {"seaweedfs": _seaweedfs, "moto": _moto}[name](directory)
    with (directory / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (directory / "ready").unlink()  # before the lock is let go: who comes next starts another
        stop()


def _say_ready(directory: Path, port: int) -> None:
    said = directory / "ready.new"
    said.write_text(json.dumps({"endpoint": f"http://127.0.0.1:{port}", "pid": os.getpid()}))
    said.rename(directory / "ready")


def _moto(directory: Path) -> Callable[[], None]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    moto = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # moto looks at the condition and writes without a lock of its own, so two could win.
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = BytesIO(environ["wsgi.input"].read(length))
        with lock:
            return [b"".join(moto(environ, start_response))]

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as every real store keeps them
        disable_nagle_algorithm = True

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _say_ready(directory, server.server_port)
    return lambda: None  # its threads end with this process


def _seaweedfs(directory: Path) -> Callable[[], None]:
    data = directory / "data"
    data.mkdir(exist_ok=True)
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    for _ in range(5):  # a free port may be taken before the server has it
        process, port = _start_weed(directory, data)
        if _answers(process, port):
            _say_ready(directory, port)
            return lambda: _end(process)
        _end(process)
    raise RuntimeError(f"SeaweedFS does not start: see {directory / 'log'}")


def _start_weed(directory: Path, data: Path) -> tuple[subprocess.Popen[bytes], int]:
    options = ("s3.port", "master.port", "filer.port", "volume.port", "admin.port")
    names = [*options, *(f"{each}.grpc" for each in options)]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    command = [
        str(Path(sys.executable).with_name("weed")),
        "mini",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={data}",
        f"-s3.config={directory / 's3.json'}",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=200",
        "-master.telemetry=false",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (this process has no other thread)
        )
    return process, ports["s3.port"]


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            if connection.recv(64).startswith(b"HTTP/1.1 200"):
                return True
        time.sleep(0.05)
    return False


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # nothing of it is kept
    process.wait()


def main(name: str, directory: Path) -> int:
    """Leave a server behind, and end as soon as it can be used."""
    server = os.fork()
    if server == 0:
        os.setsid()  # Ctrl-C ends the tests, and the tests' end ends this
        serve(name, directory)
        return 0
    deadline = time.monotonic() + 60
    while not (directory / "ready").exists():
        if os.waitpid(server, os.WNOHANG)[0]:
            return 1
        if time.monotonic() > deadline:
            os.kill(server, signal.SIGKILL)
            return 1
        time.sleep(0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
