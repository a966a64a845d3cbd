"""The servers that the tests stand on: one for all workers, and gone with the last of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store.process import describe, provably_dead
from tests.shipping.servers import NAMES, listens

ROOT = Path(__file__).resolve().parents[2]

# Stands for a worker: takes the server, says where it is, and waits to be killed.
WORKER = """
import sys, time
from pathlib import Path
from tests.shipping.servers import server_named
print(server_named(sys.argv[1], Path(sys.argv[2])).endpoint, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_server_is_shared_and_ends_with_its_last_user(name: str, tmp_path: Path) -> None:
    """Two workers get the same one; it outlives the first, and SIGKILL of the second ends it too."""
    command = [sys.executable, "-c", WORKER, name, str(tmp_path)]
    first, second = (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) for _ in range(2)
    )
    try:
        assert first.stdout is not None and second.stdout is not None
        endpoint = first.stdout.readline().strip()
        assert endpoint.startswith("http://127.0.0.1:") and second.stdout.readline().strip() == endpoint
        ready = tmp_path / f"server-{name}" / "ready"
        keeper = describe(json.loads(ready.read_text())["pid"])
        first.kill()
        first.wait()
        time.sleep(0.3)
        assert listens(endpoint)
        second.kill()
        second.wait()
        deadline = time.monotonic() + 20
        while listens(endpoint) or ready.exists() or not provably_dead(keeper):
            assert time.monotonic() < deadline, f"{name} is still running"
            time.sleep(0.05)
    finally:
        for each in (first, second):
            each.kill()
            each.wait()
            if each.stdout is not None:
                each.stdout.close()
