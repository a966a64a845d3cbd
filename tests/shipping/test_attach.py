"""Attaching a store to a bucket and detaching it, cut short anywhere, with logs that do and do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from store.asides import asides
from store.errors import Fenced, InvalidInput, LeaseHeld, RecallError
from store.pruning import prune
from store.records import NEXT, TURN, Draft
from store.remote_errors import (
    AttachedElsewhere,
    NotAttached,
    NotShipped,
    OtherLog,
    RemoteChanged,
    RemoteForeign,
    TakenAway,
)
from store.restore import restore
from store.shipping.bucket import Location, location_named
from store.shipping.local import agents_of
from store.shipping.place import agents_in
from store.shipping.remote_verify import verify_remote
from store.shipping.syncing import status
from store.transfer import export
from store.verify import Problem
from tests.engine import request
from tests.shipping.machines import AGENT, HEAD, head_key
from tests.shipping.memory import nothing
from tests.shipping.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two machines to be, and an empty bucket."""
    return World(tmp_path)


# -- attaching -----------------------------------------------------------------------------------


def test_every_agent_gets_a_head_at_the_next_epoch(world: World) -> None:
    """The log is in the bucket, the lease is released there under a new epoch, and the old fence is worth nothing."""
    for agent in (AGENT, "cat"):
        world.write("a", "one", agent)
    with world.plain("a") as store:
        before = store.lease(AGENT)
    done = world.attach("a")
    assert done.made
    assert [(each.agent, each.outcome, each.lsn) for each in done.reports] == [
        (AGENT, "shipped", 2),
        ("cat", "shipped", 2),
    ]
    head = world.head()
    assert (head.state, head.epoch, head.last, head.store) == ("released", 2, 2, done.remote.remote_id)
    with world.opened("a") as store:
        assert before is not None
        with pytest.raises(Fenced):
            store.append(before.fence, [Draft(TURN, {"role": "user", "content": "late"}, seq=NEXT)])
    world.write("a", "two")
    assert world.head().epoch == 3
    assert world.sound("a")


@pytest.mark.parametrize("requests", range(6))
def test_attaching_goes_on_where_it_was_cut_short(world: World, requests: int) -> None:
    """Killed at any request it leaves a store that takes no lease, or was not touched; the next call finishes it."""
    for agent in (AGENT, "cat"):
        world.write("a", "one", agent)
    world.bucket.before = killed_after(requests)
    with pytest.raises(KeyboardInterrupt):
        world.attach("a")
    world.bucket.before = nothing
    with world.plain("a") as store:
        if requests < 4:  # of recall.json; then comes one PUT for each agent
            assert store.remote() is None
        else:
            with pytest.raises(RemoteChanged, match="cut short"):
                store.acquire(request(AGENT))
    world.attach("a")
    world.write("a", "two")
    assert world.texts("a") == ["one", "two"]
    assert [world.head(agent).epoch for agent in (AGENT, "cat")] == [3, 2]
    assert world.sound("a")


def test_an_attaching_that_never_reached_the_bucket_is_undone(world: World) -> None:
    """Detached before any head was written, the store grants its leases by itself again; after that it is read only."""
    for agent in (AGENT, "cat"):
        world.write("a", "one", agent)
    for requests, state in ((4, "local"), (5, "detached")):
        one = World(world.base / str(requests))
        shutil.copytree(world.directory("a"), one.directory("a"))
        one.bucket.before = killed_after(requests)
        with pytest.raises(KeyboardInterrupt):
            one.attach("a")
        one.bucket.before = nothing
        one.detach("a", "keep", force=True)
        with one.plain("a") as store:
            remote = store.remote()
            assert remote is not None
            assert remote.state == state
        if state == "local":
            one.write("a", "two")
            assert one.texts("a") == ["one", "two"]


def killed_after(requests: int) -> Callable[[str, str], str]:
    """A bucket's ``before`` that ends the process, as far as anybody can tell, at one request."""
    left = iter(range(requests))

    def kill(verb: str, key: str) -> str:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return ""

    return kill


def test_a_store_is_attached_only_while_nobody_acts(world: World) -> None:
    """A live lease refuses it, by name; --force fences its holder."""
    with world.opened("a") as store:
        lease = store.acquire(request(AGENT)).lease
        with pytest.raises(LeaseHeld, match="tester"):
            world.attach("a")
        assert store.remote() is None
        assert world.attach("a", force=True).reports[0].outcome == "shipped"
        with pytest.raises(Fenced):
            store.append(lease.fence, [Draft(TURN, {"role": "user", "content": "late"}, seq=NEXT)])
        with pytest.raises(RemoteChanged):
            store.acquire(request("other"))


def test_another_log_of_the_name_is_refused_and_nothing_is_changed(world: World) -> None:
    """Two logs are never merged; with --adopt-remote the one here is set aside, and stays."""
    world.write("a", "of a")
    world.attach("a")
    world.write("b", "of b")
    world.write("b", "another agent", "zoe")
    with pytest.raises(OtherLog, match="lineage"):
        world.attach("b")
    with world.plain("b") as store:
        assert store.remote() is None
    assert head_key("zoe") not in world.bucket.objects
    done = world.attach("b", adopt=True)
    assert [(each.agent, each.outcome) for each in done.reports] == [(AGENT, "adopted"), ("zoe", "shipped")]
    assert world.texts("b") == ["of a"]
    with world.plain("b") as store:
        assert [(each.first, each.last) for each in asides(store, AGENT)] == [(1, 2)]
    world.write("b", "both")
    world.write("a", "again")
    assert world.texts("a") == ["of a", "both", "again"]
    assert world.sound("a", "b")


def test_a_copy_that_went_on_by_itself_is_another_log(world: World) -> None:
    """A directory copied before the attaching, and written to since, does not get its records in."""
    world.write("a", "one")
    shutil.copytree(world.directory("a"), world.directory("b"))
    world.write("b", "only in the copy")
    world.attach("a")
    with pytest.raises(OtherLog, match="without what was written here under epoch 2"):
        world.attach("b")
    world.write("a", "two")
    with pytest.raises(OtherLog, match="differ"):
        world.attach("b")
    assert world.head().last == 4
    assert world.sound("a", "b")


def test_a_restored_directory_catches_up(world: World) -> None:
    """A copy that has nothing of its own is a beginning of the bucket's log, and gets the rest."""
    world.write("a", "one")
    shutil.copytree(world.directory("a"), world.directory("b"))
    world.attach("a")
    world.write("a", "two")
    assert [each.outcome for each in world.attach("b").reports] == ["fetched"]
    assert world.texts("b") == ["one", "two"]
    world.write("b", "three")
    assert world.sound("a", "b")


def test_a_copy_of_a_log_is_shipped_from_its_first_lease_on(world: World) -> None:
    """An imported log may live on elsewhere, so attaching leaves it to the acquisition that gives it a new lineage."""
    world.write("a", "one")
    with world.plain("a") as store:
        lines = b"".join(export(store, [AGENT]))
    with world.plain("b") as store:
        restore(store, BytesIO(lines))
    assert [each.outcome for each in world.attach("b").reports] == ["imported"]
    assert HEAD not in world.bucket.objects
    with world.plain("b") as store:
        assert (status(store, AGENT).imported, status(store, AGENT).pending_records) == (True, 0)
    world.write("b", "two")
    assert [each.last for each in world.head().origins] == [2]
    assert world.sound("b")


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ({"recall.json": b"{}"}, "not one of recall's"),
        ({"recall.json": b'{"format": "recall.remote/1", "store": 7}'}, "not one of recall's"),
        ({"recall.json": b"\xff"}, "not one of recall's"),
        ({"photos/1.jpg": b"x"}, "photos/1.jpg"),
        ({"agents/x/head.json": b"x"}, "no recall.json"),
    ],
)
def test_a_prefix_of_something_else_is_refused(world: World, objects: dict[str, bytes], reason: str) -> None:
    """Nothing is written below a prefix that recall did not make, nor where its own recall.json was lost."""
    for name, body in objects.items():
        world.bucket.create(name, body)
    with pytest.raises(RemoteForeign, match=reason):
        world.attach("a")
    assert set(world.bucket.objects) == set(objects)


def test_a_lifecycle_rule_is_warned_of(world: World) -> None:
    """An Expiration header in an answer means that somebody's rule will delete logs."""
    world.bucket.expiration = 'expiry-date="Fri, 01 Jan 2027 00:00:00 GMT", rule-id="tidy"'
    assert "tidy" in world.attach("a").warnings[0]


def test_attached_to_one_place_it_is_not_attached_to_another(world: World) -> None:
    """The same remote again is no change; another one has to wait for a detaching."""
    world.write("a", "one")
    first = world.attach("a")
    again = world.attach("a")
    assert again.already
    assert again.remote == first.remote
    other = World(world.base)  # another bucket, of the same name
    with pytest.raises(AttachedElsewhere, match="attached to s3://memory/place"):
        other.attach("a")
    world.detach("a", "keep")
    with pytest.raises(AttachedElsewhere, match="detached from"):  # one lineage would live in two places
        other.attach("a")
    world.detach("a", "take")
    assert [each.outcome for each in other.attach("a").reports] == ["shipped"]
    other.write("a", "two")
    assert (other.head().state, world.head().state) == ("released", "deleted")
    assert other.sound("a")


# -- detaching -----------------------------------------------------------------------------------


def test_detached_agents_are_readable_and_no_more(world: World) -> None:
    """Their log lives on in the bucket: nothing is written here until the store is attached again."""
    world.write("a", "one")
    world.attach("a")
    assert [each.outcome for each in world.detach("a", "keep")] == ["kept"]
    assert world.texts("a") == ["one"]
    with pytest.raises(RemoteChanged, match="detached"):
        world.write("a", "two")
    world.attach("b")
    world.write("b", "elsewhere")
    assert [each.outcome for each in world.attach("a").reports] == ["fetched"]
    world.write("a", "two")
    assert world.texts("a") == ["one", "elsewhere", "two"]
    assert world.sound("a", "b")


def test_what_is_not_shipped_is_not_left_behind_by_accident(world: World) -> None:
    """Detaching asks for a push first; --force leaves the records here, where they can be read."""
    world.attach("a")
    world.write("a", "kept here", ship="off")
    with pytest.raises(NotShipped) as refused:
        world.detach("a", "keep")
    assert "recall sync push bot" in refused.value.hint
    assert world.detach("a", "keep", force=True)[0].outcome == "kept"
    assert world.texts("a") == ["kept here"]


def test_taken_agents_go_on_here_and_nowhere_else(world: World) -> None:
    """The bucket's head says so: another machine is refused by name, and attaching again brings the agent back."""
    world.attach("a")
    world.attach("b")
    world.write("a", "one")
    world.write("b", "two")
    assert [each.outcome for each in world.detach("b", "take")] == ["taken"]
    assert world.head().state == "deleted"
    with pytest.raises(TakenAway, match="goes on there"):
        world.write("a", "refused")
    world.write("b", "by itself")
    assert [each.outcome for each in world.attach("b").reports] == ["continued"]
    world.write("a", "three")
    assert world.texts("a") == ["one", "two", "by itself", "three"]
    assert world.sound("a", "b")


@pytest.mark.parametrize("how", ["take", "fork"])
def test_a_log_that_was_pruned_while_it_was_detached_can_be_attached_again(world: World, how: str) -> None:
    """The head that this store knows has lines that are not here any more; it is read all the same."""
    world.attach("a")
    for text in ("one", "two"):
        world.write("a", text)
    world.detach("a", how)
    with world.plain("a") as store:
        assert prune(store, AGENT, 2, keep_turns=1).base == 2
    world.attach("a")
    for text in ("three", "four"):
        world.write("a", text)
    assert world.texts("a")[-3:] == ["two", "three", "four"]
    with world.plain("a") as store:
        assert status(store, AGENT).pending_records == 0
        assert [each for each in verify_remote(store, world.bucket) if isinstance(each, Problem)] == []
    if how == "take":
        world.attach("b")
        world.write("b", "five")
        assert world.texts("b") == ["one", "two", "three", "four", "five"]
    assert world.sound("a")


def test_taking_goes_on_where_it_was_cut_short(world: World) -> None:
    """Until all are taken the store stays attached; those that were, are refused to everybody."""
    world.attach("a")
    for agent in (AGENT, "cat"):
        world.write("a", "one", agent)

    def fail(verb: str, key: str) -> str:
        if (verb, key) == ("swap", head_key("cat")):
            raise KeyboardInterrupt
        return ""

    world.bucket.before = fail
    with pytest.raises(KeyboardInterrupt):
        world.detach("a", "take")
    world.bucket.before = nothing
    with pytest.raises(TakenAway):
        world.write("a", "refused")
    assert [each.outcome for each in world.detach("a", "take")] == ["taken", "taken"]
    world.write("a", "two")
    world.write("a", "two", "cat")
    assert world.sound("a")


def test_forked_agents_go_on_on_both_sides(world: World) -> None:
    """Here under a new lineage that names the old one; the bucket is not asked, and its log stays whoever has it."""
    world.attach("a")
    world.attach("b")
    world.write("a", "one")
    lineage = world.head().lineage
    world.bucket.calls.clear()
    assert [each.outcome for each in world.detach("a", "fork")] == ["forked"]
    assert world.bucket.calls == []
    world.write("a", "here")
    with world.plain("a") as store:
        lease = store.lease(AGENT)
        assert lease is not None
        assert lease.lineage != lineage
    assert [each.outcome for each in world.attach("a").reports] == ["continued"]  # nobody wrote there meanwhile
    assert [each.lineage for each in world.head().origins] == [lineage]
    world.write("b", "on the new lineage")
    assert world.texts("b") == ["one", "here", "on the new lineage"]
    world.detach("a", "fork")
    world.attach("a")
    world.detach("a", "fork")
    world.write("a", "here again")
    world.write("b", "and there")
    with pytest.raises(OtherLog):
        world.attach("a")
    assert world.sound("a", "b")


def test_a_handle_that_knows_an_older_state_takes_no_lease(world: World) -> None:
    """The generation rises at each change, and who opened the store before it has to open it again."""
    world.attach("a")
    with world.opened("a") as store:
        world.detach("a", "keep")
        with pytest.raises(RemoteChanged):
            store.acquire(request(AGENT))


@pytest.mark.parametrize("how", ["keep", "take", "fork"])
def test_what_is_not_attached_is_not_detached(world: World, how: str) -> None:
    """A store without a bucket says so."""
    with pytest.raises(NotAttached):
        world.detach("a", how)


# -- the rest ------------------------------------------------------------------------------------


def test_agents_are_listed_without_all_their_objects(world: World) -> None:
    """An agent with many objects does not make the list long; names that are no agent's are left out."""
    for agent in ("a", "a-b", "a.b", "a0", "b"):
        for number in range(250):
            world.bucket.create(f"agents/{agent}/seg/{number:04}", b"x")
    world.bucket.create("agents/-odd/head.json", b"x")
    assert list(agents_in(world.bucket)) == ["a-b", "a.b", "a", "a0", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://box", Location("box")),
        ("s3://box/p?region=eu-1", Location("box", "p", region="eu-1")),
        ("s3://box/p?endpoint_url=http%3A%2F%2Fx%3A1", Location("box", "p", "http://x:1")),
        ("s3://box/p?sse=aws:kms&sse_kms_key=k", Location("box", "p", sse="aws:kms", sse_kms_key="k")),
        ("s3://box/p?endpoint_url=http://x:1&profile=dev", Location("box", "p", "http://x:1", profile="dev")),
    ],
)
def test_one_text_names_a_location_with_its_options(text: str, expected: Location) -> None:
    """RECALL_REMOTE carries all that attach takes as options."""
    assert location_named("RECALL_REMOTE", text) == expected


@pytest.mark.parametrize(
    "text", ["", "b/p", "gs://b/p", "s3://", "s3://box/p?colour=red", "s3://box/p?sse=rot13", "s3://box//p"]
)
def test_a_text_that_names_no_location_is_refused_by_its_field(text: str) -> None:
    """What a person set in the environment is named as such."""
    with pytest.raises(InvalidInput, match="RECALL_REMOTE"):
        location_named("RECALL_REMOTE", text)


def test_a_refused_attaching_leaves_the_agents_as_they_were(world: World) -> None:
    """Where the bucket fails before anything began, the store works on as before."""
    world.write("a", "one")

    def fail(verb: str, key: str) -> str:
        raise RecallError(reason="no")

    world.bucket.before = fail
    with pytest.raises(RecallError):
        world.attach("a")
    world.write("a", "two")
    with world.plain("a") as store:
        assert agents_of(store) == [AGENT]
