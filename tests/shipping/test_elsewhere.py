"""Two machines and one bucket on a real server: settling from the other one, and what was set aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from store.access import break_lease
from store.agent import Agent
from store.errors import LeaseLost
from store.remote_errors import NotShipped
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import Bucket, Listed, Location, Object, Swap
from store.shipping.s3 import S3Bucket
from tests.conftest import Ended, Run
from tests.shipping.machines import attach, machine, resumed
from tests.shipping.servers import CREDENTIALS, Server

# One server is enough: what differs between them is below the protocol.
pytestmark = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)


class Breaking:
    """A real bucket whose conditional writes do not arrive while ``down`` is set."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.name = bucket.name
        self.down = False

    def get(self, key: str) -> Object | None:
        return self._bucket.get(key)

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        return Swap("unclear", reason="no answer") if self.down else self._bucket.swap(key, body, etag)

    def create(self, key: str, body: bytes) -> bool:
        return self._bucket.create(key, body)

    def delete(self, key: str) -> None:
        self._bucket.delete(key)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return self._bucket.list(prefix, after)


@pytest.fixture
def location(server: Server) -> Location:
    return server.location()


@pytest.fixture
def bucket(location: Location) -> Breaking:
    return Breaking(S3Bucket.open(location))


@pytest.fixture
def here(tmp_path: Path, bucket: Breaking, location: Location) -> Iterator[ShippingBackend]:
    """The machine that the agent runs on, in this process."""
    store = machine(tmp_path / "here", location, bucket, patience=0.0)
    yield store
    store.close()


@pytest.fixture
def there(environment: dict[str, str], run_recall: Run, location: Location) -> Callable[..., Ended]:
    """The command on a machine that has nothing but the bucket."""
    attach(Path(environment["RECALL_DIR"]), location)
    return lambda *words, **options: run_recall(*words, env={**CREDENTIALS, **options})


def interrupted(store: ShippingBackend, **options: Any) -> Agent:
    """An agent under a lease, and its action 1: an external call that nobody knows the end of."""
    first = resumed(store)
    first.begin_action("mail", "external", {"to": "x"})
    first.release()
    return resumed(store, **options)


SETTLE = ("actions", "resolve", "-a", "bot", "1", "done", "--reason", "seen in the outbox")


def test_settling_for_a_holder_elsewhere_is_queued_until_a_record_cites_it(
    here: ShippingBackend, there: Callable[..., Ended]
) -> None:
    """Exit 7 says that it is not done yet, exit 0 only when it is; a second one finds what the first one did."""
    agent = interrupted(here)
    queued = there("--json", *SETTLE)
    assert queued.code == 7
    assert json.loads(queued.err)["code"] == "queued" and "--wait" in json.loads(queued.err)["hint"]
    agent._look_around()
    settled = agent.view.action(1)
    assert (settled.status, settled.resolution) == ("done", "seen in the outbox")
    again = there(*SETTLE)
    assert again.code == 6 and "already done" in again.err
    agent.release()


def test_waiting_for_it_ends_when_the_holder_has_carried_it_out(
    here: ShippingBackend, there: Callable[..., Ended]
) -> None:
    """The holder's renewing thread reads the inbox; the command sees the record and exits with 0."""
    agent = interrupted(here, background=True, ttl_ms=3_000)
    done = there(*SETTLE, "--wait", "30s")
    assert done.code == 0, done.err
    assert agent.view.action(1).inbox
    agent.release()


def test_taking_the_lease_instead_is_refused_while_it_is_held(
    here: ShippingBackend, there: Callable[..., Ended]
) -> None:
    """A live holder is not pushed aside; a free lease is taken, and the action settled at once."""
    agent = interrupted(here)
    assert there(*SETTLE, "--take").code == 4
    agent.release()
    taken = there(*SETTLE, "--take")
    assert taken.code == 0, taken.err
    assert resumed(here).view.action(1).status == "done"


def test_in_the_holder_s_own_directory_it_is_done_and_shipped_at_once(
    here: ShippingBackend, run_recall: Run, there: Callable[..., Ended]
) -> None:
    """Beside a live holder, and after it: nobody has to wait, and the other machine sees the outcome."""
    interrupted(here)
    beside = run_recall(*SETTLE, env={**CREDENTIALS, "RECALL_DIR": str(here.directory)})
    assert beside.code == 0, beside.err
    again = there("--json", *SETTLE)
    assert again.code == 6 and "already done" in again.err


def test_a_free_lease_that_was_this_directory_s_is_taken_for_the_moment(here: ShippingBackend, run_recall: Run) -> None:
    """Nobody is fenced by it, so settling on the agent's own machine is as it is without a bucket."""
    interrupted(here).release()
    done = run_recall(*SETTLE, env={**CREDENTIALS, "RECALL_DIR": str(here.directory)})
    assert done.code == 0, done.err


def test_a_queued_resolution_is_carried_out_by_the_next_resumption(
    here: ShippingBackend, there: Callable[..., Ended]
) -> None:
    """Of several queued at once each is reported; the one who resumes is told how many were carried out."""
    agent = interrupted(here)
    agent.begin_action("fax", "external")
    agent.release()
    agent = resumed(here)
    agent.release()
    bulk = there("actions", "resolve", "-a", "bot", "1", "2", "failed", "--reason", "looked", "--yes")
    assert bulk.code == 7 and "2 queued" in bulk.err
    told = there("resume", "bot")
    assert told.code == 0 and "2 queued resolutions were carried out" in told.err
    assert [each.status for each in resumed(here).view.actions()] == ["failed", "failed"]


# -- what was set aside -------------------------------------------------------------------------


def taken_over(here: ShippingBackend, tmp_path: Path, location: Location, bucket: Breaking, agent: Agent) -> None:
    """Another machine takes over and goes on; the first one comes back, and what it alone had is set aside."""
    other = machine(tmp_path / "other", location)
    break_lease(other, "bot", by="me", why="to go on elsewhere")
    it = resumed(other)
    it.record_turn("user", "from elsewhere")
    it.release()
    other.close()
    with pytest.raises(LeaseLost):
        agent.release()
    resumed(here).release()


def test_the_command_says_on_any_machine_what_never_ran(
    here: ShippingBackend,
    there: Callable[..., Ended],
    run_recall: Run,
    tmp_path: Path,
    location: Location,
    bucket: Breaking,
) -> None:
    """Counted where actions are listed, listed with a verdict by --set-aside, read from the bucket by --remote."""
    agent = resumed(here)
    bucket.down = True
    with suppress(NotShipped):
        agent.begin_action("mail", "external", {"to": "x"})
    bucket.down = False
    taken_over(here, tmp_path, location, bucket, agent)
    at_home = {**CREDENTIALS, "RECALL_DIR": str(here.directory)}
    listed = run_recall("actions", "list", "bot", env=at_home)
    assert listed.out == "" and "1 action was set aside: recall actions list bot --set-aside" in listed.err
    [row] = json.loads(run_recall("--json", "actions", "list", "bot", "--set-aside", env=at_home).out)
    assert (row["tool"], row["verdict"], row["set_aside"]) == ("mail", "never executed", "aside 2")
    shown = run_recall("--json", "aside", "show", "bot", "2", env=at_home)
    assert [each["verdict"] for each in json.loads(shown.out) if each["kind"] == "action"] == ["never executed"]
    elsewhere = there("--json", "actions", "list", "bot", "--set-aside", "--remote")
    [row] = json.loads(elsewhere.out)
    assert (row["verdict"], row["store"]) == ("never executed", here.store_id)
    assert "never executed" in there("actions", "list", "bot", "--set-aside", "--remote").out
    [filed] = json.loads(there("--json", "aside", "list", "bot", "--remote").out)
    assert filed["store"] == here.store_id and filed["records"] >= 1


def test_a_close_that_was_set_aside_is_shown_to_whoever_settles_the_call(
    here: ShippingBackend,
    there: Callable[..., Ended],
    tmp_path: Path,
    location: Location,
    bucket: Breaking,
) -> None:
    """It stands with the action, and in what a resolver is given; it settles nothing by itself."""
    agent = resumed(here)
    agent.begin_action("mail", "external", {"to": "x"})
    bucket.down = True
    with suppress(NotShipped):
        agent.end_action(1, "done", "sent as 42")
    bucket.down = False
    taken_over(here, tmp_path, location, bucket, agent)
    assert there("resume", "bot").code == 0
    shown = json.loads(there("--json", "actions", "show", "-a", "bot", "1", "--remote").out)
    assert shown["status"] == "unknown"
    [close] = shown["evidence"]
    assert (close["status"], close["result"]) == ("done", "sent as 42")
    assert "sent as 42" in there("actions", "show", "-a", "bot", "1", "--remote").out
    asked = 'python3 -c \'import json,sys; print(json.load(sys.stdin)["evidence"][0]["result"])\''
    told = there("actions", "resolve", "-a", "bot", "1", "--with", asked)
    assert told.code == 0, told.err
    settled = json.loads(there("--json", "actions", "show", "-a", "bot", "1").out)
    assert (settled["status"], settled["result"].strip()) == ("done", "sent as 42")


def test_a_successor_is_told_once_that_calls_may_have_run_elsewhere(
    there: Callable[..., Ended], tmp_path: Path, location: Location
) -> None:
    """After a holder elsewhere that did not wait for the bucket and never said goodbye; not after one that did."""
    lazy = machine(tmp_path / "lazy", location, ship="lazy")
    resumed(lazy, "one", ttl_ms=1_000)
    resumed(lazy, "two").release()
    strict = machine(tmp_path / "strict", location)
    resumed(strict, "three", ttl_ms=1_000)
    said = "had the lease in mode lazy: calls may have run there that are not in the log"
    assert said in there("resume", "one", "--wait", "30s").err
    assert said not in there("resume", "one").err
    assert said not in there("resume", "two").err
    assert said not in there("resume", "three", "--wait", "30s").err
    lazy.close()
    strict.close()


def test_a_step_that_may_still_run_elsewhere_is_left_alone_or_asked_about(
    there: Callable[..., Ended], tmp_path: Path, location: Location
) -> None:
    """Run again it names the time and the holder, exit 8; a resolver that can tell is believed at once."""
    silent = machine(tmp_path / "silent", location)
    for name in ("one", "two"):
        agent = resumed(silent, name, ttl_ms=1_000, holder="silent-host:7")
        agent.begin_action("echo", "external", '["echo","sent"]', step="send", max_ms=3_600_000)
        assert there("resume", name, "--wait", "30s").code == 0
    run = ("--class", "external", "--step", "send", "--", "echo", "sent")
    left = there("run", "-a", "one", *run)
    assert left.code == 8 and left.out == ""
    assert "may still be running until 20" in left.err and "on silent-host:7" in left.err
    asked = there("run", "-a", "one", "--resolver", "exit 7", *run)
    assert (asked.code, asked.out) == (8, "")
    assert there("run", "-a", "one", "--resolver", "printf was-sent", *run).out == "was-sent"
    assert there("run", "-a", "two", "--resolver", "exit 1", *run).out == "sent\n"
    silent.close()


def test_a_person_is_told_until_when_a_call_may_run(
    there: Callable[..., Ended], tmp_path: Path, location: Location
) -> None:
    """In the briefing, in the list and at resolve, which takes it with --force."""
    silent = machine(tmp_path / "silent", location)
    agent = resumed(silent, ttl_ms=1_000, holder="silent-host:7")
    agent.begin_action("mail", "external", max_ms=3_600_000)
    told = there("resume", "bot", "--wait", "30s")
    assert "may still be running until 20" in told.out and "silent-host:7" in told.out
    assert "started (may still be running until 20" in there("actions", "list", "bot").out
    refused = there(*SETTLE)
    assert refused.code == 8 and "--force" in refused.err
    assert there(*SETTLE, "--force").code == 0
    silent.close()
