"""Real S3 servers for the tests, started when the first test wants one and shared by all workers."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.config  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
import pytest

from store.shipping.bucket import Location
from store.shipping.s3 import S3Bucket
from store.value import value
from tests.shipping.serve import ACCESS_KEY, SECRET_KEY

NAMES = ("seaweedfs", "moto")
REGION = "us-east-1"
BUCKET = "recall-tests"

# What a process needs in its environment to be let in, and to look nowhere else for it.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}

_numbers = itertools.count()


@value
class Server:
    """A running server.

    Attributes:
        name: which one: ``seaweedfs`` or ``moto``.
        endpoint: its address, as ``http://127.0.0.1:PORT``.
    """

    name: str
    endpoint: str

    def location(self, prefix: str = "", **options: str) -> Location:
        """A place that no other test uses: a prefix of its own, in a bucket that all share."""
        own = f"{os.getpid()}-{next(_numbers)}"
        url = f"s3://{BUCKET}/{own}/{prefix}".rstrip("/")
        return Location.parse(url, endpoint_url=options.pop("endpoint_url", self.endpoint), region=REGION, **options)

    def new_bucket(self) -> str:
        """The name of a bucket made now, for what a prefix cannot show."""
        name = f"recall-{os.getpid()}-{next(_numbers)}"
        self.client().create_bucket(Bucket=name)
        return name

    def client(self) -> Any:
        """The SDK's own client, past everything that is tested."""
        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=botocore.config.Config(
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"total_max_attempts": 5, "mode": "standard"},
            ),
        )


def shared_server(name: str, factory: pytest.TempPathFactory) -> Server:
    """The server ``name`` of this test session, whichever of its workers asks."""
    base = factory.getbasetemp()
    # The base directory of a worker is inside that of the session.
    return server_named(name, base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base)


def own_server(name: str, directory: Path, bucket: str) -> Server:
    """A server that nobody else uses, with one bucket of that name; it ends with this process, or by ``end_own``."""
    _need(name)
    directory.mkdir()
    server, _own[directory] = _start(name, directory)
    server.client().create_bucket(Bucket=bucket)
    return server


def end_own(directory: Path) -> None:
    """End the server of that directory, and wait until it is gone, so that its files can be deleted."""
    os.close(_own.pop(directory))
    with (directory / "users").open("a") as users:
        while (directory / "ready").exists():
            time.sleep(0.02)
        fcntl.flock(users, fcntl.LOCK_EX)  # which the server's keeper has until it is over


_own: dict[Path, int] = {}


_started: dict[str, tuple[Server, int]] = {}


def server_named(name: str, shared: Path) -> Server:
    """The server ``name``, started if no worker has done so yet; ``shared`` is the directory of the test session.

    A server that is not installed skips the test; in CI, which installs them all, it fails.
    """
    _need(name)
    if name not in _started:
        _started[name] = _start(name, shared / f"server-{name}")
    return _started[name][0]


def _need(name: str) -> None:
    try:
        if name == "moto":
            import flask  # noqa: F401
            import moto  # noqa: F401
        elif not Path(sys.executable).with_name("weed").exists():
            raise ImportError("no weed beside the interpreter")
    except ImportError as problem:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing, and CI must run every test: {problem}")
        pytest.skip(f"{name} is not installed: {problem}")


def _start(name: str, directory: Path) -> tuple[Server, int]:
    directory.mkdir(exist_ok=True)
    with (directory / "starting").open("a") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        users = os.open(directory / "users", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)  # held to the end of this worker; waits for a server that is stopping
        ready = directory / "ready"
        if not (ready.exists() and listens(json.loads(ready.read_text())["endpoint"])):
            ready.unlink(missing_ok=True)
            _launch(name, directory)
            server = Server(name, json.loads(ready.read_text())["endpoint"])
            server.client().create_bucket(Bucket=BUCKET)
        return Server(name, json.loads(ready.read_text())["endpoint"]), users


def _launch(name: str, directory: Path) -> None:
    script = Path(__file__).with_name("serve.py")
    with (directory / "serve.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, script, name, directory], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    if done.returncode:
        pytest.fail(f"{name} did not start: {(directory / 'serve.log').read_text()[-2000:]}")


def listens(endpoint: str) -> bool:
    address = urlsplit(endpoint)
    try:
        socket.create_connection((address.hostname or "", address.port or 0), 5).close()
    except OSError:
        return False
    return True


# -- what tests of the bucket itself say of it ---------------------------------------------------

HEAD = "agents/x/head.json"

# For what the proxy answers by itself, or the client decides: which server stands behind makes no difference.
one_server = pytest.mark.parametrize("server", ["moto"], indirect=True)


def holds(bucket: S3Bucket, key: str = HEAD) -> bytes | None:
    found = bucket.get(key)
    return None if found is None else found.body


def made(bucket: S3Bucket, body: bytes = b"one") -> str:
    swap = bucket.swap(HEAD, body, None)
    assert swap.outcome == "done"
    return swap.etag
