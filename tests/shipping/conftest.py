"""Every test of shipping runs against real servers over HTTP, and says in its id against which."""

from __future__ import annotations

import os

import pytest

from store.shipping.s3 import S3Bucket
from tests.shipping.servers import CREDENTIALS, NAMES, Server, server_named

# No test may find the person's own credentials, or ask a cloud for some.
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
os.environ.update(CREDENTIALS)


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A running S3 server."""
    base = tmp_path_factory.getbasetemp()
    # The base directory of a worker is inside that of the session.
    return server_named(request.param, base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base)


@pytest.fixture
def bucket(server: Server) -> S3Bucket:
    """An empty place on the server."""
    return S3Bucket.open(server.location())
