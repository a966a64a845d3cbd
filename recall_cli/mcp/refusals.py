"""Refusals as a model reads them: what was wrong, and which tool helps."""

from __future__ import annotations

from store.errors import RecallError

# Clients tell these by a substring of the text; nothing else may hold one of them.
_MATCHED = {"lease_held": "lease is held", "lease_lost": "lease was lost", "lease_not_held": "lease not acquired"}

# What to do where the engine's own hint names a command, which a model may have no shell for.
_HINTS = {
    "lease_held": "wait and try again; agent_context and agent_briefing read meanwhile",
    "lease_lost": "another process acts for the agent now; stop, or call agent_resume and go on from its briefing",
    "lease_expired": "call agent_acquire, and again what was refused",
    "lease_not_held": "call agent_acquire first",
    "agent_archived": "an operator ended it; only an operator can bring it back",
    "action_closed": "the first outcome stands; nothing was changed",
    "action_running": "if you know that nothing is running it any more, give force",
    "ref_taken": "choose another ref, or leave it out to get a free one",
    "store_missing": "there is nothing to read yet; the first agent_resume makes it",
    "store_moved": "somebody has to put it back, or to restart this server: tell your user",
    "not_shipped": (
        "it is recorded on this machine alone: make no call that relies on it, and tell your user that the bucket "
        "cannot be reached"
    ),
    "step_failed": "look what it left behind; if it may run again give retry_failed",
    "needs_settling": "find out whether it happened and settle it with resolve_action, then begin it again",
}
_LISTED = {"action": "pending_actions", "pointer": "list_pointers", "output": "agent_context", "agent": "list_agents"}


def refusal(problem: RecallError) -> str:
    """The text of a tool's error."""
    return guarded(_said(problem.message, _hint(problem)), problem.code)


def guarded(text: str, code: str = "") -> str:
    """The text, unless it quotes words that clients would take for a lease error that it is not."""
    for matched, words in _MATCHED.items():
        if matched != code:
            text = text.replace(words, words.replace(" ", "_"))
    return text


def _said(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message


def _hint(problem: RecallError) -> str:
    if problem.code == "not_found":
        listed = _LISTED.get(str(problem.details.get("what", "")))
        return f"see {listed}" if listed else ""
    return _HINTS.get(problem.code, problem.hint)
