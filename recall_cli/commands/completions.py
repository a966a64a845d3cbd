"""``recall completions``: the scripts that make a shell complete this command."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from recall_cli.completions import script
from recall_cli.options import Globals, Verbs

app = Verbs()


class Shell(str, Enum):
    """The shells that have a script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.verb("completions")
def completions(
    ctx: typer.Context, shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
) -> None:
    """Print the completion script of a shell.

    It completes commands, options and files by itself, and asks the store for
    agents, steps, refs, pointers, tools and the numbers of actions. That reads
    only; the recall that it asks is the one on PATH.

    bash: recall completions bash > ~/.local/share/bash-completion/completions/recall

    zsh: recall completions zsh > a directory of your fpath, as the file _recall

    fish: recall completions fish > ~/.config/fish/completions/recall.fish
    """
    Globals.of(ctx).out.write(script(shell.value))
