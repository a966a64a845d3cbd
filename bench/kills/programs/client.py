"""The agent in Python, on Recall's own client: ``client.py ordinary|durable|resolved``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from bench.kills.programs.world import CLASSES, ORDER, WAITING, World, result_of
from recall_cli import Client
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import NeedsSettling
from store.values import Action

AGENT = os.environ["RECALL_AGENT"]


def ordinary(agent: Agent, world: World) -> int:
    """Tools that nobody records before they run: what is done is what the turns tell."""
    told = {turn.name for turn in agent.recent_turns(200) if turn.role == "tool"}
    for tool in ORDER:
        if tool not in told:
            result = world.call(tool)
            agent.record_turn("tool", result, name=tool)
            world.reach(tool, "returned")
    return 0


def durable(agent: Agent, world: World, *, resolver: bool) -> int:
    """Each call is an action: recorded before it runs and closed after."""

    def ask(action: Action) -> ActionEnd | None:
        sent = world.asked(action.key)
        if sent is None:
            return None
        if sent:
            return ActionEnd("done", result=result_of("email"), resolution="it is in the outbox")
        return ActionEnd("abandoned", resolution="it is not in the outbox")

    if resolver:
        agent.reconcile(ask)
    for tool in ORDER:
        try:
            action = agent.begin_action(tool, CLASSES[tool], {"customer": "acme"}, step=tool)
        except NeedsSettling:
            return WAITING
        if action.status == "started":
            agent.end_action(action.seq, "done", world.call(tool, action.key))
        elif action.result != result_of(tool):
            raise SystemExit(f"{tool} is said to have returned {action.result!r}")
        world.reach(tool, "returned")
    return 0


def main() -> int:
    """One life of the agent."""
    (setup,) = sys.argv[1:]
    world = World()
    world.ready()
    with Client() as client, client.resume(AGENT, lease_ttl=float(os.environ["TTL"]), wait=60) as agent:
        if setup == "ordinary":
            return ordinary(agent, world)
        return durable(agent, world, resolver=setup == "resolved")


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
