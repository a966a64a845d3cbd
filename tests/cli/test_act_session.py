"""resume, acquire, release, lease: the lease of one command, of a shell session, and an operator's hand on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.acting import document, looking, lsn, session
from tests.conftest import COMMAND, Run
from tests.needs import need


def _lease(run: Run, agent: str = "x") -> dict[str, object]:
    value = document(run("lease", "show", agent, "--json"))
    assert isinstance(value, dict)
    return value


@pytest.fixture
def shell_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process to be the holder, such as a shell."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_plain_resume_prints_the_briefing_and_releases(run_recall: Run) -> None:
    """stdout is the briefing and nothing else; the lease is free afterwards, at a new epoch."""
    run_recall("state", "set", "-a", "x", "--goal", "Move billing")
    done = run_recall("resume", "x")
    assert (done.code, done.out.startswith("You are agent x")) == (0, True)
    assert "Goal: Move billing\n" in done.out
    assert done.out == run_recall("resume", "x").out
    lease = _lease(run_recall)
    assert (lease["state"], lease["epoch"]) == ("released", 3)


def test_resume_settles_what_was_interrupted(run_recall: Run, shell_process: subprocess.Popen[bytes]) -> None:
    """After a session has died, an external call becomes unknown and heads the briefing."""
    env = session(run_recall, pid=shell_process.pid)
    run_recall("actions", "begin", "--tool", "send_email", "--class", "external", env=env)
    shell_process.kill()
    shell_process.wait()
    context = document(run_recall("resume", "x", "--json"))
    assert (context["reason"], context["fresh"], context["lease_held"]) == ("dead", False, False)
    assert [(each["seq"], each["status"]) for each in context["pending_actions"]] == [(1, "unknown")]
    assert "lease" not in context


def test_a_killed_holder_is_taken_over_at_once(run_recall: Run, shell_process: subprocess.Popen[bytes]) -> None:
    """A session whose shell was killed does not keep the agent for its ttl; its token is fenced."""
    env = session(run_recall, "x", "--ttl", "1h", pid=shell_process.pid)
    assert run_recall("resume", "x").code == 4
    shell_process.kill()
    shell_process.wait()
    assert _lease(run_recall)["state"] == "dead"
    assert run_recall("resume", "x").code == 0
    late = run_recall("turns", "add", "--role", "user", "late", env=env)
    assert (late.code, "lease was lost" in late.err) == (5, True)


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "sh"])
def test_what_export_prints_survives_any_directory_name(
    environment: dict[str, str], tmp_path: Path, shell: str
) -> None:
    """The exports evaluate to their values in each POSIX shell, whatever the directory is called."""
    need(shell)
    directory = str(tmp_path / 'it\'s $(touch hacked) `x` "q" \\ é\n;')
    script = (
        f'eval "$("{COMMAND}" resume x --export --holder-pid $$)" || exit\n'
        f'"{COMMAND}" turns add --role user hi || exit\n'
        'printf "%s|%s" "$RECALL_AGENT" "$RECALL_DIR"\n'
    )
    done = subprocess.run(
        [shell, "-c", script],
        env={**environment, "RECALL_DIR": directory},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, f"x|{directory}"), done.stderr
    assert not (tmp_path / "hacked").exists()


def test_fish_has_its_own_form(environment: dict[str, str], tmp_path: Path) -> None:
    """--shell fish prints what fish evaluates."""
    need("fish")
    directory = str(tmp_path / "it's \\ $x")
    script = (
        f'"{COMMAND}" resume x --export --shell fish --holder-pid $fish_pid | source\n'
        f'"{COMMAND}" turns add --role user hi; or exit 9\nprintf "%s" "$RECALL_DIR"'
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env={**environment, "RECALL_DIR": directory},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, directory), done.stderr


def test_a_failed_export_sets_the_status_of_eval(environment: dict[str, str], run_recall: Run) -> None:
    """eval of a refused export fails with its exit code, so that a script does not go on without a lease."""
    session(run_recall)
    for command in ("resume x --export", "acquire -a x"):
        script = f'eval "$("{COMMAND}" {command} --holder-pid $$)"; echo "$? [$RECALL_LEASE]"'
        done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "4 []\n"
        assert "lease is held by" in done.stderr


def test_an_export_needs_the_holder(run_recall: Run, tmp_path: Path) -> None:
    """Without a holder's pid there is no export, and the message says what to add; nothing was written."""
    done = run_recall("resume", "x", "--export")
    assert (done.code, done.out) == (2, "(exit 2)\n")
    assert "--holder-pid $$ (in fish: --holder-pid $fish_pid)" in done.err
    assert lsn(tmp_path) == 0


def test_the_export_says_nothing_else_on_stdout(run_recall: Run, tmp_path: Path) -> None:
    """stdout has the exports and a comment; stderr a line on epoch and actions; the briefing goes to a file."""
    run_recall("state", "set", "-a", "x", "--goal", "g")
    done = run_recall("resume", "x", "--export", "--holder-pid", str(os.getpid()), "--briefing-file", "b.txt")
    lines = done.out.splitlines()
    assert [line.split("=")[0] for line in lines[:3]] == [
        "export RECALL_AGENT",
        "export RECALL_DIR",
        "export RECALL_LEASE",
    ]
    assert lines[3:] == ["# release it when the shell ends: trap 'recall release --quiet' EXIT"]
    assert "agent x is resumed at epoch 2 (its lease was free), with 0 unfinished actions" in done.err
    assert "Goal: g\n" in (tmp_path / "b.txt").read_text()
    assert _lease(run_recall)["ttl"] == 3600


def test_a_briefing_that_cannot_be_written_gives_the_lease_back(run_recall: Run) -> None:
    """An export that fails after the acquisition does not leave the agent held."""
    done = run_recall("resume", "x", "--export", "--holder-pid", str(os.getpid()), "--briefing-file", "no/such/dir")
    assert (done.code, "'no/such/dir' cannot be written: no such file or directory" in done.err) == (7, True)
    assert _lease(run_recall)["state"] == "released"


def test_a_closed_stdout_gives_the_lease_back(environment: dict[str, str], run_recall: Run) -> None:
    """If nobody can read the token, nobody holds the lease."""
    command = f'"{COMMAND}" resume x --export --holder-pid $$ >&-'
    assert subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=False).returncode == 7
    assert _lease(run_recall)["state"] == "released"


def test_acquire_is_an_export_without_a_briefing(run_recall: Run, shell_process: subprocess.Popen[bytes]) -> None:
    """acquire settles and exports; --json has the token and no briefing."""
    env = session(run_recall, pid=shell_process.pid)
    run_recall("actions", "begin", "--tool", "t", "--class", "pure", env=env)
    shell_process.kill()
    shell_process.wait()
    got = document(run_recall("acquire", "-a", "x", "--holder-pid", str(os.getpid()), "--ttl", "90s", "--json"))
    assert (got["epoch"], got["ttl"], "briefing" in got) == (2, 90.0, False)
    done = run_recall("turns", "add", "--role", "user", "hi", env={"RECALL_AGENT": "x", "RECALL_LEASE": got["lease"]})
    assert done.code == 0


def test_many_short_processes_write_under_one_epoch_and_renew_it(run_recall: Run, tmp_path: Path) -> None:
    """Each write of a session starts the ttl anew, so it outlives the ttl as long as it writes."""
    env = session(run_recall, "x", "--ttl", "2")
    for n in range(4):
        time.sleep(0.7)
        assert run_recall("turns", "add", "--role", "user", str(n), env=env).code == 0
    with looking(tmp_path) as view:
        assert {record.epoch for record in view.backend.log("x")} == {1}
        assert len(list(view.turns())) == 4


def test_a_lapsed_session_is_refused_though_nobody_took_over(run_recall: Run, tmp_path: Path) -> None:
    """A write after the ttl is exit 5 with the command that helps; nothing enters the log."""
    env = session(run_recall, "x", "--ttl", "1")
    time.sleep(1.2)
    before = lsn(tmp_path)
    done = run_recall("turns", "add", "--role", "user", "late", env=env)
    assert (done.code, "lease expired" in done.err, "recall resume x" in done.err) == (5, True, True)
    assert (lsn(tmp_path), _lease(run_recall)["state"]) == (before, "expired")


def test_a_one_shot_write_meets_a_live_holder(run_recall: Run, tmp_path: Path) -> None:
    """Without a token a write is refused while somebody acts for the agent, and nothing is written."""
    session(run_recall)
    before = lsn(tmp_path)
    for command in (("state", "set", "--goal", "g"), ("turns", "add", "--role", "user", "x"), ("outputs", "put", "x")):
        done = run_recall(*command, "-a", "x")
        assert (done.code, done.out) == (4, ""), done.err
    assert lsn(tmp_path) == before


def test_tokens_of_other_places_are_refused(run_recall: Run, tmp_path: Path) -> None:
    """A token of another store or agent, a bare epoch or nonsense is exit 5, and makes no store."""
    env = session(run_recall)
    session(run_recall, "y")
    add = ("turns", "add", "--role", "user", "x")
    other = str(tmp_path / "other")
    assert "no store" not in run_recall(*add, env=env).err
    for arguments, changed in (
        (("-a", "y"), env),
        ((), {**env, "RECALL_LEASE": "1"}),
        ((), {**env, "RECALL_LEASE": "a:b:c:d"}),
        ((), {**env, "RECALL_LEASE": env["RECALL_LEASE"] + "0"}),
        (("--dir", other), env),
    ):
        done = run_recall(*add, *arguments, env=changed)
        assert done.code == 5, (arguments, changed, done.err)
        assert len(done.err.splitlines()) == 2, done.err
    assert not Path(other).exists()
    run_recall("turns", "add", "-a", "z", "--role", "user", "x", "--dir", other)
    assert run_recall(*add, "--dir", other, env=env).code == 5


def test_release_is_idempotent_and_tells_whose_it_is(run_recall: Run) -> None:
    """Releasing twice is no error; without a token or after a takeover it is exit 5, or silence with --quiet."""
    env = session(run_recall)
    assert document(run_recall("release", "--json", env=env)) == {"agent_id": "x", "epoch": 1, "released": True}
    assert document(run_recall("release", "--json", env=env)) == {"agent_id": "x", "epoch": 1, "released": False}
    assert run_recall("release", "-a", "x").code == 5
    other = session(run_recall)
    lost = run_recall("release", env=env)
    assert (lost.code, "lease was lost; epoch 1 is now 2" in lost.err) == (5, True)
    quiet = run_recall("release", "--quiet", env=env)
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert run_recall("turns", "add", "--role", "user", "x", env=other).code == 0


def test_a_session_that_resumes_itself_is_told_so(run_recall: Run) -> None:
    """A second resume inside a session does not speak of another process."""
    env = session(run_recall)
    done = run_recall("resume", "x", env=env)
    assert (done.code, "this session holds it" in done.err) == (4, True)


def test_two_resumes_at_nearly_the_same_time(environment: dict[str, str], run_recall: Run) -> None:
    """Of two resumes 60 ms apart one gets the lease and the other names its holder."""
    command = [COMMAND, "resume", "x", "--export", "--json", "--holder-pid", str(os.getpid())]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    first = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    time.sleep(0.06)
    second = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    ended = [(each.communicate(timeout=60), each.returncode) for each in (first, second)]
    assert sorted(code for _, code in ended) == [0, 4]
    (_, refused), _ = next(each for each in ended if each[1] == 4)
    (granted, _), _ = next(each for each in ended if each[1] == 0)
    assert json.loads(granted)["holder"] in json.loads(refused)["message"]


def test_wait_gets_the_lease_when_the_holder_ends(
    environment: dict[str, str], run_recall: Run, shell_process: subprocess.Popen[bytes]
) -> None:
    """--wait goes on trying; without success it ends with exit 4 after that time."""
    session(run_recall, pid=shell_process.pid)
    started = time.monotonic()
    assert run_recall("resume", "x", "--wait", "0.5s").code == 4
    assert time.monotonic() - started >= 0.5
    waiting = subprocess.Popen([COMMAND, "resume", "x", "--wait", "60s"], env=environment, stdout=-3, stderr=-3)
    time.sleep(0.5)
    assert waiting.poll() is None
    shell_process.send_signal(signal.SIGKILL)
    shell_process.wait()
    assert waiting.wait(timeout=30) == 0


def test_breaking_a_lease_fences_its_holder(run_recall: Run, tmp_path: Path) -> None:
    """break needs a reason and a yes; it says who is fenced, and the log keeps who broke it and why."""
    env = session(run_recall, "x", "--holder", "worker-1")
    refused = run_recall("lease", "break", "-a", "x", "--reason", "stuck")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert run_recall("turns", "add", "--role", "user", "still mine", env=env).code == 0
    done = run_recall("lease", "break", "-a", "x", "--reason", "stuck", "--by", "ops", "--yes", "--json")
    value = document(done)
    assert (value["epoch"], value["fenced"]["epoch"], value["fenced"]["holder"]) == (2, 1, "worker-1")
    assert run_recall("turns", "add", "--role", "user", "late", env=env).code == 5
    with looking(tmp_path) as view:
        record = view.backend.newest("x", "lease", seq=2)
        assert record is not None
        body = record.fields()
    assert (body["reason"], body["by"], body["why"]) == ("broken", "ops", "stuck")
    assert _lease(run_recall)["state"] == "released"
    again = run_recall("lease", "break", "-a", "x", "--reason", "stuck", "--yes")
    assert (again.code, "released (epoch 2)" in again.err) == (3, True)


def test_breaking_a_lease_asks_on_a_terminal(run_recall: Run, run_on_terminal: Run) -> None:
    """The question names the holder; a no leaves it alone."""
    session(run_recall, "x", "--holder", "worker-1")
    done = run_on_terminal("lease", "break", "-a", "x", "--reason", "stuck", dialogue=[("[y/N]", "n\n")])
    assert (done.code, "held by worker-1 (held, epoch 1)? [y/N]" in done.out) == (0, True)
    assert _lease(run_recall)["state"] == "held"
    assert run_on_terminal("lease", "break", "-a", "x", "--reason", "stuck", dialogue=[("[y/N]", "y\n")]).code == 0
    assert _lease(run_recall)["state"] == "released"


def test_looking_at_a_lease_shows_it_to_people(run_recall: Run) -> None:
    """lease show tells state, epoch, holder, process and time; an unknown agent is exit 3."""
    session(run_recall, "x", "--holder", "worker-1")
    shown = run_recall("lease", "show", "x").out
    values = dict(line.split(":", 1) for line in shown.splitlines())
    told = [values[name].strip() for name in ("state", "epoch", "holder")]
    assert (told, values["process"].strip().split()[0]) == (["held", "1", "worker-1"], str(os.getpid()))
    assert len({len(line) - len(line.split(":", 1)[1].lstrip()) for line in shown.splitlines()}) == 1  # aligned
    assert run_recall("lease", "show", "nobody").code == 3


def test_a_broken_lease_says_who_broke_it_and_why(run_recall: Run) -> None:
    """log, lease show and agents show tell the reason and who gave it, to people and to programs."""
    session(run_recall)
    why = ("--reason", "it hangs \x1b[31m", "--by", "dana@example.com")
    assert run_recall("lease", "break", "x", *why, "--yes").code == 0
    told = "broken by dana@example.com: it hangs \\x1b[31m"
    assert told in run_recall("log", "x").out
    for words in (("lease", "show", "x"), ("agents", "show", "x")):
        assert told.removeprefix("broken ") in run_recall(*words).out
    assert json.loads(run_recall("lease", "show", "x", "--json").out)["broken"].startswith("broken by dana@example.com")
    assert json.loads(run_recall("agents", "show", "x", "--json").out)["lease"]["broken"] != ""
    assert run_recall("resume", "x").code == 0
    assert json.loads(run_recall("lease", "show", "x", "--json").out)["broken"] == ""


def test_breaking_a_lease_without_a_terminal_is_told_what_there_is(run_recall: Run) -> None:
    """The hint names a way to look that exists, and --yes."""
    session(run_recall)
    done = run_recall("lease", "break", "x", "--reason", "r")
    assert (done.code, done.err.splitlines()[-1]) == (2, "  → look first with recall lease show x, then add --yes")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("resume", "x"), "wait for it with --wait DURATION; who it is: recall lease show x"),
        (
            ("acquire", "-a", "x", "--holder-pid", str(os.getpid())),
            "wait for it with --wait DURATION; who it is: recall lease show x",
        ),
        (("exec", "x", "--", "true"), "wait for it with --wait DURATION; who it is: recall lease show x"),
        (
            ("turns", "add", "hi", "-a", "x", "--role", "user"),
            "let it finish; who it is, and whether it lives: recall lease show x",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_held_lease_is_to_be_waited_for(run_recall: Run, words: tuple[str, ...], hint: str) -> None:
    """The hint is a way to wait that the command has; to break a healthy lease is not proposed."""
    session(run_recall)
    done = run_recall(*words)
    assert done.code == 4
    assert f"  → {hint}\n" in done.err
    assert "break" not in done.err
