"""Which store, agent and epoch a command works with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from recall_cli.options import Globals
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.files import exists
from store.errors import LeaseNotHeld, NotFound, StoreEmpty, TokenMismatch, Unavailable
from store.opening import open_store
from store.text import check_agent
from store.views import View

if TYPE_CHECKING:
    from store.agent import Agent
    from store.backend import Acquired

T = TypeVar("T")


@contextmanager
def reading(here: Globals) -> Iterator[SqliteBackend]:
    """The store, opened so that looking does not touch it."""
    backend = SqliteBackend(here.directory, read_only=True, on_bad_record=here.out.warn)
    try:
        if backend.empty:
            here.out.warn(StoreEmpty(what="store", name="", path=backend.directory))
        yield backend
    finally:
        backend.close()


@contextmanager
def viewing(here: Globals, agent: str, at: int | None = None) -> Iterator[View]:
    """One agent to look at.

    Raises:
        NotFound: it has no records in this store.
    """
    check_agent(agent)
    with reading(here) as backend:
        require(backend, agent)
        yield View(backend, agent, at)


def require(backend: SqliteBackend, agent: str) -> None:
    """Raise NotFound unless the store knows the agent."""
    if backend.lease(agent) is None:
        hint = "list the agents with: recall agents list"
        if backend.remote() is not None:
            hint = f"if it is in the bucket, fetch it with: recall sync pull {agent}"
        raise NotFound(what="agent", name=agent, hint=hint)


@contextmanager
def writing(here: Globals) -> Iterator[SqliteBackend]:
    """The store, opened for writing; made if it is missing."""
    backend = open_store(here.directory, ship=here.ship or None, on_bad_record=here.out.warn)
    try:
        yield backend
    finally:
        backend.leave()


def write(here: Globals, agent: str, work: Callable[[Agent], T], *, needs_lease: str = "") -> T:
    """Do ``work`` under the session's lease (RECALL_LEASE), or under one taken for it alone.

    Args:
        needs_lease: why a lease of the moment is not enough, or "".

    Raises:
        LeaseNotHeld: it is not enough.
        LeaseHeld, Fenced: the lease is somebody else's, or lapsed.
    """
    from store.access import exported, once

    check_agent(agent)
    token = os.environ.get("RECALL_LEASE", "")
    if not token and needs_lease:
        raise LeaseNotHeld(
            agent=agent,
            why=f": {needs_lease}",
            hint=f'take one first: eval "$(recall resume {agent} --export --holder-pid $$)"',
        )
    if token:
        check_store_of_token(here)
    with writing(here) as backend:
        if token:
            return work(exported(backend, agent, token))
        with telling_if_new(here, backend, agent):
            return once(backend, agent, work)


@contextmanager
def telling_if_new(here: Globals, backend: SqliteBackend, agent: str) -> Iterator[None]:
    """Say so when the block has made the agent, since a misspelt name makes one too."""
    new = backend.lease(agent) is None
    yield
    lease = backend.lease(agent)
    if new and lease is not None and lease.epoch == 1:  # a later one came out of the bucket
        here.out.message(f"agent {agent} is new")


def tell_of_before(here: Globals, agent: Agent, acquired: Acquired) -> None:
    """Say once, on stderr, what a resumption found beside the log: in a store that ships."""
    before, lazy = acquired.previous, acquired.ship not in ("", "barrier")
    if acquired.elsewhere and before is not None and lazy and (acquired.ship == "off" or acquired.reason != "released"):
        here.out.message(
            f"{before.holder} had the lease in mode {acquired.ship}: calls may have run there that are not in the log"
        )
    applied, waiting = len(agent.taken_in.applied), agent.taken_in.waiting
    if applied:
        here.out.message(f"{applied} queued resolution{'s were' if applied > 1 else ' was'} carried out")
    if waiting:
        here.out.message(f"{waiting} queued resolution{'s wait' if waiting > 1 else ' waits'}: the call may be running")
    rejected = len(agent.taken_in.rejected)  # each was warned of
    if rejected:
        which = f"{rejected} queued resolution{'s were' if rejected > 1 else ' was'} set aside"
        here.out.message(which, f"recall aside list {agent.id} --remote")


@contextmanager
def working(here: Globals, agent_id: str) -> Iterator[tuple[SqliteBackend, Callable[[float], Agent]]]:
    """The store, and what gets the agent's lease for as long as the block lasts.

    That is the session's (RECALL_LEASE), or one taken for the block, waiting up
    to the given seconds for another holder. It is renewed in the background,
    so whoever forks does it first.
    """
    from store.access import exported
    from store.agent import Agent
    from store.keeper import Keeper, patiently
    from store.lease import DEFAULT_TTL_MS

    token = os.environ.get("RECALL_LEASE", "")
    if token:
        check_store_of_token(here)
    own: list[Agent] = []
    with writing(here) as backend:

        def take(wait: float) -> Agent:
            if token:
                return exported(backend, agent_id, token, background=True)
            keeper = Keeper(backend, agent_id, ttl_ms=DEFAULT_TTL_MS)
            patiently(keeper.acquire, wait)
            own.append(Agent(backend, agent_id, keeper))
            return own[0]

        try:
            yield backend, take
        finally:
            for agent in own:
                give_back(here, agent)


def give_back(here: Globals, agent: Agent) -> bool:
    """Release the lease of a process that ends now; False if it was lost."""
    try:
        return agent.release()
    except Unavailable as problem:
        # It is free anyway once this process is gone; what became of its work matters more.
        here.out.warn(problem)
        return True


def check_store_of_token(here: Globals) -> None:
    """Raise TokenMismatch if there is no store at all: a token never makes one."""
    directory = os.path.abspath(here.directory)
    if not exists(directory):
        raise TokenMismatch(what="store", reason=f"there is none in {directory}")


RUN_USED = "RECALL_RUN_USED"


def mark_run(run: str) -> None:
    """Tell the exec that we are in that a step of its run was met; it then ends the run when it ends well."""
    marker = os.environ.get(RUN_USED, "")
    if marker and run and run == os.environ.get("RECALL_RUN"):
        with suppress(OSError):  # exec is gone, or somebody tidied up; the file is never made here
            descriptor = os.open(marker, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, b".")
            os.close(descriptor)


def operate(here: Globals, agent: str, work: Callable[[Agent], T]) -> T:
    """Do an operator's ``work`` on an agent that exists, beside whoever acts for it."""
    from store.access import beside

    check_agent(agent)
    with reading(here) as backend:  # a wrong name must not make a store
        require(backend, agent)
    with writing(here) as backend:
        return beside(backend, agent, work, holder=f"operator:{os.getpid()}")


def operator() -> str:
    """Who is at the keyboard: ``user@host``, for the log."""
    import pwd

    from store.process import host_name

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without an entry for the number
        user = f"uid-{os.getuid()}"
    return f"{user}@{host_name()}"
