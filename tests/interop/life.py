"""A program of polign-recall's users, as they write it: an agent's whole life, and every error. Prints what it saw.

life.py command     Client(command=[recall, mcp, --write], agent=True)
life.py DIRECTORY   Client(local_dir=DIRECTORY): RECALL_BIN names our command
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

from polign_recall import ActionEnd, Client, RecallError

RECALL = os.environ["RECALL"]


def connect() -> Any:
    if sys.argv[1] == "command":
        return Client(command=[RECALL, "mcp", "--write"], agent=True, write=True)
    return Client(local_dir=sys.argv[1], agent=True, write=True)


def code(call: Callable[[], Any]) -> str:
    """The code that the client gives a refusal, or "" if there was none."""
    try:
        call()
    except RecallError as problem:
        return str(problem.code)
    return ""


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(each) for name, each in asdict(value).items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


seen: dict[str, Any] = {}
client = connect()
seen["server"] = client.server_version
agent = client.resume("a", token_budget=4000, lease_ttl=60, holder="life")
seen["fresh"] = [agent.context.fresh, agent.context.epoch, agent.lease_held]
agent.update_working_state(goal="g", plan=["one", "two"], step=1)
seen["state"] = plain(agent.update_working_state(progress="half", plan=[]))
seen["milestone"] = plain(agent.milestone("m", "three quarters"))
seen["history"] = [each.version for each in agent.working_state_history(2)]
seen["turn"] = plain(agent.record_turn("user", "hello", message_id="m1", brief="b"))
seen["large"] = plain(agent.record_turn("tool", "x" * 9000, "cat"))
seen["turns"] = [[each.seq, each.message_id] for each in agent.recent_turns(200)]
seen["output"] = plain(agent.store_output("whole", "t", "s"))
seen["fetched"] = plain(agent.fetch_output("out-3-1"))
seen["pointer"] = plain(agent.set_pointer("wip", "git_ref", {"branch": "b"}, "n"))
seen["pointers"] = [each.name for each in agent.pointers()]
agent.remove_pointer("wip")
seen["removed"] = [each.name for each in agent.pointers()]
action = agent.begin_action("send", "external", {"to": "x"})
seen["action"] = plain(action)
seen["pending"] = [each.seq for each in agent.pending_actions()]
seen["ended"] = plain(agent.end_action(action.seq, "done", {"id": 7}))
seen["spilled"] = plain(agent.begin_action("send", "external", "y" * 9000))
seen["context"] = plain(agent.refresh())

errors: dict[str, str] = {}
errors["closed"] = code(lambda: agent.end_action(action.seq, "failed"))
errors["missing action"] = code(lambda: agent.end_action(99, "failed"))
errors["missing output"] = code(lambda: agent.fetch_output("nope"))
errors["bad pointer"] = code(lambda: agent.set_pointer("p", "git_ref", {"repo": "r"}))
errors["resumed twice"] = code(lambda: client.resume("a"))
errors["bad agent"] = code(lambda: client.resume("a/b"))

other = connect()
errors["held"] = code(lambda: other.resume("a"))
deferred = other.resume("a", defer_lease=True)
seen["deferred"] = [deferred.lease_held, deferred.context.turn_seq, deferred.acquire()]
errors["not held"] = code(lambda: deferred.record_turn("user", "x"))
seen["released"] = [agent.release(), agent.release()]
seen["acquired"] = deferred.acquire()
deferred.record_turn("user", "after")
report = deferred.reconcile(lambda action: ActionEnd("done", "found it", resolution="looked"))
seen["reconciled"] = [[each.seq, each.status, each.result] for each in report.closed]
seen["after"] = [[each.role, each.content] for each in deferred.recent_turns(2)]
os.system(f"'{RECALL}' {os.environ.get('BREAK', '')} lease break -a a --reason test --yes >&2")
errors["lost"] = code(lambda: deferred.record_turn("user", "x"))
third = connect()
seen["third"] = third.resume("a").context.epoch > deferred.context.epoch
third.close()
errors["closed client"] = code(lambda: third.resume("a"))
fourth = connect()
seen["after close"] = fourth.resume("a").context.fresh  # closing released it
for each in (client, other, fourth):
    each.close()
seen["errors"] = errors
print(json.dumps(seen))
