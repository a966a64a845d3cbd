"""The Python front door: a store, and the agents resumed from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from store.agent import Agent
from store.backend import Acquired
from store.briefing_parts import DEFAULT_BUDGET
from store.clock import Clock, Random
from store.errors import BadRecord, InvalidInput, LeaseHeld, RecallError
from store.keeper import Event, Keeper, patiently
from store.lease import DEFAULT_TTL_MS, check_ttl
from store.opening import open_store
from store.place import store_directory
from store.text import check_agent, check_seconds, check_text, quoted
from store.writer import OUTPUT_THRESHOLD


class Client:
    """One store, opened for writing. Thread-safe; close it, or use it as a context manager.

    Where RECALL_REMOTE names a bucket, a store that was never used is attached to it first.

    Args:
        local_dir: the store's directory, made if missing; RECALL_DIR or the
            user's data directory unless given.
        agent: accepted for programs written for the peer; agents are always on.
        ship: of a store that is attached to a bucket: ``barrier``, where the bucket has the intent
            before a tool runs; ``lazy`` or ``off``. RECALL_SHIP unless given.
        lock_timeout: the most seconds that a write waits for other writers.
        on_bad_record: told of each stored record that cannot be read.
        clock, random: the machine's unless given.

    Raises:
        Unavailable, Corrupt: the store cannot be used; the message says why.
    """

    def __init__(
        self,
        *,
        local_dir: str | os.PathLike[str] | None = None,
        agent: bool = True,
        ship: str | None = None,
        lock_timeout: float = 30.0,
        on_bad_record: Callable[[BadRecord], None] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        directory = store_directory() if local_dir is None else _check_directory(local_dir)
        self.backend = open_store(
            directory,
            ship=ship,
            background=True,
            clock=clock,
            random=random,
            lock_timeout=check_seconds("lock_timeout", lock_timeout),
            on_bad_record=on_bad_record or _log_bad_record,
        )
        self._resumed: set[Agent] = set()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(
        self,
        agent_id: str,
        *,
        token_budget: int | None = None,
        lease_ttl: float | None = None,
        holder: str | None = None,
        output_threshold: int | None = None,
        defer_lease: bool = False,
        wait: float = 0.0,
        on_lease: Callable[[Event, int], None] | None = None,
    ) -> Agent:
        """Resume an agent: take its lease, settle what was interrupted, read its briefing.

        Args:
            token_budget: of the briefing, 8,000 unless given, at least 512.
            lease_ttl: seconds that the lease lasts without a renewal, 60 unless
                given; a thread renews it at each third.
            holder: the name that others see; ``host:pid:8 hex`` unless given.
            output_threshold: tokens above which texts become outputs, 2,000
                unless given; negative: never.
            defer_lease: read now, take the lease later with ``acquire``.
            wait: seconds to wait for another holder to finish; infinity: for as long as it takes.
            on_lease: told ``acquired``, ``again`` (it lapsed and was taken
                again under a new epoch) or ``lost``, with the epoch; may be
                called from the renewing thread. What it raises is logged, and changes nothing.

        Raises:
            LeaseHeld: another process acts for the agent, and did so for ``wait`` seconds.
        """
        check_agent(agent_id)
        wait = check_seconds("wait", wait)
        keeper = Keeper(
            self.backend,
            agent_id,
            ttl_ms=DEFAULT_TTL_MS if lease_ttl is None else check_ttl(lease_ttl),
            holder=check_holder(holder),
            on_event=on_lease or _log_lease,
        )
        agent = Agent(
            self.backend,
            agent_id,
            keeper,
            token_budget=DEFAULT_BUDGET if token_budget is None else token_budget,
            output_threshold=OUTPUT_THRESHOLD if output_threshold is None else _check_threshold(output_threshold),
        )
        try:
            if not defer_lease:
                take(agent, wait)
            agent.refresh()
        except BaseException as problem:
            if isinstance(problem, LeaseHeld):
                problem.hint = f"wait for it with wait=SECONDS; who it is: recall lease show {agent_id}"
            with suppress(RecallError):
                agent.release()  # nobody else could: the caller has no agent to release
            raise
        self._resumed.add(agent)
        agent.on_release = self._resumed.discard
        return agent

    def close(self) -> None:
        """Release what is held and give back the store's files; safe to call twice.

        Raises:
            NotShipped: the store ships, and the bucket could not be given everything; it is stored here.
        """
        problems = []
        try:
            for agent in list(self._resumed):
                try:
                    agent.release()
                except RecallError as problem:
                    problems.append(problem)  # the others are to be freed all the same
        finally:
            self.backend.close()
        if problems:
            raise problems[0]


def take(agent: Agent, wait: float) -> Acquired:
    """Acquire and settle, waiting up to ``wait`` seconds while somebody else holds the lease.

    Raises:
        LeaseHeld: they still do.
    """
    return patiently(agent.take, wait)


def check_holder(holder: str | None) -> str:
    """A holder's name, or "" for the default. Raises InvalidInput."""
    return check_text("holder", holder, limit=200, empty=False) if holder is not None else ""


def _check_directory(path: object) -> str:
    """A directory's path as text, or InvalidInput."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise InvalidInput(field="local_dir", reason=f"must be a path, not {quoted(path)}")
    if not path or "\0" in path:
        raise InvalidInput(field="local_dir", reason="must not have a NUL" if path else "must not be empty")
    return path


def _check_threshold(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field="output_threshold", reason="must be a whole number of tokens")
    return value


def _log_bad_record(problem: BadRecord) -> None:
    import logging

    logging.getLogger("recall").warning("%s", problem.message)


def _log_lease(event: Event, epoch: int) -> None:
    if event != "acquired":
        import logging

        said = {"again": "lapsed, and was acquired again as", "lost": "was lost with"}
        logging.getLogger("recall").warning("the lease %s epoch %d", said[event], epoch)
