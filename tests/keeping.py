"""What the tests of verify, export, import, aside and doctor share: stores with a history, and ways to damage them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.lease import LeaseRequest
from store.process import this_process
from store.records import NEXT, TURN, Draft
from store.verify import Checked, Problem, Saved, verify


def fill(directory: Path, agent: str = "billing", *, turns: int = 3) -> None:
    """An agent with every kind of record, some of them with blobs, over two epochs."""
    with Client(local_dir=directory) as client:
        with client.resume(agent) as one:
            one.update_working_state(goal="Move billing to the v2 API", plan=["find", "migrate \u202e test"])
            one.set_pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "agent/wip"})
            one.store_output("x" * 50_000, ref="big")
            for number in range(turns):
                one.record_turn("assistant", f"turn {number} \x1b[31m é \u2028 \U0001f600")
            done = one.begin_action("search", "pure", {"q": 1})
            one.end_action(done.seq, "done", result="y" * 40_000)
            one.begin_action("send_email", "external", {"to": "a@example.org"})
        with client.resume(agent) as two:
            two.milestone("call sites found")
            two.remove_pointer("wip")
            two.record_turn("user", "z" * 30_000)


def set_aside(directory: Path, agent: str, keep: int, reason: str) -> None:
    """Switch the agent to a new branch after lsn ``keep``, and write two turns on it."""
    backend = SqliteBackend(directory)
    try:
        fence = backend.acquire(request(agent)).lease.fence
        backend.set_aside(fence, keep, reason)
        for text in ("after", "later"):
            backend.append(fence, [Draft(TURN, {"role": "user", "content": text}, seq=NEXT)])
        backend.release(fence)
    finally:
        backend.close()


def request(agent: str, incarnation: str = "0" * 32) -> LeaseRequest:
    return LeaseRequest(agent, incarnation, "test", this_process(), 60_000)


@contextmanager
def tampering(directory: Path) -> Iterator[sqlite3.Connection]:
    """A raw connection without the store's triggers; they are put back at the end."""
    connection = sqlite3.connect(directory / "recall.db")
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    yield connection
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()


def problems(directory: Path, *agents: str, head: Saved | None = None) -> list[str]:
    """What verify finds, as ``key: reason``."""
    backend = SqliteBackend(directory, read_only=True)
    try:
        found = verify(backend, agents, {agents[0]: [head]} if head else None)
        return [f"{each.key or each.lsn}: {each.reason}" for each in found if isinstance(each, Problem)]
    finally:
        backend.close()


def checked(directory: Path, agent: str) -> Checked:
    """What verify says at an agent's end."""
    backend = SqliteBackend(directory, read_only=True)
    try:
        return next(each for each in verify(backend, [agent]) if isinstance(each, Checked))
    finally:
        backend.close()


Tamper = Callable[[sqlite3.Connection], object]
