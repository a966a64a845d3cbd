"""Going back to what an agent noted at an earlier point, without taking anything back.

The log never gets shorter. The working state and the pointers of then are
written again as new records. Actions, steps and keys stay as they are: what
was done in the world since is still done, and is never done again for this.
"""

from __future__ import annotations

from dataclasses import replace

from store.agent import Agent
from store.backend import Backend
from store.errors import InvalidInput
from store.records import POINTER, WORKING_STATE, Draft, Expect
from store.value import value
from store.values import Pointer, WorkingState
from store.views import View


@value
class Rewind:
    """What going back writes.

    Attributes:
        at: the lsn whose notes they are.
        version: the version of the working state at that time; 0 if there was none, or it is the present one.
        pointers: those of then that are gone or different now, by name.
        later: the names of those that were set since, and stay.
    """

    agent: str
    at: int
    version: int
    pointers: tuple[str, ...]
    later: tuple[str, ...]

    @property
    def empty(self) -> bool:
        return not self.version and not self.pointers


def rewind_plan(backend: Backend, agent: str, at: int) -> Rewind:
    """What going back to an lsn would write.

    Raises:
        InvalidInput: the log does not have that lsn (any more).
    """
    with backend.reading():
        state, pointers, later = _then(backend, agent, at)
    return Rewind(agent, at, state.version if state else 0, tuple(each.name for each in pointers), later)


def rewind(one: Agent, backend: Backend, at: int) -> Rewind:
    """Write the working state and the pointers of an earlier lsn again, in one step."""
    done: list[Rewind] = []

    def attempt() -> tuple[list[Draft], list[Expect]]:
        done.clear()
        state, pointers, later = _then(backend, one.id, at)
        done.append(Rewind(one.id, at, state.version if state else 0, tuple(each.name for each in pointers), later))
        drafts = [Draft(POINTER, {**each.body(), "restored": at}, name=each.name) for each in pointers]
        expected: list[Expect] = []
        if state is not None:
            counters = backend.counters(one.id)
            new = replace(
                state,
                version=counters.version + 1,
                turn_seq=counters.turns,
                action_seq=counters.actions,
                updated_at=one._now(),
                is_milestone=False,
            )
            drafts.append(Draft(WORKING_STATE, {**new.body(), "restored": at}, seq=new.version))
            expected.append(Expect(WORKING_STATE, 0, seq=new.version))
        return drafts, expected

    one._append(attempt)
    return done[0]


def _then(backend: Backend, agent: str, at: int) -> tuple[WorkingState | None, list[Pointer], tuple[str, ...]]:
    """The state of then unless it is the present one, the pointers of then that differ, and those set since."""
    record = next(backend.log(agent, after=at - 1, limit=1), None) if at > 0 else None
    if record is None or record.lsn != at:
        first = next(backend.log(agent, limit=1), None)
        last = backend.counters(agent).lsn
        reason = f"the log of {agent} has no lsn {at}: it goes from {first.lsn if first else 0} to {last}"
        raise InvalidInput(field="--at", reason=reason, hint=f"look for it with: recall log {agent} --all")
    then, now = View(backend, agent, at), View(backend, agent)
    state, present = then.working_state(), now.working_state()
    same = not state.version or state.version == present.version
    before = {each.name: each for each in then.pointers(1_000_000)[0]}
    after = {each.name: each for each in now.pointers(1_000_000)[0]}
    changed = [each for name, each in before.items() if name not in after or after[name].body() != each.body()]
    return (None if same else state), changed, tuple(sorted(set(after) - set(before)))
