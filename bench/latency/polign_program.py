"""polign-recall's Python client: ``polign_program DIRECTORY``, under the Python that has it.

It runs the server that RECALL_BIN names: its own unless that is set, and
``recall mcp`` of Recall where it is, for the same client on both.
"""

from __future__ import annotations

import sys

from polign_recall import Client

from bench.latency.serving import AgentProgram, serve

if __name__ == "__main__":
    serve(AgentProgram(lambda: Client(local_dir=sys.argv[1], agent=True)))
