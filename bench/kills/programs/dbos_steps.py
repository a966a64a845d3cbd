"""The agent as a DBOS workflow of three steps: ``dbos_steps.py steps``.

The workflow's id is what makes it one: started again it is the same workflow,
which launching has set to be recovered, and it is the idempotency key of the
steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dbos import DBOS, SetWorkflowID
from world import World

ID = "bill-acme"
world = World()


@DBOS.step()
def lookup() -> str:
    return str(world.call("lookup"))


@DBOS.step()
def invoice(key: str) -> str:
    return str(world.call("invoice", key))


@DBOS.step()
def email(key: str) -> str:
    return str(world.call("email", key))


@DBOS.workflow()
def bill() -> str:
    """What is left of the three steps; ``reach`` does nothing but let itself be killed."""
    lookup()
    world.reach("lookup", "returned")
    invoice(DBOS.workflow_id)
    world.reach("invoice", "returned")
    email(DBOS.workflow_id)
    world.reach("email", "returned")
    return "all is done"


def main() -> int:
    """One life of the agent."""
    path = Path(os.environ["RECALL_DIR"])
    path.mkdir(exist_ok=True)
    DBOS(config={"name": "biller", "system_database_url": f"sqlite:///{path}/dbos.sqlite", "log_level": "ERROR"})
    world.ready()
    DBOS.launch()
    with SetWorkflowID(ID):
        result = DBOS.start_workflow(bill).get_result()
    DBOS.destroy()
    return 0 if result == "all is done" else 1


if __name__ == "__main__":
    sys.exit(main())
