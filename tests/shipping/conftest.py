"""Every test of shipping runs against real servers over HTTP, and says in its id against which."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.shipping.bucket import Location
from store.shipping.s3 import S3Bucket
from tests.shipping.proxy import Proxy
from tests.shipping.real import World
from tests.shipping.servers import CREDENTIALS, NAMES, Server, shared_server

# No test may find the person's own credentials, or ask a cloud for some.
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
os.environ.update(CREDENTIALS)


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A running S3 server."""
    return shared_server(request.param, tmp_path_factory)


@pytest.fixture
def location(server: Server) -> Location:
    """An empty place on the server."""
    return server.location()


@pytest.fixture
def bucket(location: Location) -> S3Bucket:
    """The place as shipping sees it."""
    return S3Bucket.open(location)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of the server, which does what it is told to."""
    with Proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def through(location: Location, proxy: Proxy) -> S3Bucket:
    """The same place through the proxy, by a client that gives up early."""
    return S3Bucket.open(replace(location, endpoint_url=proxy.endpoint), deadline=3.0)


@pytest.fixture
def world(server: Server, tmp_path: Path) -> Iterator[World]:
    """Machines on one place of the server, behind a proxy that does what it is told to."""
    world = World(server, tmp_path)
    yield world
    world.close()
