"""One life of the agent of the resume test: ``python -m bench.files.agent STORE AGENT SEED FILES``.

The work and its tools are those of ``examples/migrate``: a commit for each file
of the repository that it is started in, and a report by mail at the end. It tells where it is as JSON lines on stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.files.talk import Talk
from recall_cli import Client
from store.actions import ActionEnd
from store.agent import Agent
from store.values import Action

# Nothing else is imported: the size of this process is measured.
EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "migrate"
LONG_LOG = 4  # every so many files the whole suite is run, whose output is kept


def tell(event: str, **what: object) -> None:
    print(json.dumps({"event": event, **what}), flush=True)


def tool(*argv: object, key: str) -> str:
    """Run a tool; what it printed."""
    environ = {**os.environ, "RECALL_IDEMPOTENCY_KEY": key}
    command = [str(each) for each in argv]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout


def was_it_sent(action: Action) -> ActionEnd | None:
    """The resolver of the report. An edit is idempotent: it is just done again."""
    if action.step != "report":
        return None
    environ = {**os.environ, "RECALL_IDEMPOTENCY_KEY": action.key}
    code = subprocess.run([str(EXAMPLE / "was_sent.sh")], env=environ, check=False).returncode
    why = "the mail server was asked"
    return {0: ActionEnd("done", result="sent", resolution=why), 1: ActionEnd("abandoned", resolution=why)}.get(code)


class Migration:
    """The work of one life, from where the notes say that it stands."""

    def __init__(self, agent: Agent, seed: int, files: int) -> None:
        self._agent, self._seed, self._files = agent, seed, files
        self._messages = [agent.context.briefing]  # what a model would be given

    def _say(self, role: str, content: str, name: str = "", brief: str = "") -> None:
        self._agent.record_turn(role, content, name or None, brief=brief or None)
        self._messages.append(content)

    def work(self) -> None:
        agent = self._agent
        if agent.context.working_state.version == 0:
            agent.update_working_state(
                goal="Move every file under api/ to the v2 API, one commit each, then mail one report",
                plan=[f"migrate {Talk(self._seed, number).path}" for number in range(self._files)],
                decisions=["keep the order of arguments", "one commit for each file, so that each can be reverted"],
                progress=f"0 of {self._files} files migrated",
            )
            self._say("user", "Move every file under api/ to the v2 API, one commit each, then mail one report.")
        for number in range(agent.context.working_state.step, self._files):
            tell("file", n=number)
            self._file(number)
        tell("file", n=self._files)
        self._report()

    def _file(self, number: int) -> None:
        agent, talk = self._agent, Talk(self._seed, number)
        self._say("assistant", talk.thought("Reading"), brief=f"reads {talk.path}")
        with open(talk.path, encoding="utf-8") as file:
            source = file.read()
        self._say("tool", source, "read_file", brief=f"{talk.path}, {len(source):,} bytes")
        self._say("assistant", talk.thought("Migrating"))

        action = agent.begin_action("edit_file", "idempotent", {"path": talk.path}, step=f"migrate-f{number:02}")
        if action.status == "started":
            tell("began", n=number)
            done = tool(EXAMPLE / "migrate_file.sh", talk.path, key=action.key)
            agent.end_action(action.seq, "done", done)
        self._say("tool", talk.diff(), "edit_file", brief=f"{talk.path} is migrated and committed")

        tests = talk.tests(60)
        self._say("tool", tests, "run_tests", brief="60 tests passed")
        if number % LONG_LOG == LONG_LOG - 1:
            agent.store_output(talk.tests(200), tool="run_tests", summary="the whole suite: 200 tests passed")
        sha = tool("git", "rev-parse", "HEAD", key="").strip()
        agent.set_pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "main", "sha": sha})
        agent.update_working_state(progress=f"{number + 1} of {self._files} files migrated", step=number + 1)

    def _report(self) -> None:
        action = self._agent.begin_action("send_email", "external", {"to": "team@example.com"}, step="report")
        if action.status == "started":
            tell("began", n=self._files)
            commits = tool("git", "rev-list", "--count", "HEAD", key="").strip()
            tool(sys.executable, EXAMPLE / "send_report.py", commits, key=action.key)
            self._agent.end_action(action.seq, "done", "sent")
        self._agent.milestone("reported", progress="finished")


def main() -> None:
    store, agent_id, seed, files = sys.argv[1:]
    begun = time.perf_counter()
    with Client(local_dir=store) as client, client.resume(agent_id) as agent:
        tell("resumed", tokens=agent.context.tokens, ms=(time.perf_counter() - begun) * 1e3)
        agent.reconcile(was_it_sent)
        Migration(agent, int(seed), int(files)).work()
    tell("finished")


if __name__ == "__main__":
    main()
