"""The kill test in a quick form, and whether its harness sees what it is there to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kills.__main__ import carry_out, part_of
from bench.kills.contenders import Contender, ours
from bench.kills.tally import Tally, keep, result
from bench.kills.trial import Ended, HarnessFailed, Kill, calls, run, undisturbed
from bench.report import Result, Table, load
from tests.shipping.servers import shared_server

PLAIN = {each.face: each for each in ours()}


@pytest.mark.parametrize("face", PLAIN)
@pytest.mark.parametrize(
    ("setup", "unsure", "emails", "waited"),
    [
        ("ordinary", False, 2, False),
        ("durable", False, 1, True),
        ("resolved", False, 1, False),
        ("resolved", True, 1, True),
    ],
)
def test_killed_just_after_the_email_has_left(
    tmp_path: Path, face: str, setup: str, unsure: bool, emails: int, waited: bool
) -> None:
    """Ordinary tools send a second one; durable ones ask their resolver, or a person where it cannot tell."""
    ended = run(PLAIN[face], setup, Kill("email:effect", unsure=unsure), tmp_path / "trial")
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


@pytest.mark.parametrize("face", PLAIN)
def test_a_call_that_is_done_has_its_result(tmp_path: Path, face: str) -> None:
    """Whatever was done before the kill is told to have returned what it had returned, or it is no trial."""
    ended = run(PLAIN[face], "resolved", Kill("email:returned"), tmp_path / "trial")
    assert (ended.killed, ended.waited, ended.duplicates, ended.losses) == (True, False, 0, 0)


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


# -- what is counted, and what is kept --------------------------------------------------------------------


def test_what_ended_before_it_was_killed_is_missed_and_what_goes_wrong_has_failed(tmp_path: Path) -> None:
    """At random another moment is tried; at a point there is no other, so that is a failure, as any error is."""
    once, wrong = _program("lookup invoice email"), _program("lookup", code=3)
    planned = [
        (once, "any", "moments", iter([Kill(after=60), Kill(after=60)])),
        (once, "any", "points", iter([Kill("email:never")])),
        (wrong, "wrong", "moments", iter([Kill(after=60)])),
    ]
    found = {(each.setup, each.kind): each for each in carry_out(planned, tmp_path / "trials", 3)}
    assert {key: (len(each.missed), len(each.failures)) for key, each in found.items()} == {
        ("any", "moments"): (2, 0),
        ("any", "points"): (0, 1),
        ("wrong", "moments"): (0, 1),
    }
    assert [each.broken() for each in found.values()] == [False, True, True]


def test_a_count_that_is_asked_for_is_not_rounded_away() -> None:
    """One for each setup at least of those that have a share; none of the others, and none where none is asked for."""
    asked = [(2000, 0.04), (1, 0.04), (0, 0.4), (3, 0.0)]
    assert [part_of(*each, PLAIN["Python"]) for each in asked] == [80, 3, 0, 0]


@pytest.mark.parametrize(
    ("setup", "email", "broken"),
    [("durable", 1, False), ("durable", 2, True), ("durable", 0, True), ("ordinary", 2, False)],
)
def test_a_durable_tool_that_did_it_twice_or_never_is_no_success(setup: str, email: int, broken: bool) -> None:
    """The bench then exits with 1; what ordinary tools do is shown, and no more."""
    assert _tally("Python", setup, "points", email=email).broken() == broken


def test_the_tables_have_what_was_measured_and_how() -> None:
    """A row for each setup and its kinds of kill together, zeros of the email left out, and the command."""
    some = [
        _tally("Python", "ordinary", "points", email=2),
        _tally("Python", "durable", "points", waited=True),
        _tally("Python", "durable", "moments"),
        _tally("Python", "durable", "calls", waited=True),
    ]
    told = result(some, 7)
    points, random, emails, waiting = told.tables
    who = ["Recall", "Python", "SQLite"]
    assert points.rows == [
        [*who, "ordinary tools", 1, 1, 0, 0, 1, 0],
        [*who, "durable tools, no resolver", 1, 0, 0, 1, 0, 0],
    ]
    assert random.rows == [[*who, "durable tools, no resolver", 1, 1, 0, 0, 1, 1, 0, 0]]
    assert emails.rows == [[*who, "ordinary tools", "0 of 0", "1 of 1", "0 of 0"]]
    assert waiting.rows == [[*who, "durable tools, no resolver", "0 of 0", "1 of 1", "0 of 0"]]
    assert all(len(table.columns) == len(row) for table in told.tables for row in table.rows)
    assert [told.figures[f"durable {count}"] for count in ("trials", "waiting", "failed")] == [3, 2, 0]
    assert told.figures["ordinary duplicates"] == told.figures["Recall ordinary tools duplicates"] == 1
    assert points.told()[-1] == f"Made by `{told.command}`, {told.measured}."


def test_what_is_saved_keeps_what_others_did(tmp_path: Path) -> None:
    """Rows of those that were measured are new, whatever they were; the rest stays, with the command that made it."""
    both = [_tally(face, "ordinary", "points", email=2) for face in ("Python", "shell")]
    keep(_told("one", both), tmp_path)
    keep(_told("two", [_tally("shell", "ordinary", "points"), _tally("shell", "ordinary", "calls")]), tmp_path)
    points, random, emails, _ = load("kills", tmp_path).tables
    assert [(row[1], row[5]) for row in points.rows] == [("Python", 1), ("shell", 0)]
    assert [row[1] for row in random.rows] == ["shell"]
    assert [row[1] for row in emails.rows] == ["Python"]
    assert points.told()[-2:] == [
        "Made by `two`, today: Recall shell SQLite.",
        "Made by `one`, today: Recall Python SQLite.",
    ]
    assert load("kills", tmp_path).figures["ordinary trials"] == 3


def test_a_table_of_an_earlier_form_stays_until_it_is_measured_again(tmp_path: Path) -> None:
    """Its columns cannot be mixed with others."""
    columns = ["program", "face", "store", "tools", "trials"]
    old = Table("kills at random", columns, [["Recall", "MCP", "SQLite", "x", 9]])
    Result("kills", "zero", [Table("kills", ["none"]), old]).save(tmp_path)
    keep(_told("one", [_tally("Python", "ordinary", "points")]), tmp_path)
    assert load("kills", tmp_path).tables[1] == old
    keep(_told("two", [_tally("Python", "ordinary", "calls")]), tmp_path)
    assert [row[1] for row in load("kills", tmp_path).tables[1].rows] == ["Python"]


def test_what_another_machine_measured_says_so(tmp_path: Path) -> None:
    """Rows of two machines stand in one table only with that note."""
    first = _told("one", [_tally("Python", "ordinary", "points")])
    first.machine = {"processor": "another"}
    keep(first, tmp_path)
    keep(_told("two", [_tally("shell", "ordinary", "points")]), tmp_path)
    assert load("kills", tmp_path).tables[0].told()[-1] == "Made by `one`, today on another: Recall Python SQLite."


def _tally(face: str, setup: str, kind: str, *, email: int = 1, waited: bool = False) -> Tally:
    """One trial that was killed when its email had left."""
    ended = Ended(killed=True, waited=waited, effects={"lookup": 1, "invoice": 1, "email": email}, seconds=1)
    return Tally(PLAIN[face], setup, kind, [(Kill("email:effect"), ended)])


def _told(command: str, some: list[Tally]) -> Result:
    told = result(some, 1)
    for table in told.tables:
        table.made = dict.fromkeys(table.made, f"`{command}`, today")
    return told
