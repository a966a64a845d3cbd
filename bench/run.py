"""``recall run`` as whole processes: a command as a step, and a replayed one, against an empty typer application."""

from __future__ import annotations

import sys

from bench.measure import processes_ms, recall_command, row, scratch
from bench.startup import EMPTY_TYPER

GOALS = {"recall run -- true": 1.6, "recall run of a step that is done": 1.4}


def main() -> None:
    recall = recall_command()
    with scratch() as directory:
        (directory / "empty.py").write_text(EMPTY_TYPER)
        step = [recall, "run", "-a", "a", "--class", "external", "--step", "s", "--", "true"]
        taken = processes_ms(
            {
                "an empty typer application": [sys.executable, str(directory / "empty.py")],
                "true, without recall": ["true"],
                "recall run -- true": [recall, "run", "-a", "a", "--class", "pure", "--", "true"],
                "recall run of a step that is done": step,
                "recall exec -- true": [recall, "exec", "a", "--", "true"],
            },
            times=15,
            environ={"RECALL_DIR": str(directory / "store")},
        )
    yardstick = taken["an empty typer application"]
    for name, milliseconds in taken.items():
        row(name, f"{milliseconds:.1f} ms", milliseconds / yardstick, GOALS.get(name))


if __name__ == "__main__":
    main()
