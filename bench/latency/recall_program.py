"""Recall, in one Python process: ``recall_program DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.latency.serving import message, one_by_one, serve
from recall_cli import Client


class Recall:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.turns = self._states = self._action = 0
        self.operations = {
            "turn": self._turn,
            "state": self._state,
            "begin": self._begin,
            "end": self._end,
            "brief": self._brief,
        }

    def open(self) -> None:
        self._client = Client(local_dir=self._directory)
        self._agent = self._client.resume("a")
        self.turns = self._agent.context.turn_seq

    def close(self) -> None:
        self._client.close()

    def fill(self, until: int, deadline: float) -> None:
        one_by_one(self, until, deadline)

    def _turn(self) -> None:
        self.turns += 1
        self._agent.record_turn("assistant", message(self.turns))

    def _state(self) -> None:
        self._states += 1
        self._agent.update_working_state(progress=f"{self._states} files migrated")

    def _begin(self) -> None:
        self._action = self._agent.begin_action("send", "external", {"to": "x"}).seq

    def _end(self) -> None:
        self._agent.end_action(self._action, "done", "sent")

    def _brief(self) -> None:
        self._agent.refresh()


if __name__ == "__main__":
    serve(Recall(Path(sys.argv[1])))
