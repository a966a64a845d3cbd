"""``recall remote``, and the whole story of two machines and a bucket, through the command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.test_act_startup import RUN, modules
from tests.conftest import Run
from tests.shipping.commands import Machines, variables
from tests.shipping.faults import ConditionIgnored
from tests.shipping.proxy import Proxy
from tests.shipping.servers import Server, shared_server


@pytest.fixture
def machines(run_recall: Run, tmp_path: Path, server: Server) -> Machines:
    """Machines on an empty place of each server."""
    return Machines(run_recall, tmp_path, server.location())


@pytest.fixture
def simple(run_recall: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Machines:
    """Machines on an empty place of one server, for what is not about servers."""
    return Machines(run_recall, tmp_path, shared_server("seaweedfs", tmp_path_factory).location())


def test_the_whole_story(machines: Machines) -> None:
    """A is lost in the middle of an email; B settles and finishes; a copy of A is refused, and its records shown."""
    machines.write("a", "before the bucket")
    assert "bot: shipped, lsn 2" in machines.attach("a").out
    taken = machines.json("a", "resume", "bot", "--export", "--holder-pid", str(os.getpid()))
    session = {"RECALL_AGENT": "bot", "RECALL_LEASE": taken["lease"]}
    machines("a", "actions", "begin", "--tool", "email", "--class", "external", env=session)
    machines("a", "turns", "add", "--role", "user", "not shipped", env=session)
    shutil.copytree(machines.directory("a"), machines.directory("copy"))
    shutil.rmtree(machines.directory("a"))

    assert "1 agent(s) that are not here yet" in machines.attach("b").err
    assert "lease is held by" in machines("b", "resume", "bot", code=4).err
    machines("b", "sync", "pull", "--all")
    machines("b", "lease", "break", "bot", "--reason", "its machine is gone", "--yes")
    assert "It may have happened" in machines("b", "resume", "bot").out
    machines("b", "actions", "resolve", "-a", "bot", "1", "done", "--reason", "the customer has it")
    machines.write("b", "finished")
    assert "finished" in machines.texts("b")
    assert "not shipped" not in machines.texts("b")

    late = machines("copy", "actions", "begin", "--tool", "email", "--class", "external", env=session, code=5)
    assert "lease was lost" in late.err
    machines("copy", "sync", "pull", "bot")
    aside = machines.json("copy", "aside", "list", "bot")
    assert [each["records"] for each in aside] == [2]
    assert machines.texts("copy") == machines.texts("b")
    assert machines.json("copy", "actions", "list", "bot")[0]["status"] == "done"
    assert machines.sound("b", "copy")


def test_what_is_shown_of_the_remote(simple: Machines) -> None:
    """Where, since when, how it speaks, what the mode promises; check asks the bucket, step by step."""
    simple.prepare("a")
    value = json.loads(simple.attach("b", "--json", "--pull").out)
    assert (value["state"], value["made"], value["already"], value["generation"]) == ("attached", False, False, 1)
    assert (value["agents"], value["in_bucket"]) == ([], 1)
    assert [(each["agent"], each["outcome"]) for each in value["pulled"]] == [("bot", "fetched")]
    shown = simple.json("a", "--ship", "lazy", "remote", "show")
    assert (shown["remote"], shown["id"], shown["ship"]) == (simple.location.url, value["id"], "lazy")
    assert (shown["agents"], shown["trouble"], shown["dialect"]["quoted"]) == (1, [], True)
    assert "promise:" in simple("a", "remote", "show").out
    steps = [each["step"] for each in simple.json("a", "remote", "check")]
    assert steps == ["credentials", "recall.json", "head", "probe"]


def test_check_names_the_step_that_fails(simple: Machines) -> None:
    """A lost recall.json, credentials that are not let in and a network that is gone are three different lines."""
    simple.prepare("a")
    wrong = {"AWS_SECRET_ACCESS_KEY": "wrong"}
    assert "refuses" in simple("a", "remote", "check", env=wrong, code=7).err
    simple.delete("recall.json")
    gone = simple("a", "remote", "check", code=6)
    assert "ok credentials" in gone.out
    assert "recall.json is gone" in gone.err


def test_a_store_that_ignores_conditions_is_refused_by_the_step(
    run_recall: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The probe comes first, and nothing is made: neither a store here nor an object there."""
    server = shared_server("moto", tmp_path_factory)
    with Proxy(server.endpoint) as proxy:
        ignored = proxy.inject(ConditionIgnored(), "put", times=None)
        machines = Machines(run_recall, tmp_path, server.location(endpoint_url=proxy.endpoint))
        refused = machines.attach("a", code=7)
    assert ignored.happened
    assert "create it again" in refused.err
    assert not machines.directory("a").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("attach",), 2, "missing argument"),
        (("attach", "bucket/prefix"), 2, "must start with s3://"),
        (("attach", "s3://"), 2, "no valid bucket name"),
        (("attach", "s3://box/p?region=x"), 2, "prefix"),
        (("attach", "s3://box/p", "--endpoint-url", "ftp://x"), 2, "http or https"),
        (("attach", "s3://box/p", "--sse", "rot13"), 2, "rot13"),
        (("attach", "s3://box/p", "--sse-kms-key", "k"), 2, "aws:kms"),
        (("attach", "s3://box/p", "--endpoint-url", "http://127.0.0.1:9"), 7, "cannot be reached"),
        (("attach", "s3://box/p", "--profile", "nobody"), 7, "nobody"),
        (("show",), 3, "no store in"),
        (("check",), 3, "no store in"),
        (("detach", "--yes"), 3, "no store in"),
        (("detach", "--take", "--fork"), 2, "cannot be combined"),
        (("repair",), 2, "agent is not named"),
        (("repair", "bot"), 3, "no store in"),
        (("repair", "bot", "--keep", "both"), 2, "both"),
        (("repair", "-bad-"), 2, ""),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    run_recall: Run, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """Each refusal says what was wrong, with its exit code, and makes no store."""
    machines = Machines(run_recall, tmp_path, None)
    assert said in machines("a", "remote", *words, code=code).err
    assert not machines.directory("a").exists()


def test_detaching_asks_first(simple: Machines, run_on_terminal: Run) -> None:
    """In a script it needs --yes; what is not shipped stops it; then the agents can be read, or go on here."""
    simple.prepare("a")
    simple.write("a", "pending", env={"RECALL_SHIP": "off"})
    assert "--yes" in simple("a", "remote", "detach", code=2).err
    assert "recall sync push bot" in simple("a", "remote", "detach", "--yes", code=7).err
    simple("a", "sync", "push")
    asked = run_on_terminal("remote", "detach", dialogue=[("[y/N]", "n\n")], env=variables(simple.directory("a")))
    assert "nothing was changed" in asked.out
    assert "bot: kept" in simple("a", "remote", "detach", "--yes").out
    assert "recall remote detach --help" in simple.write("a", "refused", code=7).err
    forked = simple.json("a", "remote", "detach", "--fork", "--yes")
    assert (forked["state"], forked["agents"][0]["outcome"]) == ("local", "forked")
    simple.write("a", "two")
    assert simple.texts("a") == ["turn 0", "pending", "two"]


def test_repair_shows_before_it_does_anything(simple: Machines) -> None:
    """Without --keep it only shows; with it a script needs --yes; then the agent goes on."""
    simple.prepare("a")
    assert "nothing to mend" in simple("a", "remote", "repair", "bot").out
    simple.delete("agents/bot/head.json")
    assert "recall remote repair bot" in simple.write("a", "refused", code=9).err
    assert simple.json("a", "sync", "status")[0]["trouble"] == "head missing"
    shown = simple("a", "remote", "repair", "bot")
    assert "bot: head missing" in shown.out
    assert "--keep here" in shown.err
    assert "cannot be remote" in simple("a", "remote", "repair", "bot", "--keep", "remote", code=2).err
    assert "--yes" in simple("a", "remote", "repair", "bot", "--keep", "here", code=2).err
    planned = simple.json("a", "remote", "repair", "bot", "--keep", "here", "--dry-run")
    assert (planned["trouble"], planned["repaired"]) == ("head missing", None)
    done = simple.json("a", "remote", "repair", "bot", "--keep", "here", "--yes")
    assert (done["repaired"]["kept"], done["repaired"]["last"]) == ("here", 2)
    simple.write("a", "three")
    assert simple.texts("a") == ["turn 0", "three"]
    assert simple.sound("a")


def test_a_container_needs_nothing_but_the_name_of_a_bucket(simple: Machines) -> None:
    """RECALL_REMOTE attaches a fresh store at its first write; one that ships elsewhere or has agents is refused."""
    there = simple.location
    named = {"RECALL_REMOTE": f"{there.url}?endpoint_url={there.endpoint_url}&region={there.region}"}
    simple.write("a", "one", env=named)
    shutil.rmtree(simple.directory("a"))
    simple.write("a", "two", env=named)
    assert simple.texts("a") == ["one", "two"]
    simple("b", "sync", "pull", "--all", env=named)
    assert simple.texts("b") == ["one", "two"]
    other = {"RECALL_REMOTE": named["RECALL_REMOTE"].replace("?", "-other?")}
    assert "is attached to" in simple.write("a", "three", env=other, code=2).err
    simple.write("c", "by itself")
    assert "has agents" in simple.write("c", "more", env=named, code=2).err
    assert "RECALL_REMOTE" in simple.write("a", "x", env={"RECALL_REMOTE": "gs://x"}, code=2).err
    assert simple.texts("a") == ["one", "two"]


@pytest.mark.parametrize("command", [("turns", "add", "--role", "user", "hi"), ("agents", "list"), ("turns", "list")])
def test_a_store_without_a_bucket_loads_nothing_of_it(environment: dict[str, str], command: tuple[str, ...]) -> None:
    """The SDK and the modules of shipping are for stores that ship."""
    bot = {**environment, "RECALL_AGENT": "bot"}
    modules(RUN, bot, "turns", "add", "--role", "user", "there is a store")
    loaded = modules(RUN, bot, *command)
    assert {each for each in loaded if each.split(".")[0] in ("botocore", "urllib3")} == set()
    assert {each for each in loaded if each.startswith("store.shipping")} == set()


def test_looking_at_a_store_that_ships_loads_no_sdk(simple: Machines, environment: dict[str, str]) -> None:
    """Status and show answer from what is stored here."""
    simple.prepare("a")
    for words in (("sync", "status"), ("remote", "show"), ("turns", "list", "bot")):
        loaded = modules(RUN, {**environment, **variables(simple.directory("a"))}, *words)
        assert "botocore" not in {each.split(".")[0] for each in loaded}, words
