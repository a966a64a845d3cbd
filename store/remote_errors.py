"""The situations that only a store with a bucket can be in, named as those in ``store.errors`` are.

They are apart so that a store without a bucket never loads them. Their bases
are that module's: what the caller has to do next is the same.
"""

from __future__ import annotations

from store.errors import Conflict, Corrupt, NotFound, Unavailable

# -- the bucket, as a service ------------------------------------------------------------------


class RemoteUnreachable(Unavailable):
    """The bucket gave no usable answer in time: the network, or the store itself, is in trouble."""

    code = "remote_unreachable"
    template = "remote {remote} cannot be reached: {reason}"
    hint_template = "nothing that was stored here is lost; try again later"


class RemoteRefused(Unavailable):
    """The bucket refuses what is asked of it: access, credentials, its name, or this machine's clock."""

    code = "remote_refused"
    template = "remote {remote} refuses: {reason}"
    hint_template = "mend that and try again; nothing that was stored here is lost"


class BucketUnfit(Unavailable):
    """The store cannot decide a lease: a step of the probe failed."""

    code = "bucket_unfit"
    template = "remote {remote} cannot be used: {step}: {reason}"
    hint_template = "use a store with conditional writes, as Amazon S3 has them"


class RemoteNewer(Unavailable):
    """A newer Recall wrote to the bucket."""

    code = "remote_newer"
    template = "{what}: the bucket holds {found}, which this recall does not know"
    hint_template = "upgrade recall on this machine"


class RemoteForeign(Conflict):
    """What is at the prefix is not a remote of Recall."""

    code = "remote_foreign"
    template = "{remote} holds something else: {reason}"
    hint_template = "choose another prefix, one that is empty or that recall made"


class BadHead(Corrupt):
    """An object in the bucket that cannot be what was written."""

    code = "bad_head"
    template = "agent {agent}: the head in the bucket is damaged: {reason}"
    hint_template = "nothing was changed; what can be done: recall remote repair {agent}"


# -- what this store and the bucket are to each other ------------------------------------------


class NotAttached(NotFound):
    """The store ships to no bucket."""

    code = "not_attached"
    template = "store {path} is not attached to a bucket"
    hint_template = "attach it with: recall remote attach s3://BUCKET/PREFIX"


class AttachedElsewhere(Conflict):
    """The store ships to another bucket, or its agents live on there."""

    code = "attached_elsewhere"
    template = "store {path} is {state} {remote}"
    hint_template = "detach it first: recall remote detach; with --take or --fork its agents are this store's own"


class RemoteChanged(Unavailable):
    """The store was attached to a bucket, or detached from it, since this handle was opened."""

    code = "remote_changed"
    template = "store {path}: {reason}"
    hint_template = "open the store again"


# -- one agent's log, here and there -----------------------------------------------------------


class NotShipped(Unavailable):
    """Stored here, but the deadline came before the bucket was known to have it."""

    code = "not_shipped"
    template = "agent {agent}: {what} is stored here but not known to be in {remote}: {reason}"
    hint_template = "once the bucket answers: recall sync push {agent}"


class OtherLog(Conflict):
    """The bucket has another log under this agent's name; the two are never merged."""

    code = "other_log"
    template = "agent {agent}: {remote} has another log under this name: {reason}"
    hint_template = (
        "attach to another prefix; or set the log here aside and take the bucket's: --adopt-remote "
        "(what is set aside stays: recall aside list)"
    )


class TakenAway(Unavailable):
    """The agent goes on in a store that was detached from the bucket together with it."""

    code = "taken_away"
    template = "agent {agent}: its log was taken out of {remote} by {holder}, and goes on there"
    hint_template = (
        "go on there, or attach that store again; if it is lost, go on from the bucket's copy: "
        "recall remote repair {agent} --keep remote"
    )


class Forked(Corrupt):
    """The log here and the log in the bucket contradict each other at or below what was shipped.

    Attributes:
        details: ``trouble`` is ``forked``, ``remote regressed`` or ``head missing``.
    """

    code = "forked"
    template = "agent {agent}: {trouble}: {reason}"
    hint_template = "nothing was changed; what can be done: recall remote repair {agent}"


# -- what a person decided on another machine --------------------------------------------------


class Queued(Unavailable):
    """A resolution waits in the bucket for whoever acts for the agent; nothing is settled yet."""

    code = "queued"
    template = "action {seq} of {agent}: {status} is queued in {remote} as {ulid}; no record cites it yet"
    hint_template = (
        "its holder applies it, or the next one; see with --wait DURATION, or take the lease yourself with --take"
    )


class NotApplied(Conflict):
    """A queued resolution that could not be carried out; it was set aside as evidence."""

    code = "not_applied"
    template = "the queued resolution {ulid} of {agent} was set aside: {reason}"
    hint_template = "see it with: recall aside list {agent} --remote"
