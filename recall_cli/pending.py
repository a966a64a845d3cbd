"""Which actions a command means."""

from __future__ import annotations

from collections.abc import Iterator

from recall_cli.look import every_lease, seconds_since
from store.backend import Backend
from store.clock import Instant
from store.records import ACTION
from store.running import stuck
from store.value import value
from store.values import Action
from store.views import View

MOST_SEQ = 2**53
_PAGE = 50


@value
class Filter:
    """What an action must be like; empty fields let everything through.

    Attributes:
        older_than, newer_than: seconds since it was started, or None.
        text: anywhere in its tool, step, arguments or outcome, in any case.
        stuck: only what needs a person, a resolver or a resumption (``store.running.stuck``).
    """

    class_: str = ""
    tool: str = ""
    older_than: float | None = None
    status: str = ""
    text: str = ""
    step: str = ""
    newer_than: float | None = None
    stuck: bool = False

    def lets(self, view: View, action: Action, now: Instant) -> bool:
        """Whether the action is one of those."""
        exact = (
            (self.class_, action.class_),
            (self.tool, action.tool),
            (self.status, action.status),
            (self.step, action.step),
        )
        if any(wanted and wanted != found for wanted, found in exact):
            return False
        if self.older_than is not None and age_of(action, now) < self.older_than:
            return False
        if self.newer_than is not None and age_of(action, now) > self.newer_than:
            return False
        if self.stuck and not is_stuck(view, action):
            return False
        if not self.text:
            return True
        wanted = self.text.casefold()
        texts = (action.tool, action.step, action.result, action.error, action.resolution, args_of(view, action))
        return any(wanted in each.casefold() for each in texts)


def pending(backend: Backend, agent: str, wanted: Filter) -> Iterator[tuple[View, Action]]:
    """Open actions of an agent, or of all with "", by agent and number."""
    now = backend.clock.now()
    after = (agent, 0)
    while True:
        page = backend.in_force(agent or None, ACTION, limit=_PAGE, after=after)
        for record in page:
            view = View(backend, record.agent)
            for action in view.each([record], Action.read):
                if wanted.lets(view, action, now):
                    yield view, action
        if len(page) < _PAGE:
            return
        after = (page[-1].agent, page[-1].seq)


def every(backend: Backend, agent: str, wanted: Filter) -> Iterator[tuple[View, Action]]:
    """Actions of an agent, or of all with "", by agent, the newest of each first."""
    now = backend.clock.now()
    for name in [agent] if agent else (lease.agent for lease in every_lease(backend)):
        view = View(backend, name)
        yield from ((view, action) for action in view.actions() if wanted.lets(view, action, now))


def is_stuck(view: View, action: Action) -> bool:
    """Whether an action waits for somebody to see to it."""
    backend = view.backend
    return stuck(backend.directory, action, backend.lease(view.agent), backend.clock.now())


def any_stuck(backend: Backend, agent: str) -> bool:
    """Whether an agent has such an action."""
    return next(pending(backend, agent, Filter(stuck=True)), None) is not None


def age_of(action: Action, now: Instant) -> float:
    """Seconds since it was started; 0 where that cannot be read."""
    return seconds_since(action.started_at, now) or 0.0


def args_of(view: View, action: Action) -> str:
    """The whole arguments, wherever they are kept; words that say so where they are gone or damaged."""
    return view.content(action.args_ref) if action.args_ref else action.args
