"""The frame of every command: global flags at every level, lazy groups, one way to declare a verb.

The global flags are parameters of every command and group, so the parser
itself tells ``--goal --json`` (a value) from ``--json`` (a flag), before and
after the command. Their values meet in one ``Globals``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer
from typer._click.core import Command as ClickCommand
from typer._click.core import Context as ClickContext
from typer._click.core import Parameter
from typer._click.exceptions import MissingParameter, UsageError
from typer._click.formatting import HelpFormatter
from typer._click.parser import _OptionParser, _ParsingState
from typer._types import TyperChoice
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo

from recall_cli.exits import Exit
from recall_cli.values import LongValues
from store.errors import InvalidInput, LeaseHeld
from store.place import SHIP_MODES
from store.text import quoted

if TYPE_CHECKING:
    from recall_cli.render import Out

F = TypeVar("F", bound=Callable[..., Any])

Choice = TyperChoice  # the type of an option that takes one of some words

# Where an agent is the object of a command it is a positional argument (look commands,
# resume, exec); everywhere else it is the option.
AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", envvar="RECALL_AGENT", show_envvar=True, help="The agent's id.")
]
AgentOption = Annotated[
    str,
    typer.Option("--agent", "-a", metavar="AGENT", envvar="RECALL_AGENT", show_envvar=True, help="The agent's id."),
]
Remote = Annotated[
    bool, typer.Option("--remote", help="Also what other machines have left in the bucket; asks it, changes nothing.")
]


class UnknownCommand(InvalidInput):
    """A word where a command should be."""

    code = "unknown_command"
    template = "no such command: {name}"


class AgentMissing(InvalidInput):
    """A command on one agent that does not say which."""

    code = "usage"
    template = "the agent is not named"
    hint_template = "name it with -a AGENT, or set RECALL_AGENT"


class Globals:
    """What the global flags and their variables say; one for a run of the command.

    Attributes:
        dir, backend, ship: the flags' values, or "".
        json, jsonl, no_color: whether the flag was given.
        values: reads ``-`` and ``@FILE`` values.
        environment: the process's variables.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.environment = environment
        self.dir = ""
        self.backend = ""
        self.ship = ""
        self.json = False
        self.jsonl = False
        self.no_color = False
        self.values = LongValues()

    @staticmethod
    def of(ctx: ClickContext) -> Globals:
        """The one that belongs to this run."""
        return ctx.ensure_object(Globals)

    @cached_property
    def out(self) -> Out:
        """Where the command's output goes; the flags are all read by then."""
        from recall_cli.render import Out

        return Out(json=self.json, jsonl=self.jsonl, no_color=self.no_color)

    @cached_property
    def directory(self) -> Path:
        """The store's directory: flag, RECALL_DIR, RECALL_BACKEND_URL, then the user data directory.

        It may not exist: looking says so, and the first write creates it.

        Raises:
            InvalidInput: a backend that this version does not have.
        """
        from store.place import directory_of, store_directory

        if self.backend:
            return Path(directory_of("--backend", self.backend))
        return Path(store_directory(self.dir, self.environment))

    def check(self) -> None:
        """Refuses flags that contradict each other.

        Raises:
            InvalidInput: they do.
        """
        if self.json and self.jsonl:
            raise InvalidInput(field="--jsonl", reason="cannot be combined with --json", hint="give one of the two")
        if self.dir and self.backend:
            raise InvalidInput(field="--backend", reason="cannot be combined with --dir", hint="give one of the two")


# -- the global flags ------------------------------------------------------------------


def _store(ctx: ClickContext, param: Parameter, value: Any) -> Any:
    """Keeps a flag's value; the one nearest to the end of the line wins."""
    if value not in (None, False) and not ctx.resilient_parsing:
        if value == "":
            raise InvalidInput(field=param.opts[0], reason="must not be empty")
        here = Globals.of(ctx)
        setattr(here, str(param.name), value)
        here.check()
    return value


def _show_help(ctx: ClickContext, param: Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        Globals.of(ctx).out.write(ctx.get_help() + "\n")
        ctx.exit()


def _flag(*names: str, help: str, **settings: Any) -> TyperOption:
    return TyperOption(param_decls=list(names), is_flag=True, default=False, expose_value=False, help=help, **settings)


def _value(name: str, metavar: str, help: str, **settings: Any) -> TyperOption:
    settings = {"default": None, "expose_value": False, "callback": _store, "is_eager": True, **settings}
    return TyperOption(param_decls=[name], metavar=metavar, help=help, **settings)


# Eager, so that they are known when another parameter is refused.
GLOBAL_OPTIONS: tuple[TyperOption, ...] = (
    _value("--dir", "PATH", "The store's directory [env: RECALL_DIR; default: the user data directory]."),
    _value("--backend", "URL", "The store as a URL: sqlite:PATH [env: RECALL_BACKEND, RECALL_BACKEND_URL]."),
    _value(
        "--ship", "MODE", "When records reach a bucket: barrier, lazy, off [env: RECALL_SHIP].", type=Choice(SHIP_MODES)
    ),
    _flag("--json", help="Print one JSON document; errors are JSON too.", callback=_store, is_eager=True),
    _flag("--jsonl", help="Print one JSON object a line.", callback=_store, is_eager=True),
    _flag("--no-color", help="Print no colours [env: NO_COLOR, FORCE_COLOR].", callback=_store, is_eager=True),
    _flag("-h", "--help", help="Show this help.", callback=_show_help, is_eager=True),
)


def _format_options(command: ClickCommand, ctx: ClickContext, formatter: HelpFormatter) -> None:
    for title, kind, of_all in (
        ("Arguments", "argument", False),
        ("Options", "option", False),
        ("Global options, before or after the command", "option", True),
    ):
        rows = [
            record
            for param in command.get_params(ctx)
            if param.param_type_name == kind and (param in GLOBAL_OPTIONS) is of_all
            if (record := param.get_help_record(ctx)) is not None
        ]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


class Command(TyperCommand):
    """A verb. Its exit codes are those that its declaration names.

    The agent can be named in both ways wherever that leaves no doubt: a command
    whose first argument is AGENT takes ``-a`` for it, and one declared with
    ``agent_first`` takes an AGENT before its arguments for ``-a``.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, add_help_option=False, **{k: v for k, v in settings.items() if k != "add_help_option"})
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        options = {name for each in self.params for name in each.opts}
        self._agent_argument = bool(arguments) and _names_agent(arguments[0]) and "-a" not in options
        self._takes_command = self._agent_argument and arguments[-1].nargs == -1
        self._agent_option = "-a" in options
        self.agent_first = bool(getattr(self.callback, "recall_agent_first", False))
        if self._agent_argument:
            self.params.append(
                TyperOption(
                    param_decls=["-a", "--agent", "agent_instead"],
                    metavar="AGENT",
                    expose_value=False,
                    help="The same as AGENT.",
                )
            )

    @property
    def exits(self) -> tuple[Exit, ...]:
        """The codes that it may end with; 1 and 130 go without saying."""
        return tuple(sorted({Exit.DONE, Exit.USAGE, *getattr(self.callback, "recall_exits", ())}))

    def get_params(self, ctx: ClickContext) -> list[Parameter]:
        return [*super().get_params(ctx), *GLOBAL_OPTIONS]

    def collect_usage_pieces(self, ctx: ClickContext) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [*pieces[:1], "[AGENT]", *pieces[1:]] if self.agent_first else pieces

    def make_parser(self, ctx: ClickContext) -> _OptionParser:
        """The parser, which has put the agent in its place before it counts the arguments."""
        parser = super().make_parser(ctx)
        count = parser._process_args_for_args

        def process(state: _ParsingState) -> None:
            words = state.largs + state.rargs
            if self._agent_argument and "agent_instead" in state.opts:
                state.largs, state.rargs = [state.opts["agent_instead"], *words], []
            elif self._takes_command and state.rargs and not state.largs:
                # What follows ``--`` is the command alone: no word is the agent, which the environment then names.
                state.largs = [None]  # type: ignore[list-item]
            elif self.agent_first and "agent" not in state.opts and len(words) == len(parser._args) + 1:
                state.opts["agent"] = words[0]
                state.largs, state.rargs = words[1:], []
            count(state)

        parser._process_args_for_args = process  # type: ignore[method-assign]
        return parser

    def parse_args(self, ctx: ClickContext, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as problem:
            if isinstance(problem, MissingParameter) and problem.param is not None and problem.param.name == "agent":
                raise AgentMissing from problem
            told = problem.format_message()
            if "unexpected extra argument" in told and self._agent_option:
                told = " ".join(told.split()).rstrip(".")
                raise InvalidInput(
                    field=ctx.command_path,
                    reason=told[:1].lower() + told[1:],
                    hint="the agent is named with -a AGENT; a text with spaces needs quotes",
                ) from problem
            raise

    def invoke(self, ctx: ClickContext) -> Any:
        try:
            return super().invoke(ctx)
        except LeaseHeld as problem:
            can_wait = any("--wait" in each.opts for each in self.params)
            if can_wait and problem.hint == problem.hint_template.format(**problem.details):
                problem.hint = (
                    f"wait for it with --wait DURATION; who it is: recall lease show {problem.details['agent']}"
                )
            raise

    def format_options(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        _format_options(self, ctx, formatter)

    def format_epilog(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        codes = ", ".join(f"{code.value}" for code in self.exits)
        formatter.write_text(f"Exit codes: {codes}. What they mean: recall help exit-codes")


def _names_agent(argument: Parameter) -> bool:
    return argument.nargs == 1 and str(argument.metavar).strip("[]") == "AGENT"


class Group(TyperGroup):
    """A noun: a set of verbs, one of which may stand for the noun alone.

    A verb's parser is built when the verb is asked for: building all of a
    noun's costs a short command more than its work.
    """

    default: ClassVar[str] = ""
    verbs: Mapping[str, CommandInfo] = {}

    def list_commands(self, ctx: ClickContext) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: ClickContext, cmd_name: str) -> ClickCommand | None:
        if cmd_name in self.verbs and cmd_name not in self.commands:
            info = self.verbs[cmd_name]
            self.commands[cmd_name] = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
        return super().get_command(ctx, cmd_name)

    def __init__(self, **settings: Any) -> None:
        super().__init__(add_help_option=False, **{k: v for k, v in settings.items() if k != "add_help_option"})

    def get_params(self, ctx: ClickContext) -> list[Parameter]:
        return [*super().get_params(ctx), *GLOBAL_OPTIONS]

    def parse_args(self, ctx: ClickContext, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if not ctx._protected_args and self.default:
            ctx._protected_args = [self.default]
        return rest

    def resolve_command(self, ctx: ClickContext, args: list[str]) -> tuple[str | None, ClickCommand | None, list[str]]:
        """The verb by its whole name: an abbreviation today is another command tomorrow."""
        command = self.get_command(ctx, args[0])
        if command is None:
            path = ctx.command_path
            near = get_close_matches(args[0], self.list_commands(ctx), n=3, cutoff=0.6)
            hint = "did you mean: " + " or ".join(f"{path} {name}" for name in near) if near else f"see: {path} --help"
            raise UnknownCommand(name=quoted(args[0]), hint=hint)
        return args[0], command, args[1:]

    def format_options(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        _format_options(self, ctx, formatter)

    def format_commands(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        """The verbs with their whole summaries; the parser's own way cuts them."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, summary_of(each)) for name, each in found if each is not None and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def summary_of(command: ClickCommand) -> str:
    """The first line of a command's help, without its period."""
    return (command.help or "").strip().partition("\n")[0].strip().removesuffix(".")


# -- what a command module declares ------------------------------------------------------


class Verbs(typer.Typer):
    """The commands of one module, each declared with ``@app.verb(name, exits=...)``."""

    def __init__(self, help: str | None = None, cls: type[Group] = Group, *, no_args_is_help: bool = True) -> None:
        super().__init__(
            cls=cls, help=help, rich_markup_mode=None, add_completion=False, no_args_is_help=no_args_is_help
        )

    def group(self, name: str) -> Group:
        """The parser of all verbs, each built when it is asked for."""
        infos, self.registered_commands = self.registered_commands, []
        try:
            group = get_group(self)
        finally:
            self.registered_commands = infos
        assert isinstance(group, Group)
        group.name = name
        group.verbs = {str(info.name): info for info in infos}
        return group

    def verb(
        self, name: str, *, exits: Iterable[Exit] = (), hidden: bool = False, agent_first: bool = False
    ) -> Callable[[F], F]:
        """Declares a command; its docstring is its help, the first line its summary.

        Args:
            name: as it is typed.
            exits: the exit codes that it may end with besides 0, 1, 2 and 130.
            hidden: whether help, completions and the reference leave it out.
            agent_first: whether one more argument than it has, at the front, is
                the agent; not for one whose arguments are free texts.
        """

        def declare(function: F) -> F:
            function.recall_exits = tuple(exits)  # type: ignore[attr-defined]
            function.recall_agent_first = agent_first  # type: ignore[attr-defined]
            self.command(name, cls=Command, hidden=hidden)(function)
            return function

        return declare


class Noun(Verbs):
    """A group of verbs under one noun: ``recall NOUN VERB``.

    Args:
        help: the group's help, its first line the summary.
        default: the verb that ``recall NOUN`` alone means, or "" for none.
    """

    def __init__(self, help: str, *, default: str = "") -> None:
        super().__init__(help, type("Group", (Group,), {"default": default}), no_args_is_help=not default)
