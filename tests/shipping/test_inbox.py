"""What a person decides on another machine: queued in the bucket, carried out by the holder, cited, never lost."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.access import beside
from store.agent import Agent
from store.clock import SystemRandom
from store.errors import LeaseHeld
from store.shipping.backend import ShippingBackend
from store.shipping.inbox import BadResolution, Resolution, ulid
from store.values import Action
from tests.engine import SetClock
from tests.shipping.machines import HEAD, agent_on, machine, names_in, resumed
from tests.shipping.memory import DOWN, LOST, MemoryBucket, nothing, on

INBOX, ASIDE, PREFIX = "inbox", "aside", "agents/bot/"


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def here(tmp_path: Path, bucket: MemoryBucket) -> ShippingBackend:
    """The machine that the agent runs on."""
    return machine(tmp_path / "here", bucket=bucket)


@pytest.fixture
def there(tmp_path: Path, bucket: MemoryBucket) -> ShippingBackend:
    """Another one, with nothing but the bucket."""
    return machine(tmp_path / "there", bucket=bucket)


def interrupted(store: ShippingBackend) -> tuple[Agent, Action]:
    """An agent under a lease, and an external call of an earlier incarnation that nobody knows the end of."""
    first = resumed(store)
    seq = first.begin_action("mail", "external", {"to": "x"}).seq
    first.release()
    agent = resumed(store)
    action = agent.view.action(seq)
    assert action.status == "unknown"
    return agent, action


def queued(store: ShippingBackend, action: Action, status: str = "done", *, force: bool = False) -> str:
    """Queue an outcome from another machine; the id."""
    wanted = Resolution("bot", action.seq, action.key, status, "sent", reason="seen in the outbox", by="me@there")
    return store.inbox.put(replace(wanted, force=force))


def test_a_holder_carries_out_what_was_queued_elsewhere_and_its_record_cites_it(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket
) -> None:
    """At its next renewal the holder settles the action as decided; the object goes once its record is shipped."""
    agent, action = interrupted(here)
    name = queued(there, action)
    agent._keeper.renewed(agent._keeper.renew())
    settled = agent.view.action(action.seq)
    assert (settled.status, settled.result, settled.resolution) == ("done", "sent", "seen in the outbox")
    assert (settled.by, settled.inbox) == ("me@there", name)
    assert agent.recent_turns(1)[0].content == "sent"
    assert names_in(bucket, INBOX) == [] and names_in(bucket, ASIDE) == []
    there.shipper.pull("bot")
    assert agent_on(there).view.action(action.seq).inbox == name


def test_the_next_holder_carries_it_out_when_nobody_held_the_lease(
    here: ShippingBackend, there: ShippingBackend
) -> None:
    """What was queued while nobody acted for the agent is carried out by whoever acquires it next."""
    agent, action = interrupted(here)
    agent.release()
    queued(there, action, "abandoned")
    agent = resumed(there)
    assert agent.view.action(action.seq).status == "abandoned"
    assert [each.seq for each in agent.taken_in.applied] == [action.seq]


def test_resolutions_are_carried_out_in_the_order_in_which_they_were_queued(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    """Of two for one action the earlier wins, and the later is set aside with the outcome that was there."""
    clock = SetClock()
    here, there = (
        machine(tmp_path / "a", bucket=bucket, clock=clock),
        machine(tmp_path / "b", bucket=bucket, clock=clock),
    )
    agent, action = interrupted(here)
    first = queued(there, action, "failed")
    clock.move(0.002)
    second = queued(there, action, "done")
    assert first < second
    agent._look_around()
    assert agent.view.action(action.seq).inbox == first
    assert names_in(bucket, INBOX) == []
    assert names_in(bucket, ASIDE) == [f"{ASIDE}/inbox-{second}.json"]
    assert f"action {action.seq} is already failed" in there.inbox.rejected("bot", second)


def test_a_crash_before_the_deletion_carries_nothing_out_twice(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket
) -> None:
    """An object whose record is in the log already is deleted, and nothing else."""
    agent, action = interrupted(here)
    name = queued(there, action)
    bucket.before = on("delete", DOWN)
    agent._look_around()
    assert agent.view.action(action.seq).inbox == name and names_in(bucket, INBOX)
    bucket.before = nothing
    before = here.counters("bot")
    agent._look_around()
    assert here.counters("bot") == before
    assert names_in(bucket, INBOX) == [] and names_in(bucket, ASIDE) == []


def test_nothing_is_deleted_before_its_record_is_in_the_bucket(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket
) -> None:
    """If the bucket does not take the record, the object stays, so that a lost machine loses no decision."""
    agent, action = interrupted(here)
    name = queued(there, action)
    bucket.before = on("swap", DOWN)
    agent._look_around()
    assert names_in(bucket, INBOX) == [f"{INBOX}/{name}.json"]
    bucket.before = nothing
    agent.release()
    agent = resumed(there)
    assert agent.view.action(action.seq).inbox == name and names_in(bucket, INBOX) == []


def test_an_answer_that_is_lost_neither_loses_nor_repeats_a_resolution(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket
) -> None:
    """The record is shipped although its answer never came, and the object is deleted once."""
    agent, action = interrupted(here)
    name = queued(there, action)
    lost: list[str] = []

    def fault(verb: str, key: str) -> str:
        if verb == "swap" and not lost:
            lost.append(key)
            return LOST
        return ""

    bucket.before = fault
    agent._look_around()
    assert lost and agent.view.action(action.seq).inbox == name and names_in(bucket, INBOX) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.replace(b'"key":"', b'"key":"0'),
        lambda body: body.replace(b"recall.resolution/1", b"recall.resolution/2"),
        lambda body: body.replace(b'"seq":1', b'"seq":99'),
        lambda body: body.replace(b'"status":"done"', b'"status":"unknown"'),
        lambda body: body.replace(b'"agent":"bot"', b'"agent":"other"'),
        lambda body: body.replace(b'"by":"me@there"', b'"by":""'),
        lambda body: b"\xff{",
        lambda body: b"[1]",
    ],
    ids=["another key", "newer format", "no such action", "no outcome", "another agent", "nobody", "no text", "a list"],
)
def test_what_cannot_be_carried_out_is_set_aside_with_the_reason(
    here: ShippingBackend,
    there: ShippingBackend,
    bucket: MemoryBucket,
    spoil: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It changes nothing, is kept whole as evidence, is counted and said, and does not stop what came after it."""
    agent, action = interrupted(here)
    bad = queued(there, action)
    body, etag, at = bucket.objects[f"{PREFIX}{INBOX}/{bad}.json"]
    assert spoil(body) != body
    bucket.objects[f"{PREFIX}{INBOX}/{bad}.json"] = (spoil(body), etag, at)
    good = queued(there, action, "failed")
    with caplog.at_level(logging.WARNING, logger="recall"):
        agent._look_around()
    assert agent.view.action(action.seq).inbox == good
    assert names_in(bucket, INBOX) == []
    [kept] = names_in(bucket, ASIDE)
    document = json.loads(bucket.objects[PREFIX + kept][0])
    assert document["resolution"] == spoil(body).decode("utf-8", "replace") and document["reason"]
    assert len(agent.taken_in.rejected) == 1 and "was set aside" in caplog.text


@pytest.mark.parametrize("name", ["../../other.json", "note.txt", "0" * 26 + "I.json", "deep/er.json"])
def test_an_object_that_is_no_resolution_by_its_name_is_set_aside_too(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket, name: str
) -> None:
    """Whatever somebody puts there, no record cites it, and it is looked at once."""
    agent, action = interrupted(here)
    wanted = Resolution("bot", action.seq, action.key, "done", reason="seen", by="me")
    bucket.create(f"{PREFIX}{INBOX}/{name}", wanted.encode())
    agent._look_around()
    assert agent.view.action(action.seq).open
    assert names_in(bucket, INBOX) == [] and len(names_in(bucket, ASIDE)) == 1


def test_one_for_a_call_that_may_be_running_waits(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket
) -> None:
    """The holder's own running call is not settled behind its back, unless whoever decided said so with force."""
    agent = resumed(here)
    action = agent.begin_action("mail", "external")
    queued(there, action)
    agent._look_around()
    assert agent.view.action(action.seq).status == "started" and agent.taken_in.waiting == 1
    assert len(names_in(bucket, INBOX)) == 1
    forced = queued(there, action, force=True)
    agent._look_around()
    assert agent.view.action(action.seq).inbox == forced


def test_a_bucket_that_does_not_list_ends_neither_a_resumption_nor_a_renewal(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket, caplog: pytest.LogCaptureFixture
) -> None:
    """The inbox is read another time; that it was not is said."""
    agent, action = interrupted(here)
    agent.release()
    queued(there, action)
    bucket.before = on("list", DOWN)
    with caplog.at_level(logging.WARNING, logger="recall"):
        agent = resumed(here)
    assert agent.lease_held and "cannot be reached" in caplog.text
    bucket.before = nothing
    agent._look_around()
    assert agent.view.action(action.seq).status == "done"


def test_the_renewing_thread_reads_the_inbox(here: ShippingBackend, there: ShippingBackend) -> None:
    """A program that only waits sees its action settled all the same."""
    first = resumed(here)
    seq = first.begin_action("mail", "external").seq
    first.release()
    agent = resumed(here, background=True, ttl_ms=1_000)
    queued(there, agent.view.action(seq))
    deadline = time.monotonic() + 20
    while agent.view.action(seq).open and time.monotonic() < deadline:
        time.sleep(0.05)
    assert agent.view.action(seq).status == "done"
    agent.release()


def test_a_lease_that_is_given_back_for_the_time_being_asks_the_bucket_nothing(
    here: ShippingBackend, bucket: MemoryBucket
) -> None:
    """An idle agent's renewals cost no request, and so does the inbox."""
    agent = resumed(here)
    fence = agent._keeper.fence
    here.shipper.release(fence, park=True)
    bucket.calls.clear()
    agent._keeper.renewed(agent._keeper.renew())
    assert bucket.calls == []


def test_an_operator_elsewhere_never_appends_under_a_holder_s_epoch(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket
) -> None:
    """A copy of another store's lease row is no leave to write: the operator is told who holds the lease."""
    agent, action = interrupted(here)
    there.shipper.pull("bot")
    row = there.lease("bot")
    assert row is not None and row.state == "held" and not there.granted_here("bot")
    head = bucket.objects[HEAD]
    with pytest.raises(LeaseHeld):
        beside(there, "bot", lambda it: it.amend_action(action.seq, "note"))
    assert bucket.objects[HEAD] == head
    assert agent.view.action(action.seq).notes == ()


def test_an_operator_s_word_beside_the_holder_is_shipped_when_it_is_done(
    here: ShippingBackend, there: ShippingBackend
) -> None:
    """In the holder's own store it enters under the holder's epoch, and the bucket has it before the call returns."""
    agent, action = interrupted(here)
    beside(here, "bot", lambda it: it.amend_action(action.seq, "note"))
    assert agent.lease_held
    there.shipper.pull("bot")
    assert agent_on(there).view.action(action.seq).notes == ("note",)


def test_ids_sort_by_time_and_never_repeat() -> None:
    """26 digits of Crockford's base 32, the time first."""
    clock, made_by = SetClock(), SystemRandom()
    names = []
    for _ in range(50):
        names.append(ulid(clock, made_by))
        clock.move(0.001)
    assert names == sorted(set(names)) and {len(each) for each in names} == {26}


def test_a_resolution_reads_as_it_was_written() -> None:
    """Fields that a newer version adds are passed over."""
    wanted = Resolution("bot", 7, "k", "failed", error="no such host", reason="looked", by="me", at="now", force=True)
    assert Resolution.parse(wanted.encode(), "bot") == wanted
    newer = {**json.loads(wanted.encode()), "colour": "red"}
    assert Resolution.parse(json.dumps(newer).encode(), "bot") == wanted
    with pytest.raises(BadResolution):
        Resolution.parse(wanted.encode(), "other")
