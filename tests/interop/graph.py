"""A LangGraph program with durable tools, killed and run again: ``graph.py DIRECTORY resolver|none KILLS``.

KILLS is a list of [tool, point]. Each trial has a store and a world of its
own; the world is files, so it keeps what happened whatever becomes of the
program. Prints a list of what each trial came to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import InjectedToolArg, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from polign_recall import Action, ActionEnd, Client
from recall_langgraph import RecallResume

ORDER = ("lookup", "invoice", "email")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class World:
    """What the tools touch. An invoice is one file for each key, as a service does that knows idempotency keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "invoices").mkdir(parents=True, exist_ok=True)

    def add(self, name: str, line: str) -> None:
        with (self.path / name).open("a") as file:
            file.write(line + "\n")

    def lines(self, name: str) -> list[str]:
        path = self.path / name
        return path.read_text().splitlines() if path.exists() else []

    def invoices(self) -> int:
        return len(list((self.path / "invoices").iterdir()))


def program(world: World, store: Path, resolver: bool, fatal: tuple[str, str]) -> None:
    """One process of the agent: resume, do what is left, release. Killed where ``fatal`` says."""

    def around(name: str, effect: Any) -> str:
        if fatal == (name, "recorded"):
            kill()
        effect()
        if fatal == (name, "effect"):
            kill()
        return f"{name} is done"

    @tool
    def lookup(customer: str) -> str:
        """Look the customer up."""
        return around("lookup", lambda: world.add("lookups", customer))

    @tool
    def invoice(customer: str, idempotency_key: Annotated[str, InjectedToolArg] = "") -> str:
        """Write the invoice."""
        return around("invoice", (world.path / "invoices" / idempotency_key).touch)

    @tool
    def email(customer: str, idempotency_key: Annotated[str, InjectedToolArg] = "") -> str:
        """Send the email."""
        return around("email", lambda: world.add("emails", idempotency_key))

    def ask(action: Action) -> ActionEnd | None:
        sent = action.key in world.lines("emails")
        return (
            ActionEnd("done", "sent", resolution="outbox") if sent else ActionEnd("failed", error="not in the outbox")
        )

    options: dict[str, Any] = {"resolver": ask if resolver else None}
    if os.environ.get("RECALL_BIN"):
        resume = RecallResume("biller", local_dir=str(store), **options)
    else:
        command = [os.environ["RECALL"], "--dir", str(store), "mcp", "--write"]
        resume = RecallResume("biller", client=Client(command=command, agent=True, write=True), **options)
    classes = {"lookup": "pure", "invoice": "idempotent", "email": "external"}
    with resume:
        durable = resume.durable([lookup, invoice, email], classes=classes)

        def model(state: MessagesState) -> dict[str, Any]:
            """What a model does that has read its briefing: the next call that has no outcome, and none that waits."""
            resume.with_briefing(state["messages"])  # settles first, as for any model
            turns = resume.agent.recent_turns(200)
            results = {each.name for each in turns if each.role == "tool" and not each.content.startswith("failed")}
            waiting = {each.tool for each in resume.open_actions()}
            left = [name for name in ORDER if name not in results]
            done = [name for name in ORDER if name in results]
            if done and fatal == (done[-1], "returned"):
                kill()
            if not left or left[0] in waiting:
                return {"messages": [AIMessage("cannot go on" if left else "all is done")]}
            call = {"name": left[0], "args": {"customer": "acme"}, "id": f"call-{left[0]}-{len(turns)}"}
            return {"messages": [AIMessage("", tool_calls=[{**call, "type": "tool_call"}])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("record", resume.record_node)
        graph.add_node("tools", ToolNode(durable))
        graph.add_edge(START, "model")
        graph.add_edge("model", "record")
        graph.add_conditional_edges("record", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        graph.add_edge("tools", "model")
        final = graph.compile().invoke({"messages": [HumanMessage("bill acme", id="ask")]})
        pending = [each.tool for each in resume.open_actions()]
        answer = {"finished": final["messages"][-1].content == "all is done", "pending": pending}
    (world.path / "answer.json").write_text(json.dumps(answer))
    if resume._client is not None:
        resume._client.close()


def run(*arguments: Any) -> int:
    """The program in a process of its own, forked before it opens anything; how it ended, as ``Popen.returncode``."""
    child = os.fork()
    if not child:
        try:
            program(*arguments)
            os._exit(0)
        except BaseException:  # noqa: BLE001 (a forked child ends here, whatever happens)
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    base, resolver = Path(sys.argv[1]), sys.argv[2] == "resolver"
    trials = []
    for name, point in json.loads(sys.argv[3]):
        world, store = World(base / f"{name}-{point}" / "world"), base / f"{name}-{point}" / "store"
        killed = run(world, store, resolver, (name, point))
        again = run(world, store, resolver, ("", ""))
        assert again == 0, f"{name} {point}: the second run ended with {again}"
        trial = {"tool": name, "point": point, "killed": killed, "invoices": world.invoices()}
        trial |= {"emails": len(world.lines("emails")), "lookups": len(world.lines("lookups"))}
        trials.append({**trial, **json.loads((world.path / "answer.json").read_text())})
    print(json.dumps(trials))


main()
