"""The agent as a LangGraph graph with a SQLite checkpointer: ``checkpointer.py ordinary|keyed``.

Model and tools are nodes; ``durability="sync"`` writes the checkpoint of each
before the next one starts. ``keyed`` gives the tools an idempotency key: the
id of the tool call, which the model's checkpoint holds before the tool runs.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from world import ORDER, World


def built(world: World, *, keyed: bool) -> Any:
    """The graph: a model that has been told which tools to call in which order, and the tools."""

    def tool(name: str) -> Any:
        def call(customer: str, call_id: Annotated[str, InjectedToolCallId]) -> str:
            return str(world.call(name, call_id if keyed else ""))

        return StructuredTool.from_function(call, name=name, description=f"The {name} of a customer")

    def model(state: MessagesState) -> dict[str, Any]:
        done = [each.name for each in state["messages"] if isinstance(each, ToolMessage)]
        if done:
            world.reach(done[-1], "returned")
        left = [name for name in ORDER if name not in done]
        if not left:
            return {"messages": [AIMessage("all is done")]}
        call = {"name": left[0], "args": {"customer": "acme"}, "id": uuid.uuid4().hex}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([tool(name) for name in ORDER]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph


def main() -> int:
    """One life of the agent."""
    (setup,) = sys.argv[1:]
    world = World()
    path = Path(os.environ["RECALL_DIR"])
    path.mkdir(exist_ok=True)
    world.ready()
    with SqliteSaver.from_conn_string(str(path / "checkpoints.sqlite")) as checkpointer:
        graph = built(world, keyed=setup == "keyed").compile(checkpointer=checkpointer)
        thread = {"configurable": {"thread_id": "biller"}}
        begun = checkpointer.get_tuple(thread) is not None
        asked = None if begun else {"messages": [HumanMessage("bill acme")]}
        state = graph.invoke(asked, thread, durability="sync")
        return 0 if state["messages"][-1].content == "all is done" else 1


if __name__ == "__main__":
    sys.exit(main())
