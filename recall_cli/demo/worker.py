"""The agent's program: started, killed, and started again just the same.

    python -m recall_cli.demo.worker STORE AGENT PORT with-resolver|without-resolver|without-records

It tells what it does as JSON lines on stdout, which the story reads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from recall_cli import Client
from recall_cli.demo.mail import message_id, send, was_seen
from recall_cli.exits import Exit
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import NeedsSettling
from store.values import Action

MAIL = {
    "to": "team@example.com",
    "subject": "Billing runs on the v2 API",
    "text": "All 12 call sites are migrated and the tests pass.",
}


def work(store: str, agent_id: str, port: int, *, ask: bool) -> int:
    """One life of the agent; returns its exit code."""
    with Client(local_dir=store) as client:
        asked = time.perf_counter()
        with client.resume(agent_id) as agent:
            context, took = agent.context, round((time.perf_counter() - asked) * 1000, 1)
            _tell("resumed", pid=os.getpid(), epoch=agent.epoch, at=time.time(), ms=took, briefing=context.briefing)
            if context.fresh:
                _begin_work(agent)
            if ask:
                report = agent.reconcile(_resolver(port))
                for action in report.closed:
                    _tell("settled", seq=action.seq, status=action.status, why=action.resolution)
            return _announce(agent, port)


def _begin_work(agent: Agent) -> None:
    agent.update_working_state(
        goal="Move billing to the v2 API",
        plan=["find call sites", "migrate them", "run the tests", "tell the team by email"],
    )
    agent.set_pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "agent/wip"})
    agent.record_turn("user", "Move billing to the v2 API, and tell the team when it is done.")
    agent.record_turn("assistant", "All 12 call sites are migrated and the tests pass; telling the team.")
    agent.milestone("tests pass", progress="12 of 12 files migrated")
    _tell("noted", state=2, pointers=1, turns=2)


def _announce(agent: Agent, port: int) -> int:
    try:
        action = agent.begin_action("send_email", "external", MAIL, step="tell-the-team")
    except NeedsSettling as problem:
        _tell("stuck", seq=problem.details["seq"], message=problem.message)
        return Exit.UNSETTLED
    if action.status == "started":
        _tell("began", seq=action.seq, key=action.key)
        send(port, **MAIL, message_id=message_id(action.key))
        action = agent.end_action(action.seq, "done", "the server said 250")
        _tell("sent", seq=action.seq)
    else:
        _tell("replayed", seq=action.seq, status=action.status)
    agent.milestone("the team knows", progress="finished")
    _tell("finished")
    return Exit.DONE


def _resolver(port: int) -> Callable[[Action], ActionEnd | None]:
    def ask(action: Action) -> ActionEnd | None:
        seen = was_seen(port, message_id(action.key))
        if seen is None:
            return None
        if seen:
            return ActionEnd("done", result="250 accepted", resolution="the mail server has the message with this key")
        return ActionEnd("abandoned", resolution="the mail server has no message with this key")

    return ask


def work_without_records(port: int) -> int:
    """The same job by a program that remembers nothing: all it can do is to do it again."""
    send(port, **MAIL, message_id=message_id(str(time.time_ns())))
    _tell("finished")
    return Exit.DONE


def _tell(event: str, **what: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Runs one life."""
    store, agent_id, port, mode = arguments
    if mode == "without-records":
        return work_without_records(int(port))
    return work(store, agent_id, int(port), ask=mode == "with-resolver")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
