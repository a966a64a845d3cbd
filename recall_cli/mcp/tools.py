"""The tools: what a model is told of each, what it takes, what it does to the store."""

from __future__ import annotations

from recall_cli.mcp import handlers
from recall_cli.mcp.tool import Param, Tool
from store.records import CLASSES, CLOSED_STATUSES
from store.values import POINTER_TYPES, ROLES


def _text(name: str, about: str, *, required: bool = False, choices: tuple[str, ...] = ()) -> Param:
    return Param(name, ("string",), about, required, choices)


def _number(name: str, about: str, *, required: bool = False, least: int | None = 1, most: int | None = None) -> Param:
    return Param(name, ("integer",), about, required, (), least, most)


def _json(name: str, about: str) -> Param:
    return Param(name, ("string", "object", "array"), about)


def _clearable(name: str, kind: str, about: str) -> Param:
    return Param(name, (kind, "null"), about)


_AGENT = _text("agent_id", "The agent's id: letters, digits, and . _ - (at most 128).", required=True)
_BUDGET = _number("token_budget", "The most tokens of the briefing: 8000 unless given, 512 at the least.", least=0)
_SEQ = _number("seq", "The action's number, as begin_action or pending_actions told it.", required=True)
_LIMIT = _number("limit", "How many; 20 unless given.", most=200)
_FORCE = Param("force", ("boolean",), "Also an action that may be running right now. Only if you know that it is not.")

TOOLS: tuple[Tool, ...] = (
    Tool(
        "agent_resume",
        "Resume an agent",
        "Start here, once, before any other work as an agent. Takes the agent's lease, so that nobody else can act for "
        "it, settles what an earlier process left unfinished, and returns the briefing: unfinished actions, goal, plan "
        "and progress, where the work lives, stored outputs, newest turns. Read it and go on from there; do not start "
        "over. Look at pending_actions first: one that is unknown may or may not have happened, so find out before "
        "doing it again. Where the briefing names a shell command, a tool does the same: end_action for recall actions "
        "resolve, fetch_output for recall outputs get, and so on. Fails while another process holds the lease, naming "
        "it.",
        (
            _AGENT,
            _BUDGET,
            _number(
                "lease_ttl_seconds",
                "How long the lease outlives a vanished process: 60 unless given.",
                least=5,
                most=3600,
            ),
            _text("holder", "The name that others see as the lease's holder; at most 200 characters."),
            _number(
                "output_threshold",
                "Texts of more tokens are kept as outputs: 2000 unless given; negative: none is.",
                least=None,
            ),
            Param("defer_lease", ("boolean",), "Only read now, and take the lease later with agent_acquire."),
        ),
        handlers.agent_resume,
        writes=True,
        again=False,
    ),
    Tool(
        "agent_acquire",
        "Take a deferred lease",
        "Take the lease after agent_resume with defer_lease, or again after it was lost. Tries once; fails while "
        "another process holds it. The briefing that comes back includes what others did meanwhile.",
        (_AGENT,),
        handlers.agent_acquire,
        writes=True,
    ),
    Tool(
        "agent_release",
        "Give the lease back",
        "Let another process continue as the agent. Call it when you stop working as the agent, after you have "
        "written your progress. The lease is also given back when this session ends.",
        (_AGENT,),
        handlers.agent_release,
        writes=True,
    ),
    Tool(
        "agent_context",
        "Read the briefing anew",
        "The same as agent_resume returned, as of now. Use it when your own context was cut or summarised and you "
        "need to know where you are. Takes no lease.",
        (_AGENT,),
        handlers.agent_context,
    ),
    Tool(
        "update_working_state",
        "Write the note to your next self",
        "Keep the note that your next process starts from. Fields that you give replace the old ones, fields that you "
        "leave out stay, empty ones clear. Write it whenever the plan or the progress changes, not only at the "
        "end: the process may stop at any moment. Earlier versions are kept.",
        (
            _AGENT,
            _clearable("goal", "string", "What the work is for, in a sentence."),
            _clearable("plan", "array", "The steps, in order; the whole list."),
            _clearable("progress", "string", "How far it is, exactly enough to continue: what is done, what is next."),
            _clearable("focus", "string", "What you are doing right now."),
            _clearable("decisions", "array", "What was decided and why, so that it is not decided again."),
            _clearable("open_questions", "array", "What is not known yet, and who could tell."),
            _clearable("notes", "string", "Anything else; long texts belong in store_output."),
            _clearable("step", "integer", "The number of the step that you are at."),
        ),
        handlers.update_working_state,
        writes=True,
        again=False,
    ),
    Tool(
        "agent_milestone",
        "Mark a milestone",
        "Mark a point that is reached for good, such as 'tests pass' or 'invoice sent'. It is a version of the working "
        "state, so progress can be written with it.",
        (
            _AGENT,
            _text("name", "What is reached, in a few words.", required=True),
            _text("progress", "New progress, as in update_working_state."),
        ),
        handlers.agent_milestone,
        writes=True,
        again=False,
    ),
    Tool(
        "working_state_history",
        "Earlier working states",
        "Versions of the working state, newest first: how the plan came to be what it is.",
        (_AGENT, _LIMIT),
        handlers.working_state_history,
    ),
    Tool(
        "record_turn",
        "Record a message",
        "Record one message of the conversation, word for word, so that the next process can read it. A long content "
        "is kept whole as an output and the turn keeps its beginning.",
        (
            _AGENT,
            _text("role", "Who speaks.", required=True, choices=ROLES),
            _text("content", "The message; may be empty.", required=True),
            _text("name", "The speaker's or the tool's name."),
            _text("message_id", "Your own id for the message; at most 256 bytes."),
            _text("brief", "What briefings show in the content's place, where that is long; at most 4096 bytes."),
        ),
        handlers.record_turn,
        writes=True,
        again=False,
    ),
    Tool(
        "recent_turns",
        "Read the newest messages",
        "The newest recorded messages, oldest of them first. To go further back give before_seq the lowest seq seen.",
        (_AGENT, _LIMIT, _number("before_seq", "Only messages before this one.", least=2)),
        handlers.recent_turns,
    ),
    Tool(
        "store_output",
        "Keep a large text",
        "Keep a large text whole, such as a log, a listing or a page, and get a ref to fetch it by. Briefings show "
        "its summary instead of its content.",
        (
            _AGENT,
            _text("content", "The text, at most 64 MiB.", required=True),
            _text("tool", "What made it."),
            _text("summary", "What is in it; its beginning unless given. Make it tell whether fetching is worth it."),
            _text("ref", "A name of your own for it; one that is taken is refused."),
        ),
        handlers.store_output,
        writes=True,
        again=False,
    ),
    Tool(
        "fetch_output",
        "Fetch a large text",
        "The whole text kept under a ref, which briefings, turns and actions name. Of a very long one fetch a part.",
        (
            _AGENT,
            _text("ref", "The ref, such as out-7-1 or act-3-result.", required=True),
            _number("offset", "Leave out so many characters at the beginning.", least=0),
            _number("length", "At most so many characters."),
        ),
        handlers.fetch_output,
    ),
    Tool(
        "set_pointer",
        "Say where work lives",
        "Say where a piece of the work lives outside of this memory, so that your next process finds it. The same "
        "name replaces. Fields by type: git_ref: repo, branch, sha (branch or sha is needed) · object: uri · env: "
        "image, lockfile_hash, setup (one of them) · external: kind, id, url (id or url) · process: command, port "
        "(command).",
        (
            _AGENT,
            _text("name", "A short name, such as wip or staging-db.", required=True),
            _text("type", "What kind of place it is.", required=True, choices=tuple(POINTER_TYPES)),
            Param("fields", ("object",), "The place; names and texts, others than the type's own too.", required=True),
            _text("note", "What to know about it."),
        ),
        handlers.set_pointer,
        writes=True,
    ),
    Tool(
        "remove_pointer",
        "Take a pointer away",
        "Take a pointer out of the briefing, when the thing is gone or merged. The log keeps that it was there.",
        (_AGENT, _text("name", "The pointer's name.", required=True)),
        handlers.remove_pointer,
        writes=True,
        destroys=True,
    ),
    Tool(
        "list_pointers",
        "List pointers",
        "Where the pieces of the agent's work live, by name.",
        (_AGENT,),
        handlers.list_pointers,
    ),
    Tool(
        "begin_action",
        "Record a call before making it",
        "Call this before anything that touches the world outside: sending, paying, deploying, writing to a service. "
        "When it returns, the intent is on disk; if the process dies in the middle, the next one knows that the call "
        "may have happened. Make the call only if the status that comes back is started, pass its key to the service "
        "as idempotency key where there is one, and report the outcome with end_action.",
        (
            _AGENT,
            _text("tool", "What is called, such as send_email.", required=True),
            _text(
                "class",
                "What calling it twice would do: pure: nothing; idempotent: nothing if the key is the same; external: "
                "it would happen twice.",
                required=True,
                choices=CLASSES,
            ),
            _json("args", "The arguments, usually as JSON; enough to find out later whether it happened."),
            _text(
                "step",
                "A name for this very call, such as invoice-2026-11. Begun again under the same name it is not made "
                "twice: if it is done, the finished action comes back with its result.",
            ),
            Param("retry_failed", ("boolean",), "Let an external step that failed be attempted again."),
        ),
        handlers.begin_action,
        writes=True,
        again=False,
    ),
    Tool(
        "end_action",
        "Report what a call did",
        "Close an action right after its call: done with its result, failed with its error, abandoned if the call was "
        "not made, unknown if nobody can tell yet. The first outcome stands.",
        (
            _AGENT,
            _SEQ,
            _text("status", "The outcome.", required=True, choices=(*CLOSED_STATUSES, "unknown")),
            _json("result", "What came back."),
            _text("error", "Why it failed."),
            _text("resolution", "How the outcome was found out, if not from the call itself."),
        ),
        handlers.end_action,
        writes=True,
    ),
    Tool(
        "pending_actions",
        "List unfinished calls",
        "All calls without an outcome, oldest first. started: being made right now, or (idempotent) safe to make again "
        "with the same key. unknown: interrupted; ask the service whether it happened, then use end_action.",
        (
            _AGENT,
            _number("limit", "How many; all unless given."),
            _number("after_seq", "Only actions after this one, to go on from a list that was limited.", least=0),
        ),
        handlers.pending_actions,
    ),
    Tool(
        "list_agents",
        "List agents",
        "The agents in this store: who acts for each, how many turns and unfinished actions it has, its goal. Use it "
        "to find an id.",
        (
            _text("match", "Only ids that have this in them."),
            _number("limit", "How many; 50 unless given.", most=1000),
        ),
        handlers.list_agents,
        of_agent=False,
    ),
    Tool(
        "agent_briefing",
        "Look at an agent",
        "The briefing of any agent, as its next process would get it, without resuming it or taking its lease. Use it "
        "to see how another agent's work stands.",
        (_AGENT, _BUDGET),
        handlers.agent_briefing,
        of_agent=False,
    ),
    Tool(
        "resolve_action",
        "Settle an action by hand",
        "Settle an interrupted action of any agent, once somebody has found out what became of it. The reason is "
        "kept, and the agent reads the outcome in its history. For an action of your own use end_action.",
        (
            _AGENT,
            _SEQ,
            _text("status", "What became of it.", required=True, choices=CLOSED_STATUSES),
            _text("reason", "How that is known.", required=True),
            _text("by", "Who decided it; the user of this server unless given."),
            _text("result", "What the call returned, if that is known."),
            _text("error", "Why it failed, if that is known."),
            _FORCE,
        ),
        handlers.resolve_action,
        writes=True,
        destroys=True,
        of_agent=False,
    ),
    Tool(
        "verify",
        "Check the store",
        "Derive the whole log again, hashes, order and all, and report what is not as it was written. Takes longer "
        "the more there is; name an agent to check only that one.",
        (_text("agent_id", "Only this agent."),),
        handlers.verify,
        of_agent=False,
    ),
)


def offered(*, write: bool, agent_tools: bool) -> dict[str, Tool]:
    """The tools of a server, by name: without ``write`` only those that read."""
    return {each.name: each for each in TOOLS if (write or not each.writes) and (agent_tools or not each.of_agent)}
