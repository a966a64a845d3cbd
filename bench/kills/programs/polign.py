"""The agent on polign-recall: ``polign.py ordinary|durable|resolved``.

``polign.py start`` starts its server, ``person`` settles what the agent left to one.

A call is begun, carried out, recorded as a turn and then ended, in the order of
its makers' own integration for LangGraph: a resume lists what is open, not what
was ended, so that the turns have to tell what is done.
"""

from __future__ import annotations

import os
import sys
import time

from polign_recall import Action, ActionEnd, Client, RecallError, ResumedAgent
from world import CLASSES, ORDER, WAITING, World


def resumed(client: Client) -> ResumedAgent:
    """The agent; while the lease of one that was killed has not run out, it is asked for again."""
    for _ in range(600):
        try:
            return client.resume(os.environ["AGENT"], lease_ttl=float(os.environ["TTL"]))
        except RecallError as problem:
            if problem.code != "lease_held":
                raise
        time.sleep(0.1)
    raise SystemExit("the lease was not to be had in a minute")


def told(agent: ResumedAgent) -> set[str]:
    """The tools that are done, as the turns tell."""
    turns = [turn for turn in agent.recent_turns(200) if turn.role == "tool"]
    return {turn.name for turn in turns if not turn.content.startswith("failed: ")}


def ordinary(agent: ResumedAgent, world: World) -> int:
    """Tools that nobody records before they run."""
    done = told(agent)
    for tool in ORDER:
        if tool not in done:
            result = world.call(tool)
            agent.record_turn("tool", result, name=tool)
            world.reach(tool, "returned")
    return 0


def settle(agent: ResumedAgent, world: World, *, resolver: bool = False, person: bool = False) -> bool:
    """Settle what a crash left open, as far as that can be told. Returns whether anything stays open."""

    def ask(action: Action) -> ActionEnd | None:
        if action.class_ == "idempotent":
            return ActionEnd("done", world.call(action.tool, action.key), resolution="run again with its key")
        sent = world.sent(action.key) if person else world.asked(action.key) if resolver else None
        if sent is None:
            return None
        if sent:
            return ActionEnd("done", f"{action.tool} is done", resolution="it is in the outbox")
        return ActionEnd("failed", error="it is not in the outbox")

    return bool(agent.reconcile(ask).open)


def durable(agent: ResumedAgent, world: World, *, resolver: bool) -> int:
    """Each call is an action: recorded before it runs and closed after."""
    if settle(agent, world, resolver=resolver):
        return int(WAITING)
    done = told(agent)
    for tool in ORDER:
        if tool not in done:
            action = agent.begin_action(tool, CLASSES[tool], {"customer": "acme"})
            result = world.call(tool, action.key)
            agent.record_turn("tool", result, name=tool)
            agent.end_action(action.seq, "done", result=result)
            world.reach(tool, "returned")
    return 0


def main() -> int:
    """One life of the agent, or what a person does between two of them."""
    (setup,) = sys.argv[1:]
    if setup == "start":  # the server that its client starts outlives it
        Client(local_dir=os.environ["POLIGN_DIR"], agent=True, write=True).close()
        return 0
    world = World()
    if setup != "person":
        world.ready()
    with Client(local_dir=os.environ["POLIGN_DIR"], agent=True, write=True) as client, resumed(client) as agent:
        if setup == "person":
            return int(settle(agent, world, person=True))
        if setup == "ordinary":
            return ordinary(agent, world)
        return durable(agent, world, resolver=setup == "resolved")


if __name__ == "__main__":
    sys.exit(main())
