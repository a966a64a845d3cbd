"""Whole processes: a write command and --help against an empty typer application and ``python -c pass``."""

from __future__ import annotations

import sys

from bench.measure import processes_ms, recall_command, row, scratch

EMPTY_TYPER = """
import typer
app = typer.Typer()
@app.command()
def main() -> None: pass
app()
"""


def main() -> None:
    recall = recall_command()
    with scratch() as directory:
        (directory / "empty.py").write_text(EMPTY_TYPER)
        taken = processes_ms(
            {
                "python -c pass": [sys.executable, "-c", "pass"],
                "an empty typer application": [sys.executable, str(directory / "empty.py")],
                "recall --help": [recall, "--help"],
                "recall turns add": [recall, "turns", "add", "-a", "a", "--role", "user", "hello"],
                "recall turns list": [recall, "turns", "list", "a"],
                "recall briefing": [recall, "briefing", "a"],
            },
            times=15,
            environ={"RECALL_DIR": str(directory / "store")},
        )
    yardstick = taken["an empty typer application"]
    for name, milliseconds in taken.items():
        goal = 1.4 if name == "recall turns add" else None
        row(name, f"{milliseconds:.1f} ms", milliseconds / yardstick, goal)


if __name__ == "__main__":
    main()
