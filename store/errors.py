"""Every situation in which Recall says no, named.

A class is one situation; its ``template`` is the message, its ``hint`` the
next step, its ``code`` what programs match on. The few base classes are split
by what the caller has to do next, and the command's exit codes are exactly
that split (``recall_cli/exits.py``).
"""

from __future__ import annotations

from typing import Any, ClassVar


class RecallError(Exception):
    """Base of all errors of Recall.

    Attributes:
        code: a stable name for programs, such as ``lease_held``.
        message: one line that says what was wrong.
        hint: one line that says what to do, or "".
        details: the values that the message was made of.
        partial: what a call had finished before it failed, if anything.
    """

    code: ClassVar[str] = "error"
    template: ClassVar[str] = "{reason}"
    hint_template: ClassVar[str] = ""

    def __init__(self, *, partial: Any = None, **details: Any) -> None:
        self.details = details
        self.partial = partial
        self.message = self.template.format(**details)
        self.hint = str(details.get("hint", "")) or self.hint_template.format(**details)
        super().__init__(self.message)


# -- the caller has to change the call -------------------------------------------


class InvalidInput(RecallError):
    """A value that cannot be accepted; nothing was written."""

    code = "invalid_input"
    template = "{field}{joint} {reason}"

    def __init__(self, **details: Any) -> None:
        # A reason that is a predicate ("must not be empty") reads on after its subject.
        said = str(details.get("reason", "")).partition(" ")[0] in _PREDICATES
        super().__init__(**{"joint": "" if said else ":", **details})


_PREDICATES = frozenset(("cannot", "does", "has", "have", "is", "must", "needs", "would"))


class NotFound(RecallError):
    """The thing named does not exist."""

    code = "not_found"
    template = "no {what} {name}"


class StoreMissing(NotFound):
    """There is no store in the directory, and looking does not create one."""

    code = "store_missing"
    template = "no store in {path}"
    hint_template = "name one with --dir or RECALL_DIR; the first write creates it"


class StoreEmpty(NotFound):
    """The files of a store without anything in them; looking goes on, and finds nothing."""

    code = "store_empty"
    template = "store {path} is empty: its making was cut short, or it was emptied"
    hint_template = "the next write completes it; if it ever had agents, put a backup or an export in its place"


# -- the caller has to wait, or to ask the holder ----------------------------------


class LeaseHeld(RecallError):
    """Another process acts for the agent."""

    code = "lease_held"
    template = "agent {agent}: lease is held by {holder} (epoch {epoch}) until {until}"
    hint_template = "let it finish; who it is, and whether it lives: recall lease show {agent}"


# -- the caller has to stop acting: it is fenced ------------------------------------


class Fenced(RecallError):
    """The caller's epoch and incarnation are not the lease's current ones."""

    code = "fenced"


class LeaseLost(Fenced):
    """Somebody else acquired the lease, or ended ours; this is final."""

    code = "lease_lost"
    template = "agent {agent}: lease was lost; epoch {epoch} is now {now}"
    hint_template = "resume the agent to go on: recall resume {agent}"


class LeaseExpired(Fenced):
    """The lease's time ran out; nobody has taken it over yet."""

    code = "lease_expired"
    template = "agent {agent}: lease expired {ago} ago (epoch {epoch}); nothing was written"
    hint_template = "acquire it again: recall resume {agent}"


class LeaseNotHeld(Fenced):
    """A write by somebody who has not acquired the lease."""

    code = "lease_not_held"
    template = "agent {agent}: lease not acquired{why}"
    hint_template = "acquire it first"


class TokenMismatch(Fenced):
    """RECALL_LEASE does not belong to this store or agent."""

    code = "token_mismatch"
    template = "RECALL_LEASE is for another {what}: {reason}"
    hint_template = "unset RECALL_LEASE, or point RECALL_DIR and RECALL_AGENT at its store and agent"


# -- the caller's idea of the present state is wrong ---------------------------------


class Conflict(RecallError):
    """What is there already contradicts the call; nothing was changed."""

    code = "conflict"
    template = "{reason}"


class ActionClosed(Conflict):
    """First close wins: the action already has an outcome."""

    code = "action_closed"
    template = "action {seq} is already {status}{outcome}"


class ActionNotUnknown(Conflict):
    """The action may be running right now under the live lease."""

    code = "action_running"
    template = "action {seq} may be running right now: it was started under the live epoch {epoch}"
    hint_template = "if you know that it is not, add --force"


class NotLastAttempt(Conflict):
    """Only the last attempt can be followed by another: two that are open at once could both be run."""

    code = "not_last_attempt"
    template = "action {seq} was attempted again already: the last attempt is action {last}"
    hint_template = "look at that one: recall actions show {last}"


class StepMismatch(Conflict):
    """A step name is bound to one call; this is another one."""

    code = "step_mismatch"
    template = "step {step} is bound to another {what}: it was {was}, now {now}"
    hint_template = "use another step name for another call"


class RefTaken(Conflict):
    """An output with this ref exists."""

    code = "ref_taken"
    template = "output {ref} exists already"
    hint_template = "choose another ref, or replace it with --replace"


class AgentExists(Conflict):
    """Import never merges: the agent has records in this store."""

    code = "agent_exists"
    template = "agent {agent} exists in this store; an import never merges"
    hint_template = "import into another directory with --dir"


class AgentArchived(Conflict):
    """The agent was ended by an operator."""

    code = "agent_archived"
    template = "agent {agent} is archived"
    hint_template = "bring it back with: recall agents unarchive -a {agent} --reason TEXT"


class Stale(Conflict):
    """A key changed between the caller's read and its append.

    Raised by a backend's ``append`` when an expectation does not hold; the
    engine reads again and retries, so callers of the engine do not see it.
    """

    code = "stale"
    template = "{key} changed meanwhile: expected lsn {expected}, found {found}"


# -- the caller has to wait, free space, or mend the machine ---------------------------


class Unavailable(RecallError):
    """The store cannot be used right now, or not from here."""

    code = "unavailable"


class StoreBusy(Unavailable):
    """The write lock could not be had within the deadline."""

    code = "store_busy"
    template = "store {path} is busy: {holder} has held its write lock for {waited} s"
    hint_template = "try again; if that process is stopped, continue or end it"


class StoreClosed(Unavailable):
    """The handle was closed, by ``close`` or at the end of its ``with`` block."""

    code = "closed"
    template = "store {path}: this handle is closed"
    hint_template = "open the store again"


class StoreMoved(Unavailable):
    """The directory or the file of an open store was moved, deleted or replaced; what is written would be lost."""

    code = "store_moved"
    template = "store {path} is not the one that was opened: it was moved, deleted or replaced; nothing was written"
    hint_template = "put it back, or open the store again"


class StoreFull(Unavailable):
    """No space left; the transaction was rolled back whole."""

    code = "store_full"
    template = "no space left on the disk of {path}; nothing was written"
    hint_template = "free some space and try again"


class StoreReadOnly(Unavailable):
    """The directory or its files may not be written."""

    code = "store_read_only"
    template = "store {path} cannot be written: {reason}"
    hint_template = "check the owner and mode of the directory and its files"


class StoreUnreadable(Unavailable):
    """The operating system refused to open the store."""

    code = "store_unreadable"
    template = "store {path} cannot be opened: {reason}"
    hint_template = "check the owner and mode of the directory and its files"


class StoreNewer(Unavailable):
    """Written by a newer Recall; refused for writing."""

    code = "store_newer"
    template = "store {path} has format {found}; this recall writes format {known}"
    hint_template = "upgrade recall on this machine"


class NetworkFilesystem(Unavailable):
    """SQLite's locks and shared memory are not safe over a network."""

    code = "network_filesystem"
    template = "store {path} is on a network file system ({fstype}), where SQLite can lose data"
    hint_template = "use a local disk, or accept the risk with RECALL_ALLOW_NETWORK_FS=1"


class PlatformUnsupported(Unavailable):
    """Recall needs POSIX locks and process identities."""

    code = "platform_unsupported"
    template = "recall does not run on {platform}"
    hint_template = "use Linux or macOS (on Windows: WSL 2)"


# -- a person or a resolver has to say what happened -----------------------------------


class NeedsSettling(RecallError):
    """An interrupted action must be settled before this can go on."""

    code = "needs_settling"
    template = "action {seq} ({tool}) is {status}: it is not known whether it happened"
    hint_template = "find out, then: recall actions resolve -a {agent} {seq} done|failed|abandoned --reason TEXT"


class StepFailed(NeedsSettling):
    """An external step that failed is not attempted again by itself: it may have happened in part."""

    code = "step_failed"
    template = "step {step} failed before (action {seq}{why})"
    hint_template = (
        "look what it left; if it may run again: recall actions retry -a {agent} {seq} --reason TEXT, "
        "or begin it with retry_failed (--retry-failed)"
    )


class StillRunning(NeedsSettling):
    """The command of an action is alive, although its runner may be gone."""

    code = "still_running"
    template = "action {seq} ({tool}) is still running as {process}"
    hint_template = "wait for it (--wait), or end that process; nothing is settled or run again meanwhile"


class MayStillRun(NeedsSettling):
    """An external call was begun on a machine that lost the lease without a word, and its time is not over."""

    code = "may_still_run"
    template = "action {seq} ({tool}) may still be running until {until} on {holder}"
    hint_template = (
        "after that it is settled as unknown; a resolver may be asked before, and who knows what became of it "
        "may say so with --force"
    )


class AlreadyBegun(StillRunning):
    """An external action that this very process or session began, and has not ended: nobody may run it again.

    ``details`` has the ``action`` as it is, with its key.
    """

    template = "action {seq} ({tool}) was begun here before and has no outcome yet: it may be running, or have happened"
    hint_template = (
        "do not run it again; when you know what became of it, end it (end_action, "
        "or: recall actions end {seq} done|failed|abandoned|unknown)"
    )


class ResolverFailed(NeedsSettling):
    """A resolver raised or ran out of time; its actions stay as they were.

    ``partial`` is the ReconcileReport of what the pass did otherwise.
    """

    code = "resolver_failed"
    template = "the resolver failed on {count} action(s), first on action {seq}: {reason}"
    hint_template = "they are as they were: mend the resolver and reconcile again, or resolve them by hand"


# -- the data is damaged -------------------------------------------------------------


class Corrupt(RecallError):
    """Stored data that cannot be what was written."""

    code = "corrupt"
    template = "{reason}"
    hint_template = "look at it with: recall verify, recall doctor"


class StoreForeign(Corrupt):
    """recall.db is not a store of Recall."""

    code = "store_foreign"
    template = "{path} is not a store of recall: {reason}"
    hint_template = "name another directory with --dir or RECALL_DIR"


class StoreDamaged(Corrupt):
    """SQLite found the database file damaged."""

    code = "store_damaged"
    template = "store {path} is damaged: {reason}"
    hint_template = "copy the directory before anything else; what can be saved and how: recall doctor"


class BadRecord(Corrupt):
    """One record that cannot be read; the others are not affected."""

    code = "bad_record"
    template = "agent {agent}: record {key} (lsn {lsn}) cannot be read: {reason}"


class BadImport(Corrupt):
    """An export that is cut, changed or not an export; nothing was imported."""

    code = "bad_import"
    template = "line {line}: {reason}; nothing was imported"
    hint_template = "make a new one with: recall export"
