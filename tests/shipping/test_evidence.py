"""What was set aside is judged: proven never to have run, or not; and a close that only it knows is shown."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from store.access import break_lease
from store.agent import Agent
from store.errors import BadRecord, LeaseLost, RecallError
from store.remote_errors import NotShipped
from store.shipping import evidence, protocol
from store.shipping.backend import ShippingBackend
from store.shipping.evidence import MAY_HAVE_RUN, NEVER_EXECUTED, Evidence
from store.shipping.head import Head
from store.shipping.inbox import Resolution
from store.values import Action
from tests.shipping.machines import HEAD, machine, names_in, resumed
from tests.shipping.memory import DOWN, MemoryBucket, nothing, on

Judge = Callable[[], list[Evidence]]


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


def begun_in_vain(agent: Agent, bucket: MemoryBucket, class_: str = "external") -> Action:
    """An intent that is recorded here, while the bucket does not answer."""
    bucket.before = on("swap", DOWN)
    with suppress(NotShipped):  # of a call that waits for it
        agent.begin_action("mail", class_, {"to": "x"})
    bucket.before = nothing
    return next(agent.view.actions(1))


def overtaken(ours: ShippingBackend, theirs: ShippingBackend, agent: Agent) -> Agent:
    """Another machine takes the agent over and writes; ours then takes it back, and sets its own tail aside."""
    break_lease(theirs, "bot", by="me", why="to go on elsewhere")
    other = resumed(theirs)
    other.record_turn("user", "from elsewhere")
    other.release()
    with pytest.raises(LeaseLost):
        agent.release()
    return resumed(ours)


def test_a_call_whose_intent_never_reached_the_bucket_is_proven_never_to_have_run(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    """Its own machine, the one that took over and one with an empty directory all come to the same verdict."""
    ours, theirs, empty = (machine(tmp_path / name, bucket=bucket) for name in ("ours", "theirs", "empty"))
    agent = resumed(ours)
    action = begun_in_vain(agent, bucket)
    overtaken(ours, theirs, agent).release()
    for found in (
        evidence.here(ours, "bot"),
        evidence.everywhere(ours, "bot", bucket),
        evidence.everywhere(theirs, "bot", bucket),
        evidence.everywhere(empty, "bot", bucket),
    ):
        [one] = found
        assert (one.action.key, one.verdict, one.in_log) == (action.key, NEVER_EXECUTED, False)
        assert one.store == ours.store_id
    assert evidence.here(theirs, "bot") == [] and empty.lease("bot") is None


@pytest.mark.parametrize("ship", ["lazy", "off"])
def test_a_call_that_did_not_wait_for_the_bucket_may_have_run(
    tmp_path: Path, bucket: MemoryBucket, ship: protocol.Ship
) -> None:
    """Its tool started as soon as the intent was stored on the machine itself."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket, ship=ship), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    begun_in_vain(agent, bucket)
    overtaken(ours, theirs, agent)
    assert [each.verdict for each in evidence.here(ours, "bot")] == [MAY_HAVE_RUN]


def test_a_pure_call_is_never_claimed_by_the_barrier_that_it_does_not_wait_for(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    """A pure call starts without the bucket, whatever the mode of its process is."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    begun_in_vain(agent, bucket, "pure")
    overtaken(ours, theirs, agent)
    assert [each.verdict for each in evidence.here(ours, "bot")] == [MAY_HAVE_RUN]


def test_a_note_on_a_call_that_is_in_the_log_proves_nothing(tmp_path: Path, bucket: MemoryBucket) -> None:
    """The newer record of a call that did start is no intent of its own."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    action = agent.begin_action("mail", "external")
    agent.amend_action(action.seq, "on its way")
    overtaken(ours, theirs, agent)
    [one] = evidence.here(ours, "bot")
    assert (one.in_log, one.verdict) == (True, "")


def test_a_close_that_was_set_aside_is_known_wherever_the_call_is_settled(tmp_path: Path, bucket: MemoryBucket) -> None:
    """The machine that was taken over had ended the call; the log says unknown, and the evidence says what it was."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    action = agent.begin_action("mail", "external")
    break_lease(theirs, "bot", by="me", why="to go on elsewhere")
    agent.end_action(action.seq, "done", "sent as 42")
    assert resumed(theirs).release()
    with pytest.raises(LeaseLost):
        agent.release()
    mine = resumed(ours).view.action(action.seq)
    assert mine.status == "unknown"
    for found in (evidence.here(ours, "bot"), evidence.everywhere(theirs, "bot", bucket)):
        [close] = evidence.closes_of(found, mine)
        assert (close.action.status, close.action.result, close.verdict) == ("done", "sent as 42", "")


def test_nothing_is_proven_after_a_repair(tmp_path: Path, bucket: MemoryBucket) -> None:
    """A new lineage means that somebody decided what the log is; what it had held before is not known."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    begun_in_vain(agent, bucket)
    overtaken(ours, theirs, agent).release()
    body, etag, at = bucket.objects[HEAD]
    head = replace(protocol.renewed_lineage(Head.parse(body, "bot"), "f" * 32), epoch=99)
    bucket.objects[HEAD] = (head.encode(), etag, at)
    assert [each.verdict for each in evidence.everywhere(theirs, "bot", bucket)] == [MAY_HAVE_RUN]


def test_nothing_is_proven_by_a_head_that_is_not_of_a_higher_epoch(tmp_path: Path, bucket: MemoryBucket) -> None:
    """The same holder's PUT may land yet."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    before = bucket.objects[HEAD]
    begun_in_vain(agent, bucket)
    overtaken(ours, theirs, agent).release()
    empty = machine(tmp_path / "empty", bucket=bucket)
    bucket.objects[HEAD] = before
    assert [each.verdict for each in evidence.everywhere(empty, "bot", bucket)] == [MAY_HAVE_RUN]


def test_nothing_is_proven_while_the_bucket_is_in_doubt(tmp_path: Path, bucket: MemoryBucket) -> None:
    """A store that has found the bucket to contradict itself trusts no head."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    before = bucket.objects[HEAD]
    begun_in_vain(agent, bucket)
    overtaken(ours, theirs, agent).release()
    now = bucket.objects[HEAD]
    bucket.objects[HEAD] = before
    with pytest.raises(RecallError, match="regressed"):
        resumed(ours)
    bucket.objects[HEAD] = now
    assert [each.verdict for each in evidence.everywhere(ours, "bot", bucket)] == [MAY_HAVE_RUN]
    assert [each.verdict for each in evidence.here(ours, "bot")] == [MAY_HAVE_RUN]


def filed(bucket: MemoryBucket) -> str:
    [name] = names_in(bucket, "aside")
    return f"agents/bot/{name}"


def test_evidence_that_was_changed_proves_nothing(tmp_path: Path, bucket: MemoryBucket) -> None:
    """Its records have to continue the log's own chain from where they were cut off."""
    ours, theirs = machine(tmp_path / "ours", bucket=bucket), machine(tmp_path / "theirs", bucket=bucket)
    agent = resumed(ours)
    begun_in_vain(agent, bucket)
    overtaken(ours, theirs, agent).release()
    key = filed(bucket)
    body, etag, at = bucket.objects[key]
    changed = gzip.decompress(body).replace(b"mail", b"fax!")
    bucket.objects[key] = (gzip.compress(changed), etag, at)
    [one] = evidence.everywhere(theirs, "bot", bucket)
    assert (one.action.tool, one.verdict) == ("fax!", MAY_HAVE_RUN)


@pytest.mark.parametrize("spoil", [lambda body: b"no gzip", lambda body: body[: len(body) // 2]], ids=["noise", "cut"])
def test_evidence_that_cannot_be_read_is_named_and_hides_nothing_else(
    tmp_path: Path, bucket: MemoryBucket, spoil: Callable[[bytes], bytes]
) -> None:
    """One damaged object in the bucket stops nobody."""
    bad: list[BadRecord] = []
    ours = machine(tmp_path / "ours", bucket=bucket)
    theirs = machine(tmp_path / "theirs", bucket=bucket, on_bad_record=bad.append)
    agent = resumed(ours)
    begun_in_vain(agent, bucket)
    overtaken(ours, theirs, agent).release()
    body, etag, at = bucket.objects[filed(bucket)]
    bucket.objects["agents/bot/aside/" + "0" * 32 + "-2-1-9-" + "0" * 16 + ".jsonl.gz"] = (spoil(body), etag, at)
    found = evidence.everywhere(theirs, "bot", bucket)
    assert NEVER_EXECUTED in [each.verdict for each in found]
    assert bad and "cannot be read" in bad[0].message


def test_a_resolution_that_was_set_aside_is_listed_with_its_reason(tmp_path: Path, bucket: MemoryBucket) -> None:
    """What nobody could carry out stays in the bucket, whole."""
    ours = machine(tmp_path / "ours", bucket=bucket)
    wanted = Resolution("bot", 7, "k", "done", reason="seen", by="me")
    name = ours.inbox.put(wanted)
    resumed(ours).release()
    [one] = evidence.rejected(bucket, "bot")
    assert one.name == f"aside/inbox-{name}.json" and one.by == ours.store_id
    assert "no action 7" in one.reason
    assert json.loads(one.resolution)["key"] == "k"
