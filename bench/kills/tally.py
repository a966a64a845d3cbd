"""Trials counted, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.kills.contenders import TITLES, Contender
from bench.kills.peers import NOTES
from bench.kills.programs.world import PACE, POINTS
from bench.kills.trial import Ended, Kill
from bench.report import RESULTS, Cell, Result, Table, command, load

# A trial to come: who, in which setup, the kind of kill, and the kills that are tried until one comes in time.
Planned = tuple[Contender, str, str, Iterator[Kill]]

UNSURE = 4  # of so many trials there is one in which a resolver cannot tell

WHOSE = ("program", "face", "store")
WHO = (*WHOSE, "tools")
KINDS = {"points": "trials", "moments": "at a moment", "calls": "after some calls"}  # the columns that count them
AT_POINTS = (KINDS["points"],)
AT_RANDOM = (KINDS["moments"], KINDS["calls"])
OUTCOMES = ("duplicates", "losses", "waiting", "finished", "failed")
QUOTED = ("trials", *OUTCOMES)

# Of the rows, by their first cells.
_ORDER: list[Cell] = [
    *("Recall", "polign-recall", "LangGraph", "DBOS", "Python", "shell", "MCP", "SQLite", "bucket"),
    *TITLES.values(),
]


@dataclass
class Tally:
    """The trials of one contender in one setup with one kind of kill.

    Attributes:
        missed: those in which the program had ended, as it should, before it was to be killed.
        failures: what went wrong otherwise, one for each trial in which it did.
    """

    contender: Contender
    setup: str
    kind: str
    killed: list[tuple[Kill, Ended]] = field(default_factory=list)
    missed: list[Ended] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def who(self) -> list[Cell]:
        """The cells by which a row is known."""
        title = TITLES.get(self.setup, self.setup)
        return [self.contender.name, self.contender.face, self.contender.store, title]

    def outcomes(self) -> dict[str, int]:
        killed = [ended for _, ended in self.killed]
        return {
            "duplicates": sum(each.duplicates for each in killed + self.missed),
            "losses": sum(each.losses for each in killed + self.missed),
            "waiting": sum(each.waited for each in killed),
            "finished": sum(not each.waited for each in killed),
            "failed": len(self.failures),
        }

    def in_email(self) -> list[list[Ended]]:
        """The trials that were killed in the email, by point."""
        return [[ended for kill, ended in self.killed if kill.point == f"email:{point}"] for point in POINTS]

    def broken(self) -> bool:
        """Whether it is not as it has to be: a trial failed, or durable tools of Recall did something twice or not."""
        outcomes = self.outcomes()
        ours = self.contender.name == "Recall" and self.setup != "ordinary"
        return bool(self.failures or (ours and (outcomes["duplicates"] or outcomes["losses"])))


def result(tallies: Sequence[Tally], seed: int) -> Result:
    """What these trials came to, and nothing else."""
    points = Table("kills", [*WHO, *AT_POINTS, *OUTCOMES], notes=[*_NOTES_ON_POINTS, *NOTES])
    emails = Table("emails too many", [*WHO, *POINTS], notes=["Rows that are zero at all three points are left out."])
    waiting = Table(
        "emails waiting",
        [*WHO, *POINTS],
        notes=[
            "Emails that were put before a person, by where the program died. Where none was there is no row.",
            "returned, on a bucket: the end of the email had not travelled yet when the machine was gone.",
        ],
    )
    random = Table("kills at random", [*WHO, *AT_RANDOM, *OUTCOMES[:-1], "missed", "failed"])
    random.notes = [note.format(seed=seed) for note in _NOTES_ON_RANDOM]
    told = Result("kills", command(), [points, random, emails, waiting])
    at_random: dict[tuple[Cell, ...], list[Tally]] = {}
    for tally in tallies:
        who, whose = tally.who(), _whose(tally.who())
        told.versions |= tally.contender.versions
        if tally.kind != "points":
            at_random.setdefault(tuple(who), []).append(tally)
            random.made[whose] = ""
            continue
        for table in (points, emails, waiting):
            table.made[whose] = ""
        points.rows.append([*who, len(tally.killed), *tally.outcomes().values()])
        at = tally.in_email()
        _add(emails, who, [sum(max(0, each.effects["email"] - 1) for each in some) for some in at], at)
        _add(waiting, who, [sum(each.waited for each in some) for some in at], at)
    for key, some in at_random.items():
        random.rows.append([*key, *_at_random(some)])
    for table in told.tables:
        table.made = dict.fromkeys(table.made, f"`{told.command}`, {told.measured}")
    _finish(told)
    return told


def _at_random(some: Sequence[Tally]) -> list[Cell]:
    """A row's counts: kills by column, and all kinds of kill together."""
    outcomes = [tally.outcomes() for tally in some]
    *sums, failed = (sum(each[name] for each in outcomes) for name in OUTCOMES)
    kinds = (sum(len(tally.killed) for tally in some if KINDS[tally.kind] == name) for name in AT_RANDOM)
    return [*kinds, *sums, sum(len(tally.missed) for tally in some), failed]


def _add(table: Table, who: list[Cell], counts: Sequence[int], of: Sequence[Sequence[Ended]]) -> None:
    """A row, unless it says nothing."""
    if any(counts):
        table.rows.append([*who, *(f"{count} of {len(some)}" for count, some in zip(counts, of, strict=True))])


_NOTES_ON_POINTS = (
    "trials: each killed once, equally often at each of three points of each of three tools.",
    "recorded: the call is known and has no effect yet. effect: it has not returned. returned: the next waits.",
    f"A tool takes {PACE * 1000:.0f} ms before its effect and again after it; the effects are counted in files.",
    "duplicates: invoices and emails beyond the first. losses: effects that never happened, though it said done.",
    "waiting: an interrupted email was put before a person, who looked, and it went on. finished: without anybody.",
    f"In one trial of {UNSURE} a resolver cannot tell, and a person decides as without one.",
    "failed: a program missed its point, did not end well, left processes behind or broken records, or lost a result.",
)
_NOTES_ON_RANDOM = (
    "seed {seed}. Of a program with several processes every other kill at a moment met one alone.",
    "at a moment, after some calls: the trials by kind of kill; what follows counts both.",
    "missed: the program had ended before the moment came; another one was tried in its place. failed: as above.",
    f"In one trial of {UNSURE} a resolver cannot tell, and a person decides as without one.",
    "A seed does not replay these kills exactly: it chooses parts of an undisturbed run, measured anew each time.",
    "(A seed of the soak does replay its plan.)",
    "Only Recall is killed at random, to find holes where nobody put a point; what peers repeat shows at the points.",
)


# -- kept beside what was measured before ----------------------------------------------------------------


def keep(told: Result, where: Path = RESULTS) -> None:
    """Save it; what others than the measured did stays as it was, so that they can be measured one by one."""
    if (where / f"{told.name}.json").exists():
        before = load(told.name, where)
        there = "" if before.machine == told.machine else f" on {', '.join(before.machine.values())}"
        kept = {table.name: table for table in before.tables}
        told.tables = [_beside(table, kept.get(table.name), there) for table in told.tables]
        told.versions = {**before.versions, **told.versions}
        _finish(told)
    told.save(where)


def _beside(new: Table, old: Table | None, there: str) -> Table:
    """The table with the rows of the old one that are of others; the old one itself if nothing of it was measured.

    Args:
        there: where the old rows were measured, if that was not here.
    """
    if old is None or (new.made and list(old.columns) != list(new.columns)):
        return new
    others = {whose: how + there for whose, how in old.made.items() if whose not in new.made}
    if not new.made:
        old.made = others
        return old
    new.rows += [row for row in old.rows if _whose(row) not in new.made]
    new.made = {**new.made, **others}
    return new


def _whose(row: Sequence[Cell]) -> str:
    return " ".join(map(str, row[: len(WHOSE)]))


def _finish(told: Result) -> None:
    """Sort the rows, and sum them up."""
    for table in told.tables:
        table.rows.sort(key=lambda row: [_ORDER.index(cell) if cell in _ORDER else -1 for cell in row[: len(WHO)]])
    told.figures = _figures(told.tables)


def _figures(tables: Sequence[Table]) -> dict[str, Cell]:
    """What texts quote: of Recall's durable and ordinary tools over every face, store and kind of kill, and of each
    program and its tools over the points alone."""
    figures: dict[str, int] = {}
    for table in tables:
        if not table.name.startswith("kills"):
            continue
        for row in table.rows:
            cells = dict(zip(table.columns, row, strict=True))
            names = [f"{row[0]} {row[3]}"] if table.name == "kills" else []
            if row[0] == "Recall":
                names.append("ordinary" if row[3] == TITLES["ordinary"] else "durable")
            if "trials" not in cells:
                cells["trials"] = sum(int(cells[column]) for column in AT_RANDOM)
            for name in names:
                for count in QUOTED:
                    if count in cells:
                        figures[f"{name} {count}"] = figures.get(f"{name} {count}", 0) + int(cells[count])
    return dict(figures)
