"""What people on other machines decided about an agent's actions, left in the bucket for whoever acts for it.

Nobody but the holder of the lease writes to a log. So a person elsewhere
leaves a *resolution*, one immutable object; the holder, or the next one,
carries it out as it would its own operator's, its record cites the object's
id, and once that record is in the bucket the object is deleted. A crash in
between carries nothing out twice: the citation tells. What cannot be carried
out is set aside as evidence, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from store.actions import ActionEnd, TakenIn, already_closed
from store.clock import Clock, Random, rfc3339
from store.errors import (
    ActionClosed,
    ActionNotUnknown,
    BadRecord,
    InvalidInput,
    MayStillRun,
    NotFound,
    RecallError,
    StillRunning,
)
from store.records import CLOSED_STATUSES, compact
from store.shipping.bucket import Bucket
from store.value import value
from store.values import Action
from store.views import View

FORMAT = "recall.resolution/1"
REJECTED = "recall.rejected/1"
_ULID = re.compile("[0-9A-HJKMNP-TV-Z]{26}")
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: sorted as ASCII, and without I, L, O and U


class BadResolution(RecallError):
    """An object in an inbox that cannot be carried out, whatever the state of the action."""

    code = "bad_resolution"


@value
class Resolution:
    """An outcome that somebody elsewhere decided on.

    Attributes:
        key: the action's idempotency key, so that it cannot hit another action of the same number.
        status: ``done``, ``failed`` or ``abandoned``.
        reason, by: how that is known, and who says so.
        at: when it was queued, RFC 3339.
        force: also if the action may be running.
    """

    agent: str
    seq: int
    key: str
    status: str
    result: str = ""
    error: str = ""
    reason: str = ""
    by: str = ""
    at: str = ""
    force: bool = False

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps({"format": FORMAT, **compact(vars(self))}, ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def parse(body: bytes, agent: str) -> Resolution:
        """Read an object of ``agent``'s inbox; fields of a newer version are passed over.

        Raises:
            BadResolution: it is none, of a newer format, or of another agent.
        """
        try:
            found: Any = json.loads(body.decode())
            format_ = found["format"]
            if format_ != FORMAT:
                raise BadResolution(reason=f"it has the format {format_!r:.80}, and this recall reads {FORMAT}")
            texts = {name: _text(found.get(name, "")) for name in _TEXTS}
            seq, force = found["seq"], found.get("force", False)
            if isinstance(seq, bool) or not isinstance(seq, int) or not isinstance(force, bool):
                raise TypeError("seq or force")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
            raise BadResolution(reason=f"it cannot be read ({type(problem).__name__})") from problem
        if texts["agent"] != agent:
            raise BadResolution(reason=f"it is of agent {texts['agent']!r:.140}")
        if texts["status"] not in CLOSED_STATUSES:
            raise BadResolution(reason=f"its status is {texts['status']!r:.80}")
        return Resolution(seq=seq, force=force, **texts)

    def end(self) -> ActionEnd:
        """As the outcome of an action."""
        return ActionEnd(self.status, self.result, self.error, self.reason)


_TEXTS = ("agent", "key", "status", "result", "error", "reason", "by", "at")


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError("not a text")
    return found


def ulid(clock: Clock, random: Random) -> str:
    """A new id: 48 bits of time in milliseconds and 80 random ones, 26 digits that sort by time."""
    number = (clock.now().wall_us // 1000 & (1 << 48) - 1) << 80 | int(random.hex(20), 16)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -1, -5))


class Store(Protocol):
    """What an inbox needs of the store that ships."""

    clock: Clock
    random: Random
    store_id: str

    def shipped(self, agent: str) -> int:
        """Up to which lsn the bucket is known to have the agent's log."""
        ...


class Holder(Protocol):
    """The agent that carries resolutions out (``store.agent.Agent``)."""

    id: str
    view: View

    def resolve_action(self, seq: int, end: ActionEnd, *, by: str, force: bool = False, inbox: str = "") -> Action: ...


class BucketInbox:
    """The inboxes of a bucket's agents, from one store."""

    def __init__(self, store: Store, bucket: Bucket) -> None:
        self._store, self._bucket = store, bucket

    # -- for those who decide elsewhere ---------------------------------------------------

    def put(self, resolution: Resolution) -> str:
        """Leave a resolution for the agent's holder; its id.

        Raises:
            RemoteUnreachable, RemoteRefused: it is not known to be there.
        """
        name = ulid(self._store.clock, self._store.random)
        self._bucket.create(_key(resolution.agent, name), resolution.encode())
        return name

    def rejected(self, agent: str, name: str) -> str:
        """Why a resolution was set aside; "" if it was not."""
        found = self._bucket.get(_aside(agent, name))
        if found is None:
            return ""
        try:
            return _text(json.loads(found.body.decode())["reason"])
        except (ValueError, LookupError, TypeError):
            return "for a reason that cannot be read"

    # -- for the holder ---------------------------------------------------------------------

    def apply(self, agent: Holder, ship: Callable[[], None]) -> TakenIn:
        """Carry out what waits, in the order in which it was queued.

        Args:
            ship: brings the agent's log into the bucket; nothing is deleted before its record is there.

        Raises:
            LeaseLost: another acts for the agent; what was not shipped waits on.
            Unavailable: the bucket cannot be asked, or does not take the records; nothing is lost.
        """
        applied: list[Action] = []
        rejected: list[str] = []
        cited: dict[str, int] = {}  # by key, the lsn of the record that cites it
        waiting = 0
        for name, key in self._waiting(agent.id):
            found = self._bucket.get(key)
            if found is None:
                continue  # another process of this session was faster
            try:
                if not _ULID.fullmatch(name):
                    raise BadResolution(reason="its name is no id of a resolution")
                action, anew = _carry_out(agent, name, Resolution.parse(found.body, agent.id))
                cited[key] = agent.view.action_record(action.seq)[1].lsn
                applied += [action] if anew else []
            except (ActionNotUnknown, StillRunning, MayStillRun):
                waiting += 1
            except (BadResolution, NotFound, ActionClosed, BadRecord, InvalidInput) as problem:
                self._set_aside(agent.id, name, key, found.body, problem.message)
                rejected.append(f"a resolution of agent {agent.id} was set aside: {problem.message}")
        if cited:
            ship()
            reached = self._store.shipped(agent.id)
            for key, lsn in cited.items():
                if lsn <= reached:
                    self._bucket.delete(key)
        return TakenIn(tuple(applied), tuple(rejected), waiting)

    def _waiting(self, agent: str) -> Iterator[tuple[str, str]]:
        start = _key(agent, "").removesuffix(".json")
        # Whole before the first is deleted: a listing goes on from page to page.
        for each in list(self._bucket.list(start)):
            yield each.key.removeprefix(start).removesuffix(".json"), each.key

    def _set_aside(self, agent: str, name: str, key: str, body: bytes, reason: str) -> None:
        document = {
            "format": REJECTED,
            "reason": reason,
            "at": rfc3339(self._store.clock.now().wall_us),
            "by": self._store.store_id,
            "resolution": body.decode("utf-8", "replace"),
        }
        self._bucket.create(_aside(agent, name), json.dumps(document, ensure_ascii=False).encode())
        self._bucket.delete(key)


def _carry_out(agent: Holder, name: str, wanted: Resolution) -> tuple[Action, bool]:
    """The action with the outcome, and whether it got it now."""
    action = agent.view.action(wanted.seq)
    if action.key != wanted.key:
        raise BadResolution(reason=f"action {wanted.seq} is another call here than where it was decided")
    if action.inbox == name:
        return action, False  # before a crash
    if not action.open:
        raise already_closed(action)
    try:
        return agent.resolve_action(wanted.seq, wanted.end(), by=wanted.by, force=wanted.force, inbox=name), True
    except ActionClosed:
        action = agent.view.action(wanted.seq)
        if action.inbox != name:
            raise
        return action, False  # another process of this session was faster


def _key(agent: str, name: str) -> str:
    return f"agents/{agent}/inbox/{name}.json"


def _aside(agent: str, name: str) -> str:
    return f"agents/{agent}/aside/inbox-{name}.json"
