"""Mending an agent whose log here and in the bucket contradict each other."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from store.access import once
from store.asides import asides
from store.errors import Conflict, Corrupt, LeaseHeld
from store.remote_errors import RemoteRefused
from store.shipping.backend import ShippingBackend
from store.shipping.packing import Limits
from store.shipping.remote_verify import verify_remote
from store.shipping.repairing import Finding, Keep, Repaired, Repairing, examine
from store.shipping.upkeep import collect
from store.verify import Problem
from tests.engine import request
from tests.shipping.machines import AGENT, HEAD
from tests.shipping.memory import nothing
from tests.shipping.world import World

DAY = 24 * 3600.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Machines a and b on one bucket, with a turn that both could have."""
    world = World(tmp_path)
    for name in ("a", "b"):
        world.attach(name)
    world.write("a", "one")
    return world


def break_(world: World, trouble: str) -> None:
    """Bring about a trouble that machine a will meet; what it wrote last is then at stake."""
    before = world.bucket.objects[HEAD]
    shutil.copytree(world.directory("a"), world.directory("copy"))
    world.write("a", "two")
    if trouble == "head missing":
        del world.bucket.objects[HEAD]
    elif trouble == "head damaged":
        world.bucket.objects[HEAD] = (b"{}", '"damaged"', 0.0)
    else:
        world.bucket.objects[HEAD] = before  # a person restored an old version
    if trouble == "forked":
        for number in range(3):
            world.write("copy", f"other {number}")
    if trouble == "store broken":
        world.write("copy", "other 0")


def found(world: World, name: str = "a") -> Finding:
    with world.plain(name) as store:
        return examine(store, world.bucket, AGENT)


def repair(world: World, finding: Finding, keep: Keep, name: str = "a", *, force: bool = False) -> Repaired:
    with world.plain(name) as store:
        remote = store.remote()
        assert remote is not None
        return Repairing(store, world.bucket, remote, force=force).repair(finding, keep)


TROUBLES = ["remote regressed", "forked", "store broken", "head missing", "head damaged"]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_contradiction_stops_every_write_and_is_shown(world: World, trouble: str) -> None:
    """The agent is refused until a person has looked; looking writes nothing, here or there."""
    break_(world, trouble)
    for _ in range(2):
        with pytest.raises(Corrupt) as refused:
            world.write("a", "refused")
        assert "recall remote repair bot" in refused.value.hint
    objects = dict(world.bucket.objects)
    finding = found(world)
    assert finding == found(world)
    assert finding.trouble == trouble
    readable = trouble not in ("head missing", "head damaged")
    assert (finding.remote is not None) == readable
    assert finding.choices == (("here", "remote") if readable else ("here",))
    assert (finding.common, finding.here.last) == ((2, 4) if readable else (0, 4))
    assert world.bucket.objects == objects


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_log_here_can_go_on(world: World, trouble: str) -> None:
    """Under a new lineage and an epoch above every other; what only the bucket had is evidence there."""
    break_(world, trouble)
    with pytest.raises(Corrupt):
        world.write("a", "refused")
    there = world.bucket.objects.get(HEAD)
    finding = found(world)
    done = repair(world, finding, "here")
    head = world.head()
    highest = max(finding.here.epoch, finding.remote.epoch if finding.remote else 0)
    assert (head.state, head.epoch, head.lineage, head.last) == ("released", highest + 1, done.lineage, 4)
    assert [each.lineage for each in head.origins] == [finding.here.lineage]
    if there is not None:
        evidence = [each for name, each in world.bucket.objects.items() if "/aside/repaired-" in name]
        lines = gzip.decompress(evidence[0][0]).splitlines()
        assert len(lines) == 2 + (finding.remote.alone if finding.remote else 0)
    world.write("a", "three")
    assert world.texts("a") == ["one", "two", "three"]
    world.attach("fresh")
    world.write("fresh", "four")
    assert world.texts("fresh") == ["one", "two", "three", "four"]
    world.write("a", "five")
    assert world.sound("a", "fresh")


@pytest.mark.parametrize("trouble", TROUBLES[:3])
def test_the_log_of_the_bucket_can_go_on(world: World, trouble: str) -> None:
    """What is only here is set aside, and put into the bucket as evidence."""
    break_(world, trouble)
    with pytest.raises(Corrupt):
        world.write("a", "refused")
    finding = found(world)
    assert finding.remote is not None
    done = repair(world, finding, "remote")
    assert world.head().epoch == max(finding.here.epoch, finding.remote.epoch) + 1
    assert (done.last, world.head().last) == (finding.remote.last, finding.remote.last)
    world.write("a", "three")
    assert "two" not in world.texts("a")
    with world.plain("a") as store:
        assert asides(store, AGENT)
    assert [each for each in world.bucket.objects if "/aside/" in each]
    world.write("b", "four")
    world.write("a", "five")
    assert world.texts("a") == [*world.texts("b"), "five"]
    assert world.sound("a", "b")


def test_the_others_meet_the_new_lineage(world: World) -> None:
    """A machine that was at one with the log that was kept goes on; one that had the other log is in trouble itself."""
    world.write("b", "shared")
    world.write("a", "again")
    break_(world, "forked")
    with pytest.raises(Corrupt):
        world.write("a", "refused")
    repair(world, found(world), "here")
    world.write("b", "goes on")
    with pytest.raises(Corrupt):
        world.write("copy", "refused")
    repair(world, found(world, "copy"), "remote", "copy")
    world.write("copy", "back")
    assert world.texts("copy") == ["one", "shared", "again", "two", "goes on", "back"]
    assert world.sound("a", "b", "copy")


def test_an_agent_that_was_taken_away_can_be_brought_back(world: World) -> None:
    """If the store that it went on in is lost, the bucket's copy is where it goes on from."""
    world.write("b", "two")
    world.detach("b", "take")
    shutil.rmtree(world.directory("b"))
    finding = found(world)
    assert finding.trouble == "taken away"
    repair(world, finding, "remote")
    world.write("a", "three")
    assert world.texts("a") == ["one", "two", "three"]
    assert world.sound("a")


def test_where_nothing_contradicts_nothing_is_found(world: World) -> None:
    """Records that wait to be shipped, or that another machine has shipped, are no trouble."""
    assert found(world).trouble == ""
    world.write("b", "two")
    assert (found(world).trouble, found(world).common) == ("", 2)
    world.write("a", "three", ship="off")
    assert found(world).trouble == ""


def test_it_is_repaired_as_it_was_found_or_not_at_all(world: World) -> None:
    """Whoever said which log to keep had seen both; if one has changed since, he looks again."""
    break_(world, "forked")
    finding = found(world)
    world.write("copy", "one more")
    with pytest.raises(Conflict, match="not so any more"):
        repair(world, finding, "here")
    assert world.head().lineage == finding.here.lineage


def test_nobody_who_acts_is_overtaken_by_a_repair(world: World) -> None:
    """A live lease refuses it, unless it is fenced on purpose."""
    break_(world, "forked")
    with world.opened("copy") as store:
        fence = store.acquire(request(AGENT)).lease.fence
        finding = found(world)
        with pytest.raises(LeaseHeld, match="tester"):
            repair(world, finding, "here")
        assert repair(world, finding, "here", force=True).kept == "here"
        with pytest.raises(Corrupt):  # its own log is now the other one
            store.secure(fence, list(store.log(AGENT))[-1])


def test_a_refusal_in_the_middle_leaves_it_as_it_was(world: World) -> None:
    """If the bucket does not take the new head, the trouble stays named, and the next call does it all."""
    break_(world, "remote regressed")
    with pytest.raises(Corrupt):
        world.write("a", "refused")
    finding = found(world)

    def refuse(verb: str, key: str) -> str:
        if verb == "swap":
            raise RemoteRefused(remote="s3://memory", reason="read only")
        return ""

    world.bucket.before = refuse
    with pytest.raises(RemoteRefused):
        repair(world, finding, "here")
    world.bucket.before = nothing
    with pytest.raises(Corrupt):
        world.write("a", "refused")
    assert repair(world, found(world), "here").last == 4
    assert world.sound("a")


def test_a_log_whose_segments_are_gone_from_the_bucket_is_uploaded_anew(world: World) -> None:
    """What the head needs is looked for, so that a machine that has the log can put it back for the others."""
    world.write("a", "two")
    with world.opened("a", limits=Limits(inline=10)) as store:
        once(store, AGENT, lambda it: it.record_turn("user", "three"))
    gone = [key for key in world.bucket.objects if "/seg/" in key]
    assert gone
    for key in gone:
        del world.bucket.objects[key]
    finding = found(world)
    assert (finding.trouble, finding.choices) == ("head damaged", ("here",))
    assert "is missing" in finding.reason and finding.remote is not None
    before = world.head()
    done = repair(world, finding, "here")
    assert done.epoch == before.epoch + 1
    assert remote_problems(world) == []
    world.attach("fresh")
    world.write("fresh", "four")
    assert world.texts("fresh") == ["one", "two", "three", "four"]


def forked_with_a_blob(world: World) -> None:
    """The log here names a blob of an epoch that is over, which is in the bucket, and which no log there names."""
    before = world.bucket.objects[HEAD]
    shutil.copytree(world.directory("a"), world.directory("copy"))
    world.write("a", "x" * 100_000)
    world.bucket.objects[HEAD] = before
    for number in range(3):
        world.write("copy", f"other {number}")
    with pytest.raises(Corrupt):
        world.write("a", "refused")
    world.bucket.now += 8 * DAY


def collected(world: World) -> int:
    with world.opened("copy") as store:
        assert isinstance(store, ShippingBackend)
        return collect(store.shipper, AGENT).objects


def test_what_the_log_here_needs_is_not_collected_while_it_is_uploaded(world: World) -> None:
    """A collection by the head that is about to be replaced spares the blobs that the next one names."""
    forked_with_a_blob(world)
    counts: list[int] = []

    def collecting(verb: str, key: str) -> str:
        if (verb, key) == ("swap", HEAD):
            world.bucket.before = nothing
            counts.append(collected(world))
        return ""

    world.bucket.before = collecting
    repair(world, found(world), "here")
    assert len(counts) == 1
    assert remote_problems(world) == []


def test_what_was_uploaded_anew_since_it_was_listed_is_not_collected(world: World) -> None:
    """A collection that has judged already looks at each object again before it deletes it."""
    forked_with_a_blob(world)
    listed: list[str] = []

    def repairing(verb: str, key: str) -> str:
        if verb == "list" and key.endswith("/blob/"):
            listed.append(key)
        elif listed:  # whatever it does next
            world.bucket.before = nothing
            repair(world, found(world), "here")
        return ""

    world.bucket.before = repairing
    collected(world)
    assert listed
    assert remote_problems(world) == []


def remote_problems(world: World) -> list[str]:
    with world.plain("a") as store:
        return [each.reason for each in verify_remote(store, world.bucket) if isinstance(each, Problem)]
