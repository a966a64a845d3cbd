"""The ways to act on an agent without resuming it.

Nothing here settles what was interrupted: only a resumption does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from store.agent import Agent
from store.backend import Acquired, Backend
from store.errors import LeaseExpired, LeaseHeld, LeaseLost, LeaseNotHeld, TokenMismatch
from store.keeper import Keeper, patiently
from store.lease import DEFAULT_TTL_MS, Fence, LeaseRequest
from store.process import this_process
from store.running import may_be_acting

T = TypeVar("T")
_TRIES = 5
MOMENT = 2.0  # seconds that a write waits for somebody else's; parallel scripts and hooks are done well within


def once(backend: Backend, agent: str, work: Callable[[Agent], T], *, holder: str = "", archived: bool = False) -> T:
    """Take the lease, do ``work``, release. Another holder's is waited for, but only for a moment.

    Args:
        archived: whether an archived agent may be written to.

    Raises:
        LeaseHeld: somebody acts for the agent.
        AgentArchived: it was ended.
    """
    keeper = Keeper(backend, agent, ttl_ms=DEFAULT_TTL_MS, holder=holder, background=False)
    one = Agent(backend, agent, keeper)
    if not archived:
        one.refuse_archived()
    patiently(keeper.acquire, MOMENT)
    try:
        if not archived:
            one.refuse_archived()  # it may have been archived between the look and the lease
        return work(one)
    finally:
        keeper.release()


def exported(backend: Backend, agent: str, token: str, *, background: bool = False) -> Agent:
    """The agent as the shell session works on it whose token this is; each write renews its lease.

    Args:
        background: renew it in a thread too, for a process that runs for long.

    Raises:
        TokenMismatch: the token is of another store or agent.
    """
    fence = Fence.parse(token, agent=agent, store_id=backend.store_id)
    lease = backend.lease(agent)
    if lease is None or lease.lineage != fence.lineage:
        raise TokenMismatch(what="agent", reason=f"it is not of {agent}")
    if lease.incarnation == fence.incarnation and lease.epoch > fence.epoch:
        # Its holder let the lease lapse and took it again, with nobody in between: still the same actor.
        fence = lease.fence
    keeper = Keeper.adopt(backend, fence, renew=True)
    if background:
        keeper.renew_in_background(lease.ttl_ms)
    return Agent(backend, agent, keeper)


def beside(backend: Backend, agent: str, work: Callable[[Agent], T], *, holder: str = "") -> T:
    """An operator's write: under the holder's epoch while the agent is live, else under one of its own.

    Either way the record enters only with the lease's present epoch and
    incarnation, so nobody can write over it who does not know of it.
    """
    for left in range(_TRIES, 0, -1):
        lease = backend.lease(agent)
        here = not backend.ship or backend.granted_here(agent)  # else the row is a copy of what the bucket said
        try:
            if lease is None or not here or not may_be_acting(lease, backend.clock.now()):
                return once(backend, agent, work, holder=holder, archived=True)
            done = work(Agent(backend, agent, Keeper.adopt(backend, lease.fence, renew=False)))
            if backend.ship:
                backend.send(lease.fence)
            return done
        except (LeaseHeld, LeaseExpired, LeaseLost, LeaseNotHeld):
            if left == 1 or not here:  # the lease changed hands between our look and our write, each time
                raise
    raise AssertionError("unreachable")


def break_lease(backend: Backend, agent: str, *, by: str, why: str) -> Acquired:
    """Take the lease from whoever has it, under a new epoch, and release it at once.

    The old holder is fenced from then on; what it left open is settled by the
    next resumption. ``by`` and ``why`` are kept in the log.
    """
    process = this_process()
    incarnation = backend.random.hex(32)
    holder = f"operator:{process.host}:{process.pid}"
    request = LeaseRequest(agent, incarnation, holder, process, DEFAULT_TTL_MS, breaking=True, by=by, why=why)
    acquired = backend.acquire(request)
    backend.release(acquired.lease.fence)
    return acquired
