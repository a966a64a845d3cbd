"""actions begin, end, resolve, amend and retry, by flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.client import Client
from tests.cli.acting import document, looking, lsn, session
from tests.conftest import Run

CALL = ("--tool", "send_email", "--class")


@pytest.fixture
def interrupted(tmp_path: Path) -> None:
    """Five interrupted calls of x: external 1 to 3 (2 of another tool), idempotent 4 and 5."""
    with Client(local_dir=tmp_path / "recall-data") as client:
        with client.resume("x") as it:
            for tool in ("send_email", "deploy", "send_email"):
                it.begin_action(tool, "external", {"to": tool})
            for _ in range(2):
                it.begin_action("charge", "idempotent", "card")
        client.resume("x").release()


def test_begin_prints_what_a_script_reads(run_recall: Run, tmp_path: Path) -> None:
    """One line of seq, key and status; end closes it, and the first close wins."""
    env = session(run_recall)
    done = run_recall("actions", "begin", *CALL, "external", "--args", '{"to": "boss"}', env=env)
    assert done.code == 0, done.err
    seq, key, status = done.out.removesuffix("\n").split("\t")
    assert (seq, len(key), status) == ("1", 32, "started")
    assert run_recall("actions", "end", seq, "done", "--result", "-", env=env, input="250 OK").code == 0
    late = run_recall("actions", "end", seq, "failed", "--error", "no", env=env)
    assert (late.code, "action 1 is already done" in late.err, "250 OK" in late.err) == (6, True, True)
    with looking(tmp_path) as view:
        action = view.action(1)
    assert (action.args, action.result, action.key, action.status) == ('{"to":"boss"}', "250 OK", key, "done")


def test_json_arguments_are_the_same_call_however_spaced(run_recall: Run) -> None:
    """Arguments that start as JSON are kept in compact form; any other text is kept as it is."""
    env = session(run_recall)
    step = ("actions", "begin", *CALL, "idempotent", "--step", "s", "--json")
    first = document(run_recall(*step, "--args", '{"a": [1, 2.50]}', env=env))
    again = document(run_recall(*step, "--args", ' {"a":[1,2.5]}\n', env=env))
    assert (first["seq"], first["args"], again["seq"]) == (1, '{"a":[1,2.5]}', 1)
    text = document(run_recall("actions", "begin", *CALL, "pure", "--args", "a  {b}", "--json", env=env))
    assert text["args"] == "a  {b}"


def test_a_step_that_is_done_says_so(run_recall: Run) -> None:
    """begin of a done step prints its seq and key with done, exits 0 and records nothing."""
    env = session(run_recall)
    step = ("actions", "begin", *CALL, "external", "--step", "mail")
    seq = run_recall(*step, env=env).out.split("\t")[0]
    run_recall("actions", "end", seq, "done", env=env)
    again = run_recall(*step, env=env)
    assert (again.code, again.out.split("\t")[2], "do not call send_email" in again.err) == (0, "done\n", True)
    other = run_recall("actions", "begin", "--tool", "other", "--class", "external", "--step", "mail", env=env)
    assert (other.code, other.out) == (6, "")


def test_an_external_step_is_never_started_twice_by_one_session(run_recall: Run) -> None:
    """A step that this session began and did not end is exit 8: a second call might be a duplicate."""
    env = session(run_recall)
    step = ("actions", "begin", *CALL, "external", "--step", "mail")
    assert run_recall(*step, env=env).code == 0
    again = run_recall(*step, env=env)
    assert (again.code, again.out, "recall actions end 1 done|failed|abandoned" in again.err) == (8, "", True)
    assert run_recall("actions", "end", "1", "failed", env=env).code == 0
    assert run_recall(*step, env=env).code == 8
    retried = run_recall(*step, "--retry-failed", env=env)
    assert retried.out.startswith("2\t")


def test_an_interrupted_step_of_another_session(run_recall: Run) -> None:
    """After a takeover an idempotent step goes on with its key; an external one is exit 8 until it is resolved."""
    mine = session(run_recall)
    calls = {class_: ("actions", "begin", *CALL, class_, "--step", class_) for class_ in ("external", "idempotent")}
    keys = {class_: run_recall(*call, env=mine).out.split("\t")[1] for class_, call in calls.items()}
    run_recall("lease", "break", "-a", "x", "--reason", "test", "--yes")
    fenced = run_recall(*calls["idempotent"], env=mine)
    assert (fenced.code, fenced.out) == (5, "")
    other = session(run_recall)
    assert run_recall(*calls["idempotent"], env=other).out == f"2\t{keys['idempotent']}\tstarted\n"
    assert run_recall(*calls["external"], env=other).code == 8
    done = run_recall("actions", "resolve", "1", "abandoned", "--reason", "not in the outbox", env=other)
    assert done.code == 0, done.err
    seq, key, status = run_recall(*calls["external"], env=other).out.split("\t")
    assert (seq, key != keys["external"], status) == ("3", True, "started\n")


@pytest.mark.parametrize("command", [("begin", *CALL, "pure"), ("end", "1", "done")])
def test_a_session_is_needed_to_act(
    run_recall: Run, interrupted: None, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """begin and end without a token are exit 5 with the way to get one; nothing is written."""
    before = lsn(tmp_path)
    done = run_recall("actions", *command, "-a", "x")
    assert (done.code, done.out, "--export --holder-pid $$" in done.err) == (5, "", True)
    assert lsn(tmp_path) == before


def test_resolve_settles_with_reason_and_author(run_recall: Run, interrupted: None, tmp_path: Path) -> None:
    """resolve closes the action, keeps who and why, and tells the model in a tool turn."""
    (tmp_path / "answer").write_text("250 OK\n")
    done = run_recall("actions", "resolve", "-a", "x", "1", "done", "--reason", "outbox", "--result", "@answer")
    assert (done.code, done.out) == (0, "x 1 (send_email): done\n")
    with looking(tmp_path) as view:
        action, turn = view.action(1), next(view.turns())
    assert (action.status, action.result, action.resolution) == ("done", "250 OK\n", "outbox")
    assert "@" in action.by
    assert (turn.role, turn.name, turn.content, "outbox" in turn.brief) == ("tool", "send_email", "250 OK\n", True)
    again = run_recall("actions", "resolve", "-a", "x", "1", "failed", "--reason", "no")
    assert (again.code, again.out, "already done" in again.err) == (6, "", True)
    assert run_recall("actions", "resolve", "-a", "x", "99", "done", "--reason", "no").code == 3


def test_resolve_beside_a_live_holder(run_recall: Run, interrupted: None, tmp_path: Path) -> None:
    """An unknown action may be settled while the agent lives; one that may be running needs --force."""
    env = session(run_recall)
    run_recall("actions", "begin", *CALL, "external", env=env)
    assert run_recall("actions", "resolve", "-a", "x", "1", "done", "--reason", "r").code == 0
    running = run_recall("actions", "resolve", "-a", "x", "6", "done", "--reason", "r")
    assert (running.code, "--force" in running.err) == (6, True)
    assert run_recall("actions", "resolve", "-a", "x", "6", "done", "--reason", "r", "--force").code == 0
    late = run_recall("actions", "end", "6", "failed", env=env)
    assert (late.code, "settled by" in late.err) == (6, True)
    assert run_recall("turns", "add", "--role", "user", "still mine", env=env).code == 0


def test_several_are_settled_and_each_reported(run_recall: Run, interrupted: None, tmp_path: Path) -> None:
    """Of several, those that can be are settled; each refusal is a line of its own and the exit code is 6."""
    run_recall("actions", "resolve", "-a", "x", "1", "done", "--reason", "first")
    several = ("actions", "resolve", "-a", "x", "1", "2", "99", "4", "failed", "--reason", "r", "--error", "gone")
    before = lsn(tmp_path)
    assert run_recall(*several).code == 2
    planned = run_recall(*several, "--dry-run")
    assert (planned.code, planned.out.count("would be failed")) == (6, 2)
    assert lsn(tmp_path) == before
    done = run_recall(*several, "--yes", "--json")
    assert done.code == 6
    results = json.loads(done.out)
    assert [(each["seq"], each["outcome"], each["code"]) for each in results] == [
        *((1, "refused", "action_closed"), (2, "failed", "")),
        *((99, "refused", "not_found"), (4, "failed", "")),
    ]
    assert results[1]["action"]["error"] == "gone"
    with looking(tmp_path) as view:
        assert [view.action(n).status for n in (1, 2, 3, 4, 5)] == ["done", "failed", "unknown", "failed", "started"]
        lease = view.backend.lease("x")
        assert lease is not None
        assert (lease.epoch, lease.state) == (4, "released")  # one lease for the whole lot


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), [1, 2, 3, 4, 5]),
        (("--class", "external"), [1, 2, 3]),
        (("--tool", "send_email"), [1, 3]),
        (("--status", "started"), [4, 5]),
        (("--text", "DEPLOY"), [2]),
        (("--older-than", "1h"), []),
        (("--older-than", "0s", "--class", "idempotent"), [4, 5]),
    ],
)
def test_filters_choose_among_the_pending(
    run_recall: Run, interrupted: None, filters: tuple[str, ...], expected: list[int]
) -> None:
    """--all-pending takes what all the filters let through; none is an empty list and no failure."""
    bulk = ("actions", "resolve", "-a", "x", "--all-pending", "abandoned", "--reason", "r", *filters)
    planned = document(run_recall(*bulk, "--dry-run", "--json"))
    assert [each["seq"] for each in planned] == expected
    settled = document(run_recall(*bulk, "--yes", "--json"))
    assert [each["outcome"] for each in settled] == ["abandoned"] * len(expected)


def test_all_pending_without_an_agent_means_all_agents(run_recall: Run, interrupted: None, tmp_path: Path) -> None:
    """Without an agent the bulk form settles those of every agent."""
    with Client(local_dir=tmp_path / "recall-data") as client, client.resume("y") as it:
        it.begin_action("t", "external")
    done = document(run_recall("actions", "resolve", "--all-pending", "done", "--reason", "r", "--yes", "--json"))
    assert [(each["agent_id"], each["seq"]) for each in done] == [*(("x", n) for n in range(1, 6)), ("y", 1)]


def test_a_wrong_resolution_is_amended_and_retried(run_recall: Run, interrupted: None, tmp_path: Path) -> None:
    """amend adds a note and changes nothing else; retry is a new attempt, linked, in the session that runs it."""
    run_recall("actions", "resolve", "-a", "x", "4", "done", "--reason", "wrong")
    amended = document(run_recall("actions", "amend", "-a", "x", "4", "--note", "it was not done", "--json"))
    assert (amended["status"], amended["notes"]) == ("done", ["it was not done"])
    env = session(run_recall)
    retried = document(run_recall("actions", "retry", "4", "--json", env=env))
    assert (retried["seq"], retried["retry_of"], retried["status"]) == (6, 4, "started")
    assert retried["key"] == amended["key"]
    assert run_recall("actions", "retry", "5", env=env).code == 2
    assert run_recall("actions", "retry", "99", env=env).code == 3


def test_large_arguments_and_results_are_kept_whole(run_recall: Run, tmp_path: Path) -> None:
    """10 MB of arguments and of a result become outputs."""
    env = session(run_recall)
    big = json.dumps({"data": "x" * 10_000_000})
    action = document(run_recall("actions", "begin", *CALL, "pure", "--args", "-", "--json", env=env, input=big))
    assert (action["args"], action["args_ref"]) == ("", "act-1-args")
    done = document(run_recall("actions", "end", "1", "done", "--result", "-", "--json", env=env, input=big))
    assert done["result_ref"] == "act-1-result"
    with looking(tmp_path) as view:
        assert json.loads(view.output("act-1-args").content) == json.loads(big)
