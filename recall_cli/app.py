"""The ``recall`` command: its table, its root and the one catch.

How to add a command
--------------------
1. Write ``recall_cli/commands/NAME.py``. A noun with verbs starts with
   ``app = Noun("Summary line.", default="list")``; a module of top-level
   commands with ``app = Verbs()``. Each command is a function under
   ``@app.verb("show", exits=READS)`` whose docstring is its help (first line:
   the summary, with a final period). ``recall_cli/commands/help.py`` is the
   smallest example.
2. Its first parameter is ``ctx: typer.Context``; ``here = Globals.of(ctx)``
   gives ``here.directory``, ``here.out`` (all output: ``document``, ``table``,
   ``lines``, ``text``, ``message``, ``warn``, ``confirm``, ``progress``) and
   ``here.values.read(field, value)`` for ``-`` and ``@FILE``. The global flags
   are there already; the agent is ``AgentArgument`` or ``AgentOption``, other
   options are ``Annotated[str, typer.Option("--name", help="…")]``. A metavar
   such as ``PATH``, ``AGENT`` or ``STEP`` says how a shell completes it
   (``tree.TAKES``).
3. Refuse by raising an error of ``store.errors``; never print one, never exit
   by hand but with ``raise typer.Exit(code)`` for an answer such as
   ``--fail-if-any``. Never use ``print``.
4. Add each name to ``COMMANDS`` below, with the same summary without its period,
   and run ``make generate``.

Nothing but ``get_command`` imports a command module, and this module imports
nothing at its top that a refusal on an unsupported platform does not need.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from recall_cli import check_engine

if TYPE_CHECKING:
    from recall_cli.options import Globals
    from recall_cli.render import Out

LOOK, ACT, SHIP, KEEP, SPEAK = "Look", "Act", "Ship", "Keep", "Speak"


class Entry(NamedTuple):
    """One top-level command: the module under ``recall_cli.commands``, its summary, its panel."""

    module: str
    help: str
    panel: str


COMMANDS: dict[str, Entry] = {
    "agents": Entry("agents", "List agents, show one, archive it", LOOK),
    "briefing": Entry("briefing", "Print the text that the agent's next process starts from", LOOK),
    "state": Entry("state", "The working state: an agent's note to its next instance", LOOK),
    "turns": Entry("turns", "The messages of an agent, verbatim", LOOK),
    "pointers": Entry("pointers", "Where the pieces of an agent's work live", LOOK),
    "outputs": Entry("outputs", "Large texts kept whole under a ref", LOOK),
    "actions": Entry("actions", "The tool calls of an agent and what became of them", LOOK),
    "log": Entry("log", "Print the log of an agent: the newest 50 records unless told otherwise", LOOK),
    "records": Entry("records", "Print the newest record of every key, as key and value", LOOK),
    "resume": Entry("resume", "Resume an agent and print its briefing", ACT),
    "acquire": Entry("resume", "Take an agent's lease for a shell session, without its briefing", ACT),
    "release": Entry("resume", "Give the session's lease back", ACT),
    "exec": Entry("exec", "Run a command as the agent: take its lease, keep it, release it", ACT),
    "run": Entry("run", "Run a command as a step that happens once", ACT),
    "lease": Entry("lease", "Who may act for an agent", ACT),
    "milestone": Entry("milestone", "Mark a durable point of an agent's work", ACT),
    "remote": Entry("remote", "The bucket that the store ships to, where its agents survive the machine", SHIP),
    "sync": Entry("sync", "How far the logs are in the bucket, and bringing either side up to the other", SHIP),
    "verify": Entry("verify", "Check that the store still says what was written", KEEP),
    "export": Entry("export", "Write agents' logs, byte for byte, as lines of JSON", KEEP),
    "import": Entry("import_", "Import the agents of an export, all of them or none", KEEP),
    "doctor": Entry("doctor", "Examine the store and the machine under it", KEEP),
    "query": Entry("query", "Answer a SELECT over the store", KEEP),
    "prune": Entry("prune", "Let an agent's log begin later, and delete what came before", KEEP),
    "restore": Entry(
        "prune", "Bring back the working state and the pointers that an agent had at an earlier record", KEEP
    ),
    "aside": Entry("aside", "What was set aside: records that an agent's log no longer goes through", KEEP),
    "demo": Entry("demo", "Show it: an agent is killed while it sends an email, and one email is sent", KEEP),
    "mcp": Entry("mcp", "Serve agents' records to MCP hosts, over stdin and stdout or over HTTP", SPEAK),
    "completions": Entry("completions", "Print the completion script of a shell", KEEP),
    "help": Entry("help", "Explain a command, or the exit codes", KEEP),
}


def script() -> NoReturn:
    """The installed command: runs it and ends the process at once.

    Python's own ending takes apart every module and closes what the system
    closes anyway, which a command that is run ten thousand times a day feels.
    """
    code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # main has flushed what matters, and said so if it could not
    os._exit(code)


def main() -> int:
    """Runs the command with the process's arguments; returns its exit code."""
    if sys.platform == "win32":
        sys.stderr.write("recall: recall does not run on Windows\n  → use Linux or macOS, or WSL 2\n")
        return 7
    try:
        _prepare_streams()
        try:
            check_engine()
        except ImportError as problem:
            sys.stderr.write(f"recall: {problem}\n")
            return 7
        if sys.argv[1:2] == ["__complete"]:  # a key press: no time for the parser
            from recall_cli.candidates import offer

            return offer(sys.argv[2:])
        here = None
        try:
            if "mcp" in sys.argv[1:4]:
                from recall_cli.mcp.entry import is_plain, run_plain

                if is_plain(sys.argv[1:]):  # as hosts start it; it has no use for the parser
                    return run_plain(sys.argv[1:])
            from recall_cli.options import Globals
            from recall_cli.root import run

            here = Globals()
            code = run(here, sys.argv[1:])
            here.out.flush()
            return code
        except (Exception, KeyboardInterrupt) as problem:  # noqa: BLE001 (the one catch)
            return _end(problem, _out(here))
    except KeyboardInterrupt:
        return 130


def _prepare_streams() -> None:
    """UTF-8 out whatever the locale says, and no store file on a standard stream's number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Opened here, a closed stdout cannot become the descriptor of a file of the store.
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _out(here: Globals | None) -> Out:
    from recall_cli.render import Out

    if here is not None and ("out" in vars(here) or here.json or here.jsonl):
        return here.out
    # The parser may have failed before it came to a flag; for the error it then counts that it is there.
    words = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    return Out(json="--json" in words or "--jsonl" in words, no_color="--no-color" in words)


def _end(problem: BaseException, out: Out) -> int:
    """The one catch: says ``problem`` in one line and gives its exit code."""
    from typer import Abort, TyperException
    from typer import Exit as TyperExit
    from typer._click.exceptions import NoArgsIsHelpError, UsageError

    from recall_cli.exits import Exit, exit_of
    from recall_cli.render import abandon
    from store.errors import RecallError

    try:
        out.flush()
    except BrokenPipeError as gone:
        problem = gone
    except RecallError as failed:
        # The refusal matters more than the output that could not be shown.
        problem = failed if isinstance(problem, TyperExit) else problem
    if isinstance(problem, TyperExit):
        return int(problem.exit_code)
    if isinstance(problem, BrokenPipeError):
        # The reader has what it wanted, as with head; a second complaint at exit helps nobody.
        abandon(1)
        return Exit.DONE
    if os.environ.get("RECALL_DEBUG") not in (None, "", "0"):
        import traceback

        traceback.print_exception(type(problem), problem, problem.__traceback__)
    if isinstance(problem, RecallError):
        if problem.code == "output_failed":
            abandon(1)
        out.error(problem.code, problem.message, problem.hint)
        return exit_of(problem)
    if isinstance(problem, NoArgsIsHelpError):
        if out.structured:
            out.error("usage", "missing command", f"see: {problem.ctx.command_path} --help")
        else:
            out.usage(problem.format_message())
        return Exit.USAGE
    if isinstance(problem, TyperException):
        context = problem.ctx if isinstance(problem, UsageError) else None
        hint = f"see: {context.command_path} --help" if context is not None else "see: recall --help"
        out.error("usage", _usage(problem.format_message()), hint)
        return Exit.USAGE
    if isinstance(problem, (KeyboardInterrupt, Abort, EOFError)):
        out.error("interrupted", "interrupted")
        return Exit.INTERRUPTED
    if isinstance(problem, OSError) and problem.strerror:
        named = f"{problem.filename}: " if problem.filename is not None else ""
        out.error("system", f"{named}{problem.strerror}", "RECALL_DEBUG=1 shows where")
        return Exit.UNAVAILABLE
    out.error(
        "unexpected",
        f"unexpected {type(problem).__name__}: {problem}",
        "this is a defect of recall; RECALL_DEBUG=1 shows where",
    )
    return Exit.UNEXPECTED


def _usage(message: str) -> str:
    message = " ".join(message.split()).rstrip(".")
    return message[:1].lower() + message[1:]
