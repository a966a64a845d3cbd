"""The kill test in a quick form, and whether its harness sees what it is there to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kills.contenders import Contender, ours
from bench.kills.trial import HarnessFailed, Kill, calls, run, undisturbed
from tests.shipping.servers import shared_server

PLAIN = {each.face: each for each in ours()}


@pytest.mark.parametrize("face", PLAIN)
@pytest.mark.parametrize(
    ("setup", "emails", "waited"), [("ordinary", 2, False), ("durable", 1, True), ("resolved", 1, False)]
)
def test_killed_just_after_the_email_has_left(tmp_path: Path, face: str, setup: str, emails: int, waited: bool) -> None:
    """Ordinary tools send a second one; durable ones wait for a person, or ask their resolver, and send no other."""
    ended = run(PLAIN[face], setup, Kill("email:effect"), tmp_path / "trial")
    assert (ended.killed, ended.waited) == (True, waited)
    assert ended.effects == {"lookup": 1, "invoice": 1, "email": emails}


def test_killed_with_its_machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The directory is gone with the process: another machine goes on from the bucket, and sends no second email."""
    python = ours(shared_server("seaweedfs", tmp_path_factory).location())[3]
    ended = run(python, "resolved", Kill("email:effect"), tmp_path / "trial")
    assert (python.store, ended.killed, ended.waited) == ("bucket", True, False)
    assert (ended.duplicates, ended.losses, ended.effects["email"]) == (0, 0, 1)


def test_killed_at_a_moment_and_at_a_system_call(tmp_path: Path) -> None:
    """Half-way through its life, and as it writes to its log: nothing happens twice, nothing is lost."""
    python = PLAIN["Python"]
    half = undisturbed(python, "resolved", tmp_path / "undisturbed") / 2
    worth = calls(python, "resolved", tmp_path / "calls")
    call = next(each for each in worth[len(worth) // 2 :] if each.startswith("pwrite64"))
    for kill in (Kill(after=half), Kill(call=call)):
        ended = run(python, "resolved", kill, tmp_path / "trial")
        assert (ended.killed, ended.duplicates, ended.losses) == (True, 0, 0), kill


PROGRAM = """
import os, sys
from pathlib import Path
from bench.kills.programs.world import World
world = World()
world.ready()
for tool in os.environ["CALLS"].split():
    world.call(tool)
sys.exit(int(os.environ["CODE"]))
"""


@pytest.mark.parametrize(
    ("made", "duplicates", "losses"),
    [
        ("lookup invoice email", 0, 0),
        ("lookup lookup invoice email", 0, 0),
        ("lookup invoice invoice email email email", 3, 0),
        ("lookup", 0, 2),
        ("", 0, 3),
    ],
)
def test_what_is_counted(tmp_path: Path, made: str, duplicates: int, losses: int) -> None:
    """Invoices and emails beyond the first are duplicates; what never happened is lost."""
    ended = run(_program(made), "any", Kill(), tmp_path / "trial")
    assert (ended.killed, ended.duplicates, ended.losses) == (False, duplicates, losses)


def test_a_program_that_does_not_come_to_its_point_was_not_killed(tmp_path: Path) -> None:
    """It never sends: the trial ends, and says that it was not killed."""
    assert not run(_program("lookup"), "any", Kill("email:effect"), tmp_path / "trial").killed


def test_a_program_that_fails_is_no_trial(tmp_path: Path) -> None:
    """It ends with an error again and again: that is a failure of the harness, and no result."""
    with pytest.raises(HarnessFailed, match="ended with 3"):
        run(_program("lookup", code=3), "any", Kill(), tmp_path / "trial")


def _program(made: str, code: int = 0) -> Contender:
    plain = PLAIN["Python"]
    argv = [*plain.argv("any")[:1], "-c", PROGRAM]
    environ = {**plain.environ(), "CALLS": made, "CODE": str(code)}
    return Contender("any", "any", "none", lambda setup: argv, environ=lambda: environ)
