"""``recall verify --remote``, ``prune`` and ``sync collect`` on a store that ships."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Run
from tests.shipping.machines import AGENT, attach, machine, resumed
from tests.shipping.servers import CREDENTIALS, Server


def test_the_bucket_is_verified_pruned_and_collected(
    environment: dict[str, str], run_recall: Run, server: Server
) -> None:
    """The commands work on a store that ships, over HTTP; damage is exit 9 and named."""
    place = server.location()
    directory = Path(environment["RECALL_DIR"])
    attach(directory, place)
    backend = machine(directory, place)
    for number in range(3):
        one = resumed(backend, AGENT)
        for _ in range(8):
            one.record_turn("user", f"{number} " + "x" * 15_000)
        one.release()
    bucket = backend.shipper.bucket
    backend.close()

    sound = run_recall("verify", "--remote", env=CREDENTIALS)
    assert sound.code == 0, sound.err
    assert "that nothing needs, the same here up to lsn" in sound.out
    ended = run_recall("prune", AGENT, "--before", "0s", "--yes", "--json", env=CREDENTIALS)
    assert ended.code == 0, ended.err
    checked = json.loads(run_recall("verify", "--remote", AGENT, "--jsonl", env=CREDENTIALS).out)
    assert (checked["problems"], checked["base"]) == (0, json.loads(ended.out)["base"])
    assert checked["unreferenced"] > 0
    young = run_recall("sync", "collect", "--dry-run", "--json", env=CREDENTIALS)
    assert young.code == 0, young.err
    assert [(each["agent"], each["objects"]) for each in json.loads(young.out)] == [(AGENT, 0)]

    (segment, *_) = [each.key for each in bucket.list(f"agents/{AGENT}/seg/")][-1:]
    bucket.delete(segment)
    damaged = run_recall("verify", "--remote", env=CREDENTIALS)
    assert damaged.code == 9
    assert f"{segment.removeprefix(f'agents/{AGENT}/')} is missing" in damaged.out
