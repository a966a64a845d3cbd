"""Trials counted, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.kills.contenders import TITLES, Contender
from bench.kills.peers import NOTES
from bench.kills.programs.world import PACE, POINTS
from bench.kills.trial import Ended, Kill
from bench.report import RESULTS, Cell, Result, Table, load

# A trial to come: who, in which setup, the kind of kill, and the kills that are tried until one comes in time.
Planned = tuple[Contender, str, str, Iterator[Kill]]

WHO = ("program", "face", "store", "tools")
COUNTS = ("trials", "duplicates", "losses", "waiting", "finished", "missed")
KINDS = {"points": "at a point", "moments": "at a moment", "calls": "after some calls"}


# Of the rows, by any of their cells.
_ORDER: list[Cell] = [
    *("Recall", "polign-recall", "LangGraph", "DBOS", "Python", "shell", "MCP", "SQLite", "bucket"),
    *(*TITLES.values(), *KINDS.values()),
]


@dataclass
class Tally:
    """The trials of one contender in one setup with one kind of kill.

    Attributes:
        failures: what the harness failed at.
    """

    contender: Contender
    setup: str
    kind: str
    ended: list[tuple[Kill, Ended]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def who(self) -> list[Cell]:
        return [
            *(self.contender.name, self.contender.face, self.contender.store),
            TITLES.get(self.setup, self.setup),
        ]

    def counts(self) -> list[Cell]:
        every = [ended for _, ended in self.ended]
        killed = [each for each in every if each.killed]
        return [
            len(killed),
            sum(each.duplicates for each in every),
            sum(each.losses for each in every),
            sum(each.waited for each in killed),
            sum(not each.waited for each in killed),
            len(every) - len(killed) + len(self.failures),
        ]

    def emails(self) -> list[Cell]:
        """Emails too many, by the point in the email at which it was killed."""
        at = [[ended for kill, ended in self.ended if kill.point == f"email:{point}"] for point in POINTS]
        return [f"{sum(max(0, each.effects['email'] - 1) for each in some)} of {len(some)}" for some in at]


def result(tallies: Sequence[Tally], seed: int) -> Result:
    """The tables; what was measured before of others stays in them, so that they can be measured one by one."""
    points = Table("kills", [*WHO, *COUNTS])
    random = Table("kills at random", [*WHO, "killed", *COUNTS])
    emails = Table("emails too many", [*WHO, *POINTS])
    for tally in tallies:
        if tally.kind == "points":
            points.rows.append([*tally.who(), *tally.counts()])
            emails.rows.append([*tally.who(), *tally.emails()])
        else:
            random.rows.append([*tally.who(), KINDS[tally.kind], *tally.counts()])
    points.notes = [
        "trials: each killed once, equally often at each of three points of each of three tools.",
        "recorded: the call is known and has no effect yet. effect: it has not returned. returned: the next waits.",
        f"A tool takes {PACE * 1000:.0f} ms before its effect and again after it; the effects are counted in files.",
        "duplicates: invoices and emails beyond the first. losses: effects that never happened, though it said done.",
        "waiting: an interrupted email was put before a person, who looked, and it went on. finished: without anybody.",
        "missed: not killed where it should have been, or a trial that failed otherwise: failures of the harness.",
    ]
    random.notes = [
        f"seed {seed}. Of a program with several processes every other kill at a moment met one alone.",
        "missed: the program had ended before the moment came; another one was tried in its place.",
    ]
    points.notes += NOTES
    told = Result("kills", "python -m bench.kills", [points, random, emails])
    for tally in tallies:
        told.versions |= tally.contender.versions
    if (RESULTS / "kills.json").exists():
        _keep_others(told, load("kills"))
    for table in told.tables:
        table.rows.sort(key=lambda row: [_ORDER.index(cell) if cell in _ORDER else -1 for cell in row[: len(WHO) + 1]])
    told.figures = _figures(points, random)
    return told


def _keep_others(told: Result, before: Result) -> None:
    keys = {"kills": len(WHO), "kills at random": len(WHO) + 1, "emails too many": len(WHO)}
    for table, old in zip(told.tables, before.tables, strict=True):
        width = keys[table.name]
        new = {tuple(row[:width]): row for row in table.rows}
        merged = [new.pop(tuple(row[:width]), row) for row in old.rows]
        table.rows = [*merged, *new.values()]
    told.versions = {**before.versions, **told.versions}


def _figures(points: Table, random: Table) -> dict[str, Cell]:
    """What texts quote: of Recall's durable and ordinary tools over every face, store and kind of kill, and of each
    program and its tools over the points alone."""
    figures: dict[str, Cell] = {}

    def add(name: str, row: Sequence[Cell]) -> None:
        for count, cell in zip(COUNTS, row[-len(COUNTS) :], strict=True):
            figures[f"{name} {count}"] = int(figures.get(f"{name} {count}", 0)) + int(cell)

    for row in points.rows:
        add(f"{row[0]} {row[3]}", row)
    for row in [*points.rows, *random.rows]:
        if row[0] == "Recall":
            add("ordinary" if row[3] == TITLES["ordinary"] else "durable", row)
    return figures
