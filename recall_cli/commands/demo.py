"""``recall demo``: an agent is killed while it sends an email; one email is sent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from recall_cli.exits import Exit
from recall_cli.options import Globals, Verbs
from store.text import neutral

app = Verbs()


@app.verb("demo", exits=(Exit.UNAVAILABLE,))
def demo(
    ctx: typer.Context,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Settle by an operator's command instead of a resolver.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store, to look at it afterwards.")] = False,
) -> None:
    """Show it: an agent is killed while it sends an email, and one email is sent.

    Everything is real and happens now, in a temporary directory: processes, kill -9, a mail
    server on the loopback address, the store. It ends with 0 only if exactly one email was
    counted in each case and the records verify.
    """
    from recall_cli.demo import story
    from recall_cli.demo.ending import Ending

    out = Globals.of(ctx).out

    def tell(line: str) -> None:
        if not out.structured:
            shown = neutral(line)
            out.write((out.paint(shown, "bold") if shown[:1].isdigit() else shown) + "\n")
            out.flush()

    ending = Ending()
    with ending.watched(), _directory(keep) as directory:
        tell("An agent is killed in the middle of sending an email. The next process goes on from its records.")
        outcome = story.run(directory, tell, ending, by_hand=by_hand)
        out.document({**outcome.document(), "directory": str(directory) if keep else None}, tuple)
        if keep:
            out.message(f"kept the store {directory}", f"recall --dir {directory} briefing {story.AGENT}")
    if not outcome.ok:
        raise story.DemoFailed(reason="; ".join(outcome.problems))


@contextmanager
def _directory(keep: bool) -> Iterator[Path]:
    """A directory that goes with the block, unless it is to be kept."""
    directory = Path(tempfile.mkdtemp(prefix="recall-demo-"))
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
