"""The ``recall`` command on machines that ship: one directory a machine, credentials of the test servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from store.access import once
from store.backends.sqlite import SqliteBackend
from store.records import TURN
from store.shipping.attaching import attach
from store.shipping.bucket import DEFAULT, Location
from store.shipping.s3 import S3Bucket
from tests.conftest import Ended, Run
from tests.keeping import problems
from tests.shipping.servers import CREDENTIALS


class Machines:
    """``machines("a", "turns", "list", "bot")`` runs it on machine a."""

    def __init__(self, run: Run, base: Path, location: Location | None) -> None:
        self._run, self.base = run, base
        self._location = location

    @property
    def location(self) -> Location:
        """The place of all."""
        assert self._location is not None
        return self._location

    def delete(self, key: str) -> None:
        """Delete an object, as a person could who should not."""
        S3Bucket.open(self.location).delete(key)

    def directory(self, name: str) -> Path:
        return self.base / name

    def __call__(
        self, name: str, *words: str, env: Mapping[str, str | None] | None = None, code: int = 0, timeout: float = 60
    ) -> Ended:
        """The command's end; with another exit code than ``code`` the test fails with what it said."""
        done = self._run(*words, env={**variables(self.directory(name)), **(env or {})}, timeout=timeout)
        assert done.code == code, f"recall {' '.join(words)}: {done.code}\n{done.out}\n{done.err}"
        assert "Traceback" not in done.err
        return done

    def json(self, name: str, *words: str, code: int = 0, env: Mapping[str, str | None] | None = None) -> Any:
        """What it printed under --json."""
        return json.loads(self(name, "--json", *words, code=code, env=env).out)

    def attach(self, name: str, *options: str, code: int = 0) -> Ended:
        """Attach a machine to the place of all."""
        there = ("--endpoint-url", self.location.endpoint_url, "--region", self.location.region)
        return self(name, "remote", "attach", self.location.url, *there, *options, code=code)

    def prepare(self, *names: str, turns: int = 1) -> None:
        """Machines that are attached, by the engine itself; the first has an agent with so many turns."""
        for name in names:
            with SqliteBackend(self.directory(name)) as store:
                for number in range(turns if name == names[0] else 0):
                    once(store, "bot", lambda it, number=number: it.record_turn("user", f"turn {number}"))  # type: ignore[misc]
                attach(store, self.location, connected=(S3Bucket.open(self.location), DEFAULT))

    def cut(self, name: str) -> None:
        """From now on a machine does not reach the bucket: nobody listens where it looks for it."""
        with SqliteBackend(self.directory(name)) as store:
            remote = store.remote()
            assert remote is not None
            there = json.dumps({**json.loads(remote.location), "endpoint_url": "http://127.0.0.1:9"})
            store.shipping(lambda ledger: ledger.put_remote(replace(remote, location=there)))

    def write(self, name: str, text: str, agent: str = "bot", **options: Any) -> Ended:
        """Record a turn."""
        return self(name, "turns", "add", "-a", agent, "--role", "user", text, **options)

    def texts(self, name: str, agent: str = "bot") -> list[str]:
        """The turns that a machine has, oldest first."""
        with SqliteBackend(self.directory(name), read_only=True) as store:
            return [json.loads(each.body)["content"] for each in reversed(store.tail(agent, TURN, limit=100))]

    def sound(self, *names: str) -> bool:
        """Whether verify finds nothing wrong with these machines' stores."""
        return [found for name in names for found in problems(self.directory(name))] == []


def variables(directory: Path) -> dict[str, str]:
    """What a process needs in its environment to be the machine in that directory."""
    return {**CREDENTIALS, "RECALL_DIR": str(directory)}
