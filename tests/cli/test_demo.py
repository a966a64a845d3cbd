"""The demo: it tells the truth, it can fail, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recall_cli.demo.mail import HOST, MailServer, send, was_seen
from tests.conftest import COMMAND, Run


@pytest.fixture
def scratch(environment: dict[str, str], tmp_path: Path) -> Path:
    """The directory in which the demo makes its own; empty before and after."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    environment["TMPDIR"] = str(directory)
    return directory


def _processes_of(scratch: Path) -> list[int]:
    """Processes whose arguments name the scratch directory: the demo's agents."""
    if not os.path.isdir("/proc/self"):
        listed = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
        return [int(line.split()[0]) for line in listed.splitlines() if str(scratch) in line]
    found = []
    for entry in os.listdir("/proc"):
        try:
            arguments = Path("/proc", entry, "cmdline").read_bytes() if entry.isdigit() else b""
        except OSError:  # it ended while we looked
            continue
        if str(scratch).encode() in arguments:
            found.append(int(entry))
    return found


def _nothing_left(scratch: Path) -> bool:
    return not list(scratch.iterdir()) and not _processes_of(scratch)


def test_the_demo_counts_one_email_for_each_kill_and_leaves_nothing(run_recall: Run, scratch: Path) -> None:
    """Killed after or before the server had it, one email is sent; no directory and no process stays."""
    done = run_recall("demo")
    assert (done.code, done.err) == (0, "")
    assert "emails sent: 1 and 1, one for each case; without records 2\n" in done.out
    assert done.out.rstrip().endswith("verified, chain ok")
    assert _nothing_left(scratch)
    # The briefing of the next process is there whole, the call that was cut off first.
    briefing = [line.strip().removeprefix("|").strip() for line in done.out.splitlines() if line.startswith("     |")]
    assert briefing[0].startswith("You are agent billing-migrator, resuming")
    headings = [line for line in briefing if line.startswith("## ")]
    assert headings[0] == "## Unfinished actions (1)"
    assert len(headings) == 4


def test_the_demo_as_a_document(run_recall: Run, scratch: Path) -> None:
    """--json gives one document with the counts, the times and how each action was settled."""
    done = run_recall("demo", "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["ok"] is True
    assert told["problems"] == []
    assert told["emails_without_records"] == 2
    assert (told["chain"], told["directory"]) == ("ok", None)
    assert [(case["emails"], case["settled"], case["settled_by"]) for case in told["cases"]] == [
        (1, "done", "resolver"),
        (1, "abandoned", "resolver"),
    ]
    for case in told["cases"]:
        assert 0 < case["takeover_ms"] < case["restart_ms"] < case["lease_left_ms"]
    assert len({case["key"] for case in told["cases"]}) == 2


def test_an_operator_settles_in_the_demo_by_hand(run_recall: Run, scratch: Path) -> None:
    """With --by-hand each process stops at the call that it does not know of, and recall actions resolve settles it."""
    done = run_recall("demo", "--by-hand", "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert [(case["emails"], case["settled"], case["settled_by"]) for case in told["cases"]] == [
        (1, "done", "operator"),
        (1, "abandoned", "operator"),
    ]


def test_the_demo_keeps_its_store_when_asked(run_recall: Run, scratch: Path) -> None:
    """--keep says where the store is, and it stays."""
    done = run_recall("demo", "--keep", "--json")
    assert done.code == 0
    store = Path(json.loads(done.out)["directory"])
    assert store.is_relative_to(scratch)
    assert (store / "recall.db").exists()
    assert not _processes_of(scratch)


def test_the_demo_runs_in_a_bare_environment(environment: dict[str, str], scratch: Path) -> None:
    """It needs no home, no UTF-8 locale and no stdin, and a lease or store of the user's has no part in it."""
    bare = {
        "PATH": environment["PATH"],
        "TMPDIR": str(scratch),
        "LANG": "C",
        "RECALL_LEASE": "a:b:1:c",
        "RECALL_DIR": "/x",
    }
    command = ["/bin/sh", "-c", f"exec '{COMMAND}' demo <&-"]
    done = subprocess.run(command, env=bare, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert _nothing_left(scratch)


def test_a_reader_that_goes_early_ends_the_demo_quietly(environment: dict[str, str], scratch: Path) -> None:
    """With head as its reader the demo stops without a word and without a trace."""
    piped = f"'{COMMAND}' demo | head -n 3"
    done = subprocess.run(["/bin/sh", "-c", piped], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 3
    assert _until(lambda: _nothing_left(scratch))


def test_a_full_output_is_said(environment: dict[str, str], scratch: Path) -> None:
    """An output that cannot take the story is a refusal with its own exit code, and nothing stays."""
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([COMMAND, "demo"], env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 7
    assert b"Traceback" not in done.stderr
    assert _nothing_left(scratch)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_demo_leaves_nothing(
    environment: dict[str, str], scratch: Path, number: signal.Signals, code: int
) -> None:
    """Ended by a signal in the middle of a case it takes its processes and its directory with it."""
    with _started(environment) as demo:
        assert _until(lambda: bool(_processes_of(scratch)))
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=30)
    assert demo.returncode == code
    assert b"Traceback" not in errors
    assert _nothing_left(scratch)


def test_agents_do_not_outlive_a_demo_that_is_killed(environment: dict[str, str], scratch: Path) -> None:
    """Even when the demo itself is killed with SIGKILL its agents end, since their mail server is gone."""
    with _started(environment) as demo:
        assert _until(lambda: bool(_processes_of(scratch)))
        demo.kill()
        demo.communicate(timeout=30)
    assert _until(lambda: not _processes_of(scratch))


def test_an_email_too_many_fails_the_demo(run_recall: Run, environment: dict[str, str], tmp_path: Path) -> None:
    """The count is real: with a mail library that delivers everything twice the demo ends with 1 and says so."""
    twice = tmp_path / "twice"
    twice.mkdir()
    (twice / "sitecustomize.py").write_text(
        "import smtplib\n"
        "once = smtplib.SMTP.send_message\n"
        "smtplib.SMTP.send_message = lambda *a, **k: (once(*a, **k), once(*a, **k))[1]\n"
    )
    done = run_recall("demo", env={"PYTHONPATH": str(twice)})
    assert done.code == 1
    assert "killed before: 2 emails were sent, not 1" in done.err
    assert "Traceback" not in done.err


def test_an_agent_that_breaks_fails_the_demo(run_recall: Run, tmp_path: Path) -> None:
    """An agent's program that cannot run is one line with its reason, not a wait."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import smtplib\ndef refuse(*a, **k): raise OSError('no mail today')\nsmtplib.SMTP.connect = refuse\n"
    )
    done = run_recall("demo", env={"PYTHONPATH": str(broken)}, timeout=30)
    assert done.code == 1
    assert "no mail today" in done.err.splitlines()[0]
    assert "Traceback" not in done.err


# -- the mail server ---------------------------------------------------------------------


def _smtp(mail: MailServer) -> smtplib.SMTP:
    return smtplib.SMTP(HOST, mail.port, local_hostname="localhost", timeout=10)


def test_the_mail_server_keeps_a_message_as_it_was_sent() -> None:
    """Lines that begin with a dot and the Message-ID arrive unchanged."""
    with MailServer() as mail:
        send(mail.port, to="a@example.com", subject="s", text=".\n..two\nend\n", message_id="<1@x>")
        (message,) = mail.messages
    assert message.get_content().replace("\r\n", "\n") == ".\n..two\nend\n"
    assert message["Message-ID"] == "<1@x>"


def test_the_mail_server_tells_what_it_has_seen() -> None:
    """XSEEN answers for the ids of accepted messages only."""
    with MailServer() as mail:
        assert was_seen(mail.port, "<1@x>") is False
        send(mail.port, to="a@example.com", subject="s", text="t", message_id="<1@x>")
        assert was_seen(mail.port, "<1@x>") is True
        assert was_seen(mail.port, "<2@x>") is False


def test_the_mail_server_keeps_to_the_order_of_commands() -> None:
    """RFC 5321's sequence is enforced, RSET starts over, and an unknown command does not end the session."""
    with MailServer() as mail, _smtp(mail) as client:
        client.ehlo()
        assert client.docmd("RCPT", "TO:<a@example.com>")[0] == 503
        assert client.docmd("DATA")[0] == 503
        assert client.docmd("FROBNICATE")[0] == 500
        assert client.docmd("MAIL", "FROM:<a@example.com>")[0] == 250
        assert client.docmd("MAIL", "FROM:<a@example.com>")[0] == 503
        assert client.docmd("RSET")[0] == 250
        assert client.docmd("DATA")[0] == 503
        assert client.docmd("NOOP")[0] == 250
    assert mail.messages == []


def test_half_a_message_is_not_accepted() -> None:
    """A sender that goes in the middle of its message leaves nothing in the mailbox."""
    with MailServer() as mail:
        client = _smtp(mail)
        client.ehlo()
        client.docmd("MAIL", "FROM:<a@example.com>")
        client.docmd("RCPT", "TO:<a@example.com>")
        client.docmd("DATA")
        client.send("Subject: half\r\n\r\nand th")
        client.close()
        assert was_seen(mail.port, "<1@x>") is False
    assert mail.messages == []


# -- helpers ------------------------------------------------------------------------------


@contextmanager
def _started(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [COMMAND, "demo"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as demo:
        try:
            yield demo
        finally:
            demo.kill()


def _until(holds: object, timeout: float = 20.0) -> bool:
    assert callable(holds)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return bool(holds())
