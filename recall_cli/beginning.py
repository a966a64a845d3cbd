"""Beginning a call from the command line, and giving it up where its intent is not known to be in the bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recall_cli.options import Globals
from recall_cli.values import json_document
from store.errors import LeaseExpired, Unavailable
from store.text import quoted
from store.values import Action

if TYPE_CHECKING:
    from store.agent import Agent


class NotStarted(Unavailable):
    """A call must not start before its intent survives the machine, and that is not known."""

    code = "not_started"
    template = "{call} was not started, and action {seq} is {left}: {reason}"


def begun(agent: Agent, call: str, begin: Callable[[], Action]) -> Action:
    """The action that ``begin`` began.

    A program would begin the step again, which sends the same record; a
    command ends, so it ends the action too, and the next one is a new attempt.

    Args:
        call: what was to be called, for messages.

    Raises:
        NotStarted: the intent is stored, but not known to be where it has to be.
    """
    try:
        return begin()
    except Unavailable as problem:
        if not isinstance(problem.partial, Action):
            raise  # nothing was recorded
        seq = problem.partial.seq
        left = "abandoned"
        try:
            agent.end_action(seq, "abandoned", resolution="its intent did not reach the bucket; it was not started")
        except Unavailable:
            pass  # the end is stored; the bucket gets it with the intent, or neither
        except LeaseExpired:  # the lease lapsed while the bucket was waited for
            left = "left open"
        raise NotStarted(
            call=quoted(call), reason=problem.message, seq=seq, left=left, hint=problem.hint, partial=problem.partial
        ) from problem


_PLAIN = "arguments that start with { or [ must be JSON; as plain text, put a word before them"


def arguments(here: Globals, given: str) -> Any:
    """What a call is given, as --args has it: JSON, or plain text. Raises InvalidInput."""
    text = here.values.read("--args", given)
    return json_document("--args", text, hint=_PLAIN) if text.lstrip()[:1] in ("{", "[") else text
