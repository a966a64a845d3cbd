"""What a resumed process starts from: the briefing and its parts, read at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from store.briefing import render
from store.keeper import Keeper
from store.value import value
from store.values import Action, OutputRef, Pointer, Turn, WorkingState
from store.views import View


@value
class Context:
    """What a process resumes from.

    Attributes:
        fresh: the agent has nothing to go on from.
        briefing: the text for the model.
        epoch: of the lease, 0 while it is deferred.
        lease_held: whether this process may write.
        pending_actions: unfinished ones, oldest first, at most 20; ``agent.pending_actions()`` lists all.
        omitted: how much the briefing left out, by kind.
        tokens: the briefing's size; at most ``token_budget``.
    """

    agent_id: str
    fresh: bool
    briefing: str
    epoch: int = 0
    lease_held: bool = True
    pending_actions: tuple[Action, ...] = ()
    working_state: WorkingState = field(default_factory=WorkingState)
    pointers: tuple[Pointer, ...] = ()
    outputs: tuple[OutputRef, ...] = ()
    recent_turns: tuple[Turn, ...] = ()
    omitted: Mapping[str, int] = field(default_factory=dict)
    turn_seq: int = 0
    token_budget: int = 0
    tokens: int = 0


def read(view: View, keeper: Keeper, budget: int) -> Context:
    """The context of an agent, for the actor that the keeper keeps the lease for."""
    parts = view.parts(budget, viewer=keeper.incarnation if keeper.held else "")
    briefing = render(parts, budget)
    return Context(
        agent_id=view.agent,
        fresh=parts.fresh,
        briefing=briefing.text,
        epoch=keeper.epoch,
        lease_held=keeper.held,
        pending_actions=parts.pending,
        working_state=parts.working_state,
        pointers=parts.pointers,
        outputs=parts.outputs,
        recent_turns=parts.turns,
        omitted=briefing.omitted,
        turn_seq=parts.turns_total,
        token_budget=briefing.budget,
        tokens=briefing.tokens,
    )
