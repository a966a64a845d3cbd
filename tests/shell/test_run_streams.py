"""recall run: what passes through it, and what it keeps of that."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.shell.conftest import Shell, little_memory, until


def test_gigabytes_pass_through_in_bounded_memory(shell: Shell) -> None:
    """Half a gigabyte passes whole; a process that may not have 400 MB keeps the opening of it."""
    with (shell.here / "null").open("wb") as null:
        os.unlink(shell.here / "null")
        ended = shell.recall(
            *("run", "--class", "pure", "--step", "s", "--output-limit", "1000"),
            *("--", "head", "-c", "500000000", "/dev/zero"),
            stdout=null,
            preexec_fn=little_memory,
        )
        assert (ended.code, os.fstat(null.fileno()).st_size) == (0, 500_000_000), ended.err
    (action,) = shell.actions()
    assert action.command["left_out"] == 500_000_000 - 1000


def test_a_cut_output_never_replays_as_complete(shell: Shell) -> None:
    """More than --output-limit: the replay is refused with what was left out, unless --replay-cut accepts it."""
    step = ("--class", "pure", "--step", "s", "--output-limit", "5", "--", "echo", "1234éé")
    assert shell.recall("run", *step).out == "1234éé\n"
    refused = shell.recall("run", *step)
    assert (refused.code, refused.out) == (6, "")
    assert "not all of its output was kept: 4 bytes are missing" in refused.err and "--replay-cut" in refused.err
    cut = shell.recall("run", "--replay-cut", *step)
    assert (cut.code, cut.out) == (0, "1234")


def test_binary_output_is_replayed_to_the_byte(shell: Shell) -> None:
    """Bytes that are no text, NUL among them, come back as they were."""
    step = ("run", "--class", "pure", "--step", "s", "--", "python3", "-c", "import os; os.write(1, bytes(range(256)))")
    for _ in range(2):
        process = shell.start(*step)
        assert process.communicate(timeout=60)[0] == bytes(range(256))


def test_an_early_end_of_output_is_no_end_of_the_command(shell: Shell) -> None:
    """A command that closes its streams and goes on is waited for; its status counts."""
    ended = shell.recall(
        "run", "--class", "pure", "--", "sh", "-c", "exec >&- 2>&-; sleep 0.3; echo x >> effects; exit 3"
    )
    assert (ended.code, shell.count()) == (3, 1)


def test_a_background_child_does_not_hold_the_step(shell: Shell) -> None:
    """A child left with the step's stdout is not waited for, silent or not; what the command wrote is all there."""
    for left in ("sleep 30", "yes"):
        begun = time.monotonic()
        ended = shell.recall("run", "--class", "pure", "--", "sh", "-c", f"{left} & echo $! > left; echo out; exit 3")
        assert time.monotonic() - begun < 15
        os.kill(shell.pid("left"), 9) if left == "sleep 30" else None
        assert ended.code == 3
        assert "out\n" in ended.out


def test_a_reader_that_stopped_reading_delays_no_time_out(shell: Shell) -> None:
    """Nobody reads our stdout, and still --timeout ends the command."""
    process = shell.start("run", "--class", "pure", "--timeout", "1", "--", "sh", "-c", "echo $$ > pid; exec yes")
    pid = shell.pid("pid")
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert shell.end(process).code == 124


def test_a_reader_that_left_is_felt_by_the_command(shell: Shell) -> None:
    """With head as reader the command gets SIGPIPE, as without recall."""
    process = shell.start("run", "--class", "pure", "--", "yes")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert shell.actions()[0].command["signal"] == 13


@pytest.mark.parametrize(
    ("rest", "whole"),
    [("", True), ("; trap '' PIPE; for i in 1 2 3; do sleep 0.3; echo more; done; true", False)],
)
def test_a_reader_that_was_killed_leaves_a_whole_result(shell: Shell, rest: str, whole: bool) -> None:
    """A step that had said all when its script was killed is replayed in full; one that goes on is not known whole."""
    command = f"until [ -e go ]; do sleep 0.01; done; echo result{rest}"
    step = ("run", "--class", "pure", "--step", "s", "--", "bash", "-c", command)
    reader, writer = os.pipe()
    process = shell.start(*step, stdout=writer)
    os.close(writer)
    os.close(reader)
    (shell.here / "go").touch()
    assert process.wait(timeout=60) == 0
    again = shell.recall(*step)
    if whole:
        assert (again.code, again.out) == (0, "result\n")
    else:
        assert (again.code, again.out) == (6, "")
        assert "not all of its output was kept: a byte or more is missing" in again.err


def test_ended_while_its_reader_waits_it_keeps_the_rest(shell: Shell) -> None:
    """SIGTERM ends our wait for a reader that does not read, and what the command had printed is kept whole."""
    printed = "x" * 100_000  # more than a pipe holds, less than two
    step = (
        "run",
        "--class",
        "pure",
        "--step",
        "s",
        "--",
        "sh",
        "-c",
        "echo $$ > pid; head -c 100000 /dev/zero | tr '\\0' x",
    )
    process = shell.start(*step)
    pid = shell.pid("pid")
    until(lambda: not Path(f"/proc/{pid}").exists())
    os.kill(process.pid, signal.SIGTERM)
    process.wait(timeout=60)
    again = shell.recall(*step)
    assert (again.code, again.out) == (0, printed)


def test_a_slow_reader_gets_all_of_it(shell: Shell) -> None:
    """What a command left in its pipe waits for a reader who takes long, at no cost, and is kept whole."""
    step = ("run", "--class", "pure", "--step", "s", "--", "sh", "-c", "echo $$ > pid; exec head -c 130000 /dev/zero")
    process = shell.start(*step)
    pid = shell.pid("pid")
    until(lambda: not Path(f"/proc/{pid}").exists())
    time.sleep(0.5)  # longer than it waits for what somebody else may write

    def used() -> int:  # hundredths of a second of processor time
        return sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    before = used()
    time.sleep(1)
    assert used() - before < 20
    assert process.communicate(timeout=60)[0] == bytes(130_000)
    assert shell.recall(*step).out == "\0" * 130_000


def test_ended_while_its_reader_waits_it_keeps_all_of_a_large_pipe(shell: Shell) -> None:
    """A command that made its pipe larger leaves more in it than one read takes."""
    program = "import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); open('pid', 'w').write(f'{os.getpid()}\\n'); "
    step = ("run", "--class", "pure", "--step", "s", "--", "python3", "-c", program + "os.write(1, b'x' * 700_000)")
    process = shell.start(*step)
    pid = shell.pid("pid")
    until(lambda: not Path(f"/proc/{pid}").exists())
    os.kill(process.pid, signal.SIGTERM)
    process.wait(timeout=60)
    again = shell.recall(*step)
    assert (again.code, again.out) == (0, "x" * 700_000)


def test_told_to_end_once_it_does_not_wait_for_a_reader(shell: Shell) -> None:
    """SIGTERM while the command runs ends both, although nobody reads what the command has printed."""
    process = shell.start("run", "--class", "pure", "--", "sh", "-c", "echo $$ > pid; exec yes")
    shell.pid("pid")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    assert shell.actions()[0].status == "failed"


def test_stdin_is_the_commands(shell: Shell) -> None:
    """The command reads our stdin itself, and recall not a byte of it."""
    (shell.here / "input").write_text("one\ntwo\n")
    script = "recall run --class pure -- head -c 4; cat"
    with (shell.here / "input").open() as given:
        process = subprocess.run(
            ["sh", "-c", script], stdin=given, env=shell.environ, cwd=shell.here, capture_output=True, check=True
        )
    assert process.stdout == b"one\ntwo\n"


def test_no_capture_leaves_the_streams_alone(shell: Shell) -> None:
    """With --no-capture the command has our streams themselves; the replay says that nothing was kept."""
    with (shell.here / "mine").open("wb") as mine:
        step = ("run", "--class", "pure", "--step", "s", "--no-capture", "--", "sh", "-c", "readlink /proc/$$/fd/1")
        assert shell.recall(*step, stdout=mine).code == 0
    assert (shell.here / "mine").read_text() == f"{shell.here}/mine\n"
    again = shell.recall(*step)
    assert (again.code, again.out) == (0, "")
    assert "not all of its output was kept" in again.err


def test_what_is_redacted_is_not_in_the_store(shell: Shell) -> None:
    """--redact keeps a secret out of the recorded arguments and output, not out of what passes through."""
    step = (
        "run",
        "--class",
        "pure",
        "--step",
        "s",
        "--redact",
        "s3cr.t",
        "--",
        "sh",
        "-c",
        "echo s3cret; echo s3cret >&2",
    )
    first = shell.recall(*step)
    assert (first.out, first.err) == ("s3cret\n", "s3cret\n")
    again = shell.recall(*step)
    assert again.out == "[redacted]\n"
    assert "redacted" in again.err
    assert all(b"s3cret" not in each.read_bytes() for each in shell.store.rglob("*") if each.is_file())
    assert shell.recall("run", "--class", "pure", "--redact", "(", "--", "true").code == 2
