"""The whole command as data, for the completions and the reference. Imports every command module."""

from __future__ import annotations

from collections.abc import Iterator

from typer._click.core import Context as ClickContext
from typer._click.core import Parameter
from typer.core import TyperArgument, TyperOption

from recall_cli.exits import Exit
from recall_cli.options import GLOBAL_OPTIONS, Command, Group, summary_of
from store.records import CLOSED_STATUSES
from store.value import value

# What a metavar's value is, for completion: files, commands, and what the store has.
TAKES = {
    "PATH": "file",
    "FILE": "file",
    "COMMAND": "command",
    "-- COMMAND": "program",
    "AGENT": "agent",
    "KIND": "kind",
    "POINTER": "pointer",
    "REF": "ref",
    "STEP": "step",
    "TOOL": "tool",
}
STORED = ("agent", "kind", "pointer", "ref", "step", "tool", "action", "pending")
_OPEN_ONLY = ("recall actions end", "recall actions resolve")


@value
class Param:
    """An option or argument.

    Attributes:
        names: as typed, such as ``-a`` and ``--agent``; none for an argument.
        label: how help shows it.
        help: its help with defaults and variables.
        takes: what its value is: "" for a flag, one of ``TAKES``, ``action``, ``pending``, ``choice`` or ``text``.
        choices: the values of a ``choice``, or words that may stand instead.
        of_all: it is a global option.
        many: it is an argument that may be repeated.
    """

    names: tuple[str, ...]
    label: str
    help: str
    takes: str
    choices: tuple[str, ...]
    of_all: bool
    many: bool = False


@value
class Node:
    """A command or group. ``path`` starts below ``recall``, which itself has none."""

    path: tuple[str, ...]
    summary: str
    usage: str
    text: str
    params: tuple[Param, ...]
    children: tuple[Node, ...]
    exits: tuple[Exit, ...]

    @property
    def name(self) -> str:
        return " ".join(("recall", *self.path))

    @property
    def options(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if param.names)

    @property
    def arguments(self) -> tuple[Param, ...]:
        return tuple(param for param in self.params if not param.names)

    def walk(self) -> Iterator[Node]:
        """Itself and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree() -> Node:
    """The root's node."""
    from recall_cli.root import root

    command = root()
    return _node(ClickContext(command, info_name="recall", max_content_width=100, terminal_width=100))


def _node(ctx: ClickContext) -> Node:
    command = ctx.command
    children = []
    if isinstance(command, Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            if child is not None and not child.hidden:
                children.append(_node(ClickContext(child, parent=ctx, info_name=name)))
    params = (_param(ctx, each) for each in command.get_params(ctx))
    return Node(
        path=tuple(ctx.command_path.split()[1:]),
        summary=summary_of(command),
        usage=command.get_usage(ctx).removeprefix("Usage: "),
        text=(command.help or "").strip(),
        params=tuple(each for each in params if each is not None),
        children=tuple(children),
        exits=command.exits if isinstance(command, Command) else (),
    )


def _param(ctx: ClickContext, param: Parameter) -> Param | None:
    record = param.get_help_record(ctx)
    if record is None:
        return None
    label, text = record
    names = tuple(param.opts + param.secondary_opts) if isinstance(param, TyperOption) else ()
    choices = tuple(str(getattr(each, "value", each)) for each in getattr(param.type, "choices", ()))
    flag = isinstance(param, TyperOption) and (param.is_flag or param.count)
    metavar = (param.metavar or "").removesuffix("...").strip("[]")
    takes = "" if flag else "choice" if choices else TAKES.get(metavar, "text")
    words = metavar.split("]... [")
    if words[0] == "SEQ" and ctx.command_path.startswith("recall actions "):
        takes = "pending" if ctx.command_path in _OPEN_ONLY else "action"
        choices = CLOSED_STATUSES if "STATUS" in words else ()
    assert isinstance(param, (TyperArgument, TyperOption))
    return Param(names, label, " ".join(text.split()), takes, choices, param in GLOBAL_OPTIONS, param.nargs != 1)
