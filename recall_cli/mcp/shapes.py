"""Results as the published clients read them: these names, every field there, times in UTC."""

from __future__ import annotations

from typing import Any

from store.context import Context
from store.values import Action, Pointer, WorkingState, plain

_BEGUN = ("seq", "tool", "class", "key", "status", "args", "args_ref", "epoch", "started_at")
_ENDED = (*_BEGUN, "result", "result_ref", "error", "resolution", "ended_at")
_ONLY_IF_SET = ("step", "by", "retry_of", "retried_as", "notes")  # ours; the peer knows none of them


def action(value: Action) -> dict[str, Any]:
    """An action; one that is open has no fields of an outcome, but for why it is unknown."""
    values = plain(value)
    names = _BEGUN if value.status == "started" else _ENDED
    return {name: values[name] for name in names} | {name: values[name] for name in _ONLY_IF_SET if values[name]}


def state(value: WorkingState) -> dict[str, Any]:
    return plain(value, without=("is_milestone",))


def pointer(value: Pointer) -> dict[str, Any]:
    return plain(value, without=("removed",))


def context(value: Context) -> dict[str, Any]:
    """What ``agent_resume`` and ``agent_context`` tell."""
    return {
        "agent_id": value.agent_id,
        "fresh": value.fresh,
        "epoch": value.epoch,
        "lease_held": value.lease_held,
        "briefing": value.briefing,
        "pending_actions": [action(each) for each in value.pending_actions],
        "working_state": state(value.working_state),
        "pointers": [pointer(each) for each in value.pointers],
        "outputs": [plain(each) for each in value.outputs],
        "memories": [],
        "recent_turns": [plain(each) for each in value.recent_turns],
        "omitted": dict(value.omitted),
        "turn_seq": value.turn_seq,
        "token_budget": value.token_budget,
        "tokens": value.tokens,
    }
