"""What each tool does: checked arguments in, a JSON value out."""

from __future__ import annotations

from itertools import islice
from typing import Any

from recall_cli.mcp import shapes
from recall_cli.mcp.session import Session
from store.agent import Agent
from store.briefing_parts import DEFAULT_BUDGET, LEAST_BUDGET
from store.context import Context, read
from store.errors import NotFound
from store.keeper import Keeper
from store.lease import DEFAULT_TTL_MS
from store.text import check_agent
from store.values import plain

Args = dict[str, Any]


# -- the lease and the briefing ------------------------------------------------------------


def agent_resume(session: Session, args: Args) -> Any:
    options: Args = {name: args[name] for name in ("holder", "output_threshold", "defer_lease") if name in args}
    if "lease_ttl_seconds" in args:
        options["lease_ttl"] = args["lease_ttl_seconds"]
    agent = session.resume(args["agent_id"], token_budget=_budget(args), **options)
    return shapes.context(agent.context)


def agent_acquire(session: Session, args: Args) -> Any:
    agent = session.agent(args["agent_id"])
    if not agent.lease_held:
        session.take(agent)
    context = agent.refresh()
    pending = [shapes.action(each) for each in context.pending_actions]
    return {"acquired": True, "epoch": agent.epoch, "briefing": context.briefing, "pending_actions": pending}


def agent_release(session: Session, args: Args) -> Any:
    return {"released": session.release(args["agent_id"])}


def agent_context(session: Session, args: Args) -> Any:
    agent = session.held(args["agent_id"])
    return shapes.context(agent.refresh() if agent else _looked_at(session, args))


def agent_briefing(session: Session, args: Args) -> Any:
    context = _looked_at(session, args)
    omitted = {name: count for name, count in context.omitted.items() if count}
    return {"agent_id": context.agent_id, "briefing": context.briefing, "omitted": omitted, "tokens": context.tokens}


def _looked_at(session: Session, args: Args) -> Context:
    """An agent's context as somebody sees it who has no lease."""
    with session.viewing(args["agent_id"]) as view:
        nobody = Keeper(view.backend, view.agent, ttl_ms=DEFAULT_TTL_MS, background=False)
        return read(view, nobody, _budget(args))


def _budget(args: Args) -> int:
    """A budget too small for any briefing counts as the smallest, and 0 as none given; the result says which it was."""
    given: int = args.get("token_budget") or DEFAULT_BUDGET
    return max(given, LEAST_BUDGET)


# -- the working state ------------------------------------------------------------------------


def update_working_state(session: Session, args: Args) -> Any:
    fields = {name: value for name, value in args.items() if name != "agent_id"}
    return shapes.state(session.agent(args["agent_id"]).update_working_state(**fields))


def agent_milestone(session: Session, args: Args) -> Any:
    return shapes.state(session.agent(args["agent_id"]).milestone(args["name"], args.get("progress")))


def working_state_history(session: Session, args: Args) -> Any:
    with session.viewing(args["agent_id"]) as view:
        return [shapes.state(each) for each in view.states(args.get("limit", 20))]


# -- turns, outputs, pointers -------------------------------------------------------------------


def record_turn(session: Session, args: Args) -> Any:
    given: Args = {name: args.get(name) for name in ("role", "content", "name", "message_id", "brief")}
    return plain(session.agent(args["agent_id"]).record_turn(**given))


def recent_turns(session: Session, args: Args) -> Any:
    with session.viewing(args["agent_id"]) as view:
        return [plain(each) for each in view.turns(args.get("limit", 20), args.get("before_seq"))][::-1]


def store_output(session: Session, args: Args) -> Any:
    given: Args = {name: args.get(name) for name in ("content", "tool", "summary", "ref")}
    return plain(session.agent(args["agent_id"]).store_output(**given))


def fetch_output(session: Session, args: Args) -> Any:
    with session.viewing(args["agent_id"]) as view:
        output = plain(view.output(args["ref"]))
    if "offset" in args or "length" in args:
        whole = output["content"]
        start = args.get("offset", 0)
        output["content"] = whole[start : start + args.get("length", len(whole))]
        output["characters"] = len(whole)
    return output


def set_pointer(session: Session, args: Args) -> Any:
    given: Args = {name: args.get(name) for name in ("name", "type", "fields", "note")}
    return shapes.pointer(session.agent(args["agent_id"]).set_pointer(**given))


def remove_pointer(session: Session, args: Args) -> Any:
    try:
        session.agent(args["agent_id"]).remove_pointer(args["name"])
    except NotFound:
        return {"removed": args["name"], "was_set": False}
    return {"removed": args["name"], "was_set": True}


def list_pointers(session: Session, args: Args) -> Any:
    with session.viewing(args["agent_id"]) as view:
        return [shapes.pointer(each) for each in view.pointers(limit=1_000_000)[0]]


# -- actions -----------------------------------------------------------------------------------------


def begin_action(session: Session, args: Args) -> Any:
    options = {name: args[name] for name in ("step", "retry_failed") if name in args}
    agent = session.agent(args["agent_id"])
    return shapes.action(agent.begin_action(args["tool"], args["class"], args.get("args"), **options))


def end_action(session: Session, args: Args) -> Any:
    given = [args.get(name) for name in ("result", "error", "resolution")]
    return shapes.action(session.agent(args["agent_id"]).end_action(args["seq"], args["status"], *given))


def pending_actions(session: Session, args: Args) -> Any:
    with session.viewing(args["agent_id"]) as view:
        return [shapes.action(each) for each in view.pending(args.get("limit"), args.get("after_seq", 0))]


def resolve_action(session: Session, args: Args) -> Any:
    from recall_cli.resolving import perhaps_running
    from recall_cli.session import operator
    from store.access import beside
    from store.actions import ActionEnd

    agent_id, seq, force = args["agent_id"], args["seq"], args.get("force", False)
    end = ActionEnd(args["status"], args.get("result") or "", args.get("error") or "", args["reason"])
    with session.viewing(agent_id) as view:  # a wrong name must not make an agent
        action = view.action(seq)
        problem = None if force or not action.open else perhaps_running(view, action)
    if problem is not None:
        raise problem

    def work(agent: Agent) -> Any:
        return agent.resolve_action(seq, end, by=args.get("by") or operator(), force=force)

    return shapes.action(beside(session.client.backend, agent_id, work, holder="operator:mcp"))


# -- the store ---------------------------------------------------------------------------------------


def list_agents(session: Session, args: Args) -> Any:
    from recall_cli.look import agent_row, every_lease

    limit, match = args.get("limit", 50), args.get("match", "")
    with session.reading() as backend:
        now = backend.clock.now()
        fitting = (lease for lease in every_lease(backend) if match in lease.agent)
        rows = [agent_row(backend, lease, now) for lease in islice(fitting, limit)]
        left = sum(1 for _ in fitting)
    return {"agents": [{"agent_id": row.pop("agent"), **row} for row in rows], "omitted": left}


def verify(session: Session, args: Args) -> Any:
    from store.verify import Checked, verify

    wanted = [check_agent(args["agent_id"])] if "agent_id" in args else []
    agents: list[Any] = []
    problems: list[Any] = []
    with session.reading(apart=True) as backend:
        for each in verify(backend, wanted):
            row = plain(each)
            row["agent_id"] = row.pop("agent")
            (agents if isinstance(each, Checked) else problems).append(row)
    shown = problems[:100]
    return {"ok": not problems, "agents": agents, "problems": shown, "omitted": len(problems) - len(shown)}
