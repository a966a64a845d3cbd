"""recall run: what is recorded of a command, what is replayed, what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import time

import pytest

from tests.shell.conftest import AGENT, Shell, little_memory, until

EFFECT = "echo x >> effects"


def test_a_done_step_replays_its_output_and_does_not_run_again(shell: Shell) -> None:
    """Run twice, a step has one effect; stdout and stderr come again, and stderr says since when."""
    step = ("run", "--class", "external", "--step", "s", "--", "sh", "-c", f"{EFFECT}; echo out; echo err >&2")
    first, second = shell.recall(*step), shell.recall(*step)
    assert (first.code, first.out, first.err) == (0, "out\n", "err\n")
    assert (second.code, second.out) == (0, "out\n")
    assert re.fullmatch(r"step 's' was done at \d{4}-\S+Z \(action 1\); its output is replayed\nerr\n", second.err), (
        second.err
    )
    assert shell.count() == 1


def test_without_a_step_each_call_runs(shell: Shell) -> None:
    """A call that is no step is recorded, and happens each time."""
    for _ in range(2):
        assert shell.recall("run", "--class", "pure", "--", "sh", "-c", EFFECT).code == 0
    assert (shell.count(), shell.statuses()) == (2, ["done", "done"])


def test_a_class_is_needed_once_and_then_remembered(shell: Shell) -> None:
    """The first use of a tool is refused without a class, saying what each means; later ones know it."""
    refused = shell.recall("run", "--", "true")
    assert refused.code == 2
    assert all(word in refused.err for word in ("--class", "pure:", "idempotent:", "external:"))
    assert shell.actions() == []
    assert shell.recall("run", "--class", "external", "--", "true").code == 0
    assert shell.recall("run", "--", "true").code == 0
    assert [each.class_ for each in shell.actions()] == ["external", "external"]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (("--class", "pure", "--", "echo", "b"), "another set of arguments"),
        (("--class", "external", "--", "echo", "a"), "another class"),
        (("--class", "pure", "--tool", "say", "--", "echo", "a"), "another tool"),
    ],
)
def test_a_step_is_one_call(shell: Shell, changed: tuple[str, ...], what: str) -> None:
    """The same step name with another tool, class or arguments is a conflict, and nothing runs."""
    assert shell.recall("run", "--class", "pure", "--step", "s", "--", "echo", "a").code == 0
    refused = shell.recall("run", "--step", "s", *changed)
    assert (refused.code, refused.out) == (6, "")
    assert what in refused.err
    assert len(shell.actions()) == 1


def test_given_args_are_the_identity_instead_of_the_command_line(shell: Shell) -> None:
    """With --args the command line may change; the same JSON in another order is the same call."""
    step = ("run", "--class", "pure", "--step", "s", "--tool", "t", "--args")
    assert shell.recall(*step, '{"a":1,"b":2}', "--", "echo", "one").out == "one\n"
    assert shell.recall(*step, '{"b":2, "a":1}', "--", "echo", "two").out == "one\n"
    assert shell.recall(*step, '{"a":2}', "--", "echo", "one").code == 6
    assert shell.recall(*step, "{", "--", "echo", "one").code == 2


def test_its_status_is_ours(shell: Shell) -> None:
    """The exit status of the command, 128 + N by signal, 127 and 126 where it cannot be started."""
    (shell.here / "plain").write_text("no program")
    for command, code in (
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-command",), 127),
        (("./plain",), 126),
    ):
        assert shell.recall("run", "--class", "pure", "--", *command).code == code, command
    assert shell.statuses() == ["failed"] * 5


def test_a_failed_step_is_attempted_again(shell: Shell) -> None:
    """A pure or idempotent step that failed runs again; the idempotent one with the same key."""
    for class_ in ("pure", "idempotent"):
        step = ("run", "--class", class_, "--step", class_, "--tool", class_, "--", "sh", "-c")
        text = f"echo $RECALL_IDEMPOTENCY_KEY >> {class_}; test -e ok-{class_}"
        assert shell.recall(*step, text).code == 1
        (shell.here / f"ok-{class_}").touch()
        assert shell.recall(*step, text).code == 0
        keys = (shell.here / class_).read_text().split()
        assert len(keys) == 2
        assert (keys[0] == keys[1]) == (class_ == "idempotent")


def test_a_failed_external_step_waits_for_somebody(shell: Shell) -> None:
    """It may have happened in part: exit 8 until --retry-failed or a resolver says that it may run again."""
    text = f"{EFFECT}; test -e ok"
    step = ("--class", "external", "--step", "s", "--", "sh", "-c", text)
    assert shell.recall("run", *step).code == 1
    refused = shell.recall("run", *step)
    assert (refused.code, shell.count()) == (8, 1)
    assert "--retry-failed" in refused.err
    assert shell.recall("run", "--resolver", "exit 2", *step).code == 8
    assert shell.recall("run", "--retry-failed", *step).code == 1
    (shell.here / "ok").touch()
    assert shell.recall("run", "--resolver", "exit 1", *step).code == 0
    assert (shell.count(), shell.statuses()) == (3, ["failed", "failed", "abandoned", "done"])


def test_a_resolver_speaks_of_the_attempt_that_it_was_asked_about(shell: Shell) -> None:
    """Where the step fails once more while the resolver thinks, that attempt does not run again unasked."""
    (shell.here / "step").write_text(f'exec recall run --class external --step s "$@" -- sh -c "{EFFECT}; exit 1"\n')
    (shell.here / "ask").write_text(
        "echo $RECALL_ACTION_SEQ >> asked\ntest $RECALL_ACTION_SEQ = 2 || sh step --retry-failed >&2\nexit 1\n"
    )
    shell.script("sh step; sh step --resolver 'sh ask'")
    assert (shell.here / "asked").read_text().split() == ["1", "2"]
    assert (shell.count(), shell.statuses()) == (3, ["failed", "failed", "abandoned", "failed"])


def test_a_failed_external_step_may_turn_out_to_have_happened(shell: Shell) -> None:
    """The resolver finds that it happened: its answer becomes the step's result, and nothing runs."""
    step = ("--class", "external", "--step", "s", "--", "sh", "-c", f"{EFFECT}; exit 1")
    assert shell.recall("run", *step).code == 1
    found = shell.recall("run", "--resolver", "echo receipt", *step)
    assert (found.code, found.out, shell.count()) == (0, "receipt\n", 1)
    assert shell.recall("run", *step).out == "receipt\n"


@pytest.mark.parametrize("how", ["signal", "timeout"])
def test_an_external_command_that_was_cut_off_is_unknown(shell: Shell, how: str) -> None:
    """A signal or a time-out leaves an external step unknown; its resolver gets the action and decides."""
    text = f"{EFFECT}; kill -KILL $$" if how == "signal" else f"{EFFECT}; sleep 60"
    step = ("--class", "external", "--step", "s", "--timeout", "1", "--", "sh", "-c", text)
    assert shell.recall("run", *step).code == (137 if how == "signal" else 124)
    assert shell.statuses() == ["unknown"]
    assert shell.recall("run", *step).code == 8
    ask = "cat > action.json; test $RECALL_ACTION_STEP = s && echo yes"
    assert shell.recall("run", "--resolver", ask, *step).out == "yes\n"
    assert (shell.count(), shell.statuses()) == (1, ["done"])
    assert f'"key": "{shell.actions()[0].key}"' in (shell.here / "action.json").read_text()


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_pure_command_that_ran_out_of_time_failed(shell: Shell) -> None:
    """--timeout ends the whole process group, with SIGKILL where SIGTERM is ignored, and exits 124."""
    text = "trap '' TERM; echo $$ > pid; sleep 60 & wait; sleep 60"
    begun = time.monotonic()
    assert shell.recall("run", "--class", "pure", "--timeout", "1", "--", "bash", "-c", text).code == 124
    assert time.monotonic() - begun < 30
    assert shell.statuses() == ["failed"]
    until(lambda: not group_lives(shell.pid("pid")), timeout=10)  # init reaps what was orphaned when it comes to it


def test_a_resolver_that_hangs_is_ended(shell: Shell) -> None:
    """It gets --resolver-timeout seconds, with all that it started; then it cannot tell: exit 8, nothing changed."""
    step = ("--class", "external", "--step", "s", "--", "sh", "-c", "kill -KILL $$")
    shell.recall("run", *step)
    hangs = "setsid sleep 20 2> /dev/null & echo $! > left; sleep 60 2> /dev/null"
    begun = time.monotonic()
    refused = shell.recall("run", "--resolver", hangs, "--resolver-timeout", "1", *step)
    os.kill(shell.pid("left"), 9)
    assert time.monotonic() - begun < 15
    assert (refused.code, shell.statuses()) == (8, ["unknown"])
    assert "the resolver could not tell" in refused.err


def test_a_resolver_that_talks_without_end_is_bounded(shell: Shell) -> None:
    """Gigabytes from a resolver are neither kept in memory nor waited for beyond its time."""
    step = ("--class", "external", "--step", "s", "--", "sh", "-c", "kill -KILL $$")
    shell.recall("run", *step)
    refused = shell.recall("run", "--resolver", "exec yes", "--resolver-timeout", "1", *step, preexec_fn=little_memory)
    assert refused.code == 8, refused.err


def test_the_outcome_file_tells_a_status_from_a_refusal(shell: Shell) -> None:
    """JSON says whether it ran, was replayed or refused, with the code; it is there whole or not at all."""
    step = ("run", "--outcome-file", "outcome", "--class", "pure", "--step", "s", "--", "sh", "-c")
    shell.recall(*step, "test -e ok || exit 6")
    ran = shell.outcome()
    assert (ran["ran"], ran["refused"], ran["code"], ran["status"], ran["step"]) == (True, False, 6, "failed", "s")
    (shell.here / "ok").touch()
    shell.recall(*step, "test -e ok || exit 6")
    shell.recall(*step, "test -e ok || exit 6")
    replayed = shell.outcome()
    assert (replayed["ran"], replayed["replayed"], replayed["code"]) == (False, True, 0)
    shell.recall(*step, "other")
    refused = shell.outcome()
    assert (refused["refused"], refused["code"], refused["reason"]) == (True, 6, "step_mismatch")
    assert not list(shell.here.glob("*.partial"))
    ended = shell.recall("run", "--outcome-file", "no/such/place", "--class", "pure", "--", "sh", "-c", "exit 9")
    assert ended.code == 9
    assert "could not be written" in ended.err


def test_words_that_are_no_text_reach_the_command(shell: Shell) -> None:
    """A file name of any bytes is passed on as it is, and recorded readably."""
    ended = shell.start("run", "--class", "pure", "--", "printf", "%s", b"\xff\xfe-\xc3\xa9")
    assert ended.communicate(timeout=60)[0] == b"\xff\xfe-\xc3\xa9"
    assert "\\\\xff\\\\xfe-é" in shell.actions()[0].args


def test_a_huge_command_line_is_kept_whole(shell: Shell) -> None:
    """A million bytes of arguments run, are recorded whole and are the identity of the step."""
    many = [str(number) + "x" * 1000 for number in range(1000)]
    step = ("run", "--class", "pure", "--step", "s", "--", "sh", "-c", "echo $#")
    assert shell.recall(*step, *many).out == "999\n"
    assert shell.recall(*step, *many).out == "999\n"
    assert shell.recall(*step, *many[:-1], "other").code == 6
    (action,) = shell.actions()
    assert action.args_ref


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--class", "mixed", "--", "true"), 2),
        (("--class", "pure", "--timeout", "soon", "--", "true"), 2),
        (("--class", "pure", "--output-limit", "-1", "--", "true"), 2),
        (("--class", "pure", "--step", "a\nb", "--", "true"), 2),
        (("--class", "pure", "--agent", "-x", "--", "true"), 2),
        (
            (
                "--class",
                "pure",
            ),
            2,
        ),
    ],
)
def test_a_wrong_use_is_one_line_and_runs_nothing(shell: Shell, words: tuple[str, ...], code: int) -> None:
    """A mistake in the words is exit 2, with a line that says which, before anything is recorded."""
    refused = shell.recall("run", *words)
    assert refused.code == code, refused.err
    assert refused.err and "Traceback" not in refused.err
    assert shell.actions() == []


def test_another_holder_is_refused_or_waited_for(shell: Shell) -> None:
    """Alone, run takes the lease for the command: a second one exits 4, or waits with --wait."""
    first = shell.start("run", "--class", "pure", "--", "sh", "-c", "touch begun; sleep 1.5")
    shell.wait("begun")
    refused = shell.recall("run", "--class", "pure", "--", "true")
    waited = shell.recall("run", "--class", "pure", "--wait", "30s", "--", "true")
    assert (refused.code, waited.code, shell.end(first).code) == (4, 0, 0)
    assert AGENT in refused.err


@pytest.mark.parametrize("under", ["exec", "alone"])
def test_the_same_step_at_once_runs_once(shell: Shell, under: str) -> None:
    """Two starts of a step: one runs; the other is refused, or with --wait replays what the first one did."""
    step = "recall run --class external --step s"
    work = f"-- sh -c 'touch begun; {EFFECT}; until [ -e go ]; do sleep 0.01; done; echo out'"
    script = f"""
        {step} {work} > first & first=$!
        until [ -e begun ]; do sleep 0.01; done
        {step} {work} > refused; echo $? > refused-code
        {{ {step} --wait 60s {work} > waited; echo $? > waited-code; }} & waited=$!
        sleep 0.5
        touch go
        wait $first $waited
    """
    if under == "exec":
        assert shell.script(script).code == 0
    else:
        subprocess.run(["bash", "-c", script], env=shell.environ, cwd=shell.here, check=True, stderr=subprocess.DEVNULL)
    read = {name: (shell.here / name).read_text() for name in ("first", "refused-code", "waited", "waited-code")}
    refusal = "8\n" if under == "exec" else "4\n"
    assert read == {"first": "out\n", "refused-code": refusal, "waited": "out\n", "waited-code": "0\n"}
    assert (shell.count(), shell.statuses()) == (1, ["done"])


def test_sigterm_is_passed_on(shell: Shell) -> None:
    """SIGTERM to run ends the command, and an external one is then unknown."""
    process = shell.start(
        "run", "--class", "external", "--", "sh", "-c", "trap 'exit 9' TERM; touch begun; sleep 60 & wait"
    )
    shell.wait("begun")
    process.terminate()
    assert shell.end(process).code == 9
    assert shell.statuses() == ["failed"]


def test_what_was_ignored_stays_ignored(shell: Shell) -> None:
    """Started to ignore SIGINT, as a script's background job is, run lets neither itself nor its command die of it."""
    script = "trap '' INT; exec recall run --class pure -- sh -c 'echo $$ > pid; until [ -e go ]; do sleep 0.01; done'"
    process = subprocess.Popen(["sh", "-c", script], env=shell.environ, cwd=shell.here, start_new_session=True)
    pid = shell.pid("pid")
    for victim in (process.pid, pid):
        os.kill(victim, 2)
    time.sleep(0.2)
    (shell.here / "go").touch()
    assert process.wait(timeout=60) == 0


def test_a_program_that_runs_others_has_no_class_of_its_own(shell: Shell) -> None:
    """The class of one sh -c says nothing of the next, unless the tool is named; other tools keep theirs."""
    assert shell.recall("run", "--class", "pure", "--", "sh", "-c", "true").code == 0
    refused = shell.recall("run", "--", "sh", "-c", "true")
    assert (refused.code, "which can do anything" in refused.err) == (2, True)
    assert shell.recall("run", "--class", "pure", "--tool", "check", "--", "sh", "-c", "true").code == 0
    assert shell.recall("run", "--tool", "check", "--", "sh", "-c", "true").code == 0
    assert shell.recall("run", "--class", "pure", "--", "true").code == 0
    assert shell.recall("run", "--", "true").code == 0


def test_a_command_that_could_not_start_burns_no_step(shell: Shell) -> None:
    """127, and the step is free: the right command under the same name runs."""
    step = ("run", "--class", "external", "--step", "z", "--")
    assert shell.recall(*step, "no-such-command").code == 127
    done = shell.recall(*step, "echo", "right")
    assert (done.code, done.out) == (0, "right\n")
