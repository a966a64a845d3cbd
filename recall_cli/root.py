"""The root group, answered from the static table of ``app.py``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer._click.core import Command as ClickCommand
from typer._click.core import Context as ClickContext
from typer._click.core import Parameter
from typer._click.formatting import HelpFormatter
from typer.core import TyperOption

from recall_cli.app import ACT, COMMANDS, KEEP, LOOK, SHIP, SPEAK
from recall_cli.options import Globals, Group, Noun, Verbs

_HELP = """Durable memory for AI agents: what an agent did, kept in a directory, so that the next process can go on.

The agent is named by argument, by --agent or by RECALL_AGENT. Data is printed on
stdout and everything else on stderr. A list is a table on a terminal; in a pipe
each thing is one line, its fields between tabs, without a heading, and times exact.
"""


class Root(Group):
    """Lists commands without importing them, and imports one module for the one that runs."""

    def list_commands(self, ctx: ClickContext) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: ClickContext, cmd_name: str) -> ClickCommand | None:
        if cmd_name not in self.commands:
            if cmd_name not in COMMANDS:
                return None
            self.commands[cmd_name] = load(cmd_name)
        return self.commands[cmd_name]

    def format_commands(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for panel in (LOOK, ACT, SHIP, KEEP, SPEAK):
            rows = [(name.ljust(widest), entry.help) for name, entry in COMMANDS.items() if entry.panel == panel]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


def load(name: str) -> ClickCommand:
    """The command of the table's entry ``name``; imports its module."""
    app = import_module(f"recall_cli.commands.{COMMANDS[name].module}").app
    assert isinstance(app, Verbs), f"recall_cli.commands.{COMMANDS[name].module}.app must be a Noun or Verbs"
    group = app.group(name)
    command = group if isinstance(app, Noun) else group.get_command(ClickContext(group), name)
    assert command is not None
    return command


def _version(ctx: ClickContext, param: Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        from recall_cli import __version__

        bare = "-version" in param.opts
        Globals.of(ctx).out.write(f"{__version__}\n" if bare else f"recall {__version__}\n")
        ctx.exit()


def root() -> Root:
    """A fresh root command."""
    settings: dict[str, Any] = {"is_flag": True, "default": False, "expose_value": False, "is_eager": True}
    version = TyperOption(param_decls=["--version"], callback=_version, help="Show the version.", **settings)
    # How the peer's client asks which version a command has.
    bare = TyperOption(param_decls=["-version", "bare_version"], callback=_version, hidden=True, **settings)
    return Root(
        name="recall",
        help=_HELP,
        params=[version, bare],
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"max_content_width": 100},
    )


def run(here: Globals, arguments: list[str]) -> int:
    """Parses and runs; whatever goes wrong is raised."""
    command = root()
    with command.make_context("recall", arguments, obj=here) as ctx:
        command.invoke(ctx)
    return 0
