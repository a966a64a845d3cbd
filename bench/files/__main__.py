"""The resume test: an agent that migrates 16 files is killed at random, and resumed in a new process until it is done.

Each file is one git commit, and one report is mailed at the end. The agent is
a Python program with turns, notes, pointers and outputs as large as a real
session's; the same work is done by the shell script of ``examples/migrate``.
Then the sizes: what is kept of the agent against the process that was killed,
and what the next one is given against the whole history.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.files import criu
from bench.files.lives import Plan, Sizes, live, on_disk
from bench.files.talk import Talk
from bench.measure import carried_out, compiled, scratch
from bench.report import Cell, Result, Table, arguments, command, listed, one_of, whole
from tests.shell import storm

COLUMNS = (
    "face",
    "runs",
    "finished",
    "files",
    "migrated once",
    "more than once",
    "not migrated",
    "reports",
    "kills",
    "inside an action",
    "inside the report",
    "resumes",
    "not killed as planned",
    "seconds in all",
)
SIZES = ("what", "unit", "median", "longest history")


@dataclass
class Face:
    """What the runs of one face came to."""

    runs: int = 0
    finished: int = 0
    files: int = 0
    once: int = 0
    more: int = 0
    reports: int = 0
    kills: int = 0
    inside: int = 0
    in_report: int = 0
    resumes: int = 0
    unplanned: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    at_rest: list[int] = field(default_factory=list)

    def count(self, at: storm.Place, *, ended: bool) -> None:
        """Look at what a run left behind."""
        commits = storm.commits(at)
        for number, before in enumerate(at.texts):
            path = f"api/f{number:02}.txt"
            edited = (at.repository / path).read_text()
            times = commits[f"Migrate {path}"]
            self.more += times > 1 or "v2(v2(" in edited
            self.once += times == 1 and edited == storm.migrated(before)
        self.runs += 1
        self.files += len(at.texts)
        self.reports += len(list(at.mailbox.glob("*.eml")))
        if not ended:
            self.failures.append(f"run {self.runs}: it did not end by itself")
        try:
            storm.check(at)
            self.finished += ended
        except AssertionError as problem:
            self.failures.append(f"run {self.runs}: " + str(problem).replace("\n", " ")[:200])

    def row(self, name: str) -> list[Cell]:
        lost = self.files - self.once - self.more
        counts = (self.runs, self.finished, self.files, self.once, self.more, lost, self.reports)
        return [name, *counts, self.kills, self.inside, self.in_report, self.resumes, self.unplanned, self.seconds]


def _in_report(seed: int) -> bool:
    """Whether a run's last kill comes inside the report."""
    return seed % 3 == 0


Run = Callable[[storm.Place, Face, int, int, Path | None], bool]


def python(at: storm.Place, face: Face, seed: int, kills: int, images: Path | None) -> bool:
    """One run of the Python program; whether it ended by itself."""
    plan = Plan.random(random.Random(seed), len(at.texts), kills, report=_in_report(seed))
    lived = live(at, seed, plan, images)
    face.kills += len(lived.kills)
    face.inside += sum(each.open != "" for each in lived.kills)
    face.in_report += sum(each.open == "report" for each in lived.kills)
    face.resumes += lived.resumes
    face.unplanned += not lived.planned
    face.sizes += [each for each in lived.kills if each.briefing]
    face.at_rest.append(on_disk(at.store))
    return lived.finished


def shell(at: storm.Place, face: Face, seed: int, kills: int, images: Path | None) -> bool:
    """One run of the script under ``recall exec``: it, its steps and their commands are killed, one or all."""
    mail = int(_in_report(seed))
    told = storm.disturbed(at, storm.Plan(random.Random(seed), kills - mail, mail))
    face.kills += told.inside.total() + told.outside.total()
    face.inside += told.inside.total()
    face.in_report += told.in_mail
    face.resumes += told.starts - 1
    face.unplanned += told.inside.total() < kills
    return told.asked == 0


FACES: dict[str, Run] = {"Python": python, "shell": shell}


def measure(
    runs: int, *, files: int = 16, kills: int = 3, seed: int = 1, faces: Sequence[str] = tuple(FACES)
) -> tuple[list[Table], dict[str, Cell], list[str]]:
    """The tables, the figures that a text quotes, and what was not as it should be, a line each."""
    no_image = ""
    try:
        criu.check()
    except criu.NoImage as problem:
        no_image = str(problem)
    table, figures, failures = Table("files", COLUMNS), dict[str, Cell](), list[str]()
    sizes: list[Sizes] = []
    at_rest: list[int] = []
    for name in faces:
        face = Face()
        for number in range(seed, seed + runs):
            texts = [Talk(number, each).source for each in range(files)]
            with scratch() as directory, storm.place(directory / "run", resolver=True, texts=texts) as at:
                images = None if no_image else directory / "images"
                if images:
                    images.mkdir()
                begun = time.perf_counter()
                ended = FACES[name](at, face, number, kills, images)
                face.seconds += time.perf_counter() - begun
                face.count(at, ended=ended)
        table.rows.append(face.row(name))
        sizes += face.sizes
        at_rest += face.at_rest
        failures += [f"{name}: {each}" for each in face.failures]
        figures |= {
            f"{name} finished": face.finished,
            f"{name} files more than once": face.more,
            f"{name} files lost": face.files - face.once - face.more,
            f"{name} kills": face.kills,
        }
    table.notes = [
        f"Seeds {seed} to {seed + runs - 1}; {kills} kills by SIGKILL or more in each run, at random moments.",
        "At least one of them comes while an action is open; in one run of three one comes inside the report.",
        "Python: the program dies with the tools that it runs.",
        "Shell: recall exec, the script, recall run, its command, or all at once; planned kills come inside a step.",
        "Finished: ended by itself, each file edited and committed once, one report, nothing open, the log verifies.",
        "Not killed as planned: the run was over before; a failure of the bench.",
    ]
    if not sizes:
        return [table], figures, failures
    shown = _sizes_table(sizes, at_rest, no_image)
    figures |= {f"{row[0]} ({row[1]})": row[2] for row in shown.rows}
    return [table, shown], figures, failures


def _sizes_table(sizes: list[Sizes], at_rest: list[int], no_image: str) -> Table:
    longest = max(sizes, key=lambda each: each.history)

    def row(what: str, unit: str, of: Callable[[Sizes], float]) -> list[Cell]:
        whole = unit in ("bytes", "tokens")
        cells = (statistics.median(map(of, sizes)), of(longest))
        return [what, unit, *(round(each) if whole else each for each in cells)]

    image: list[Cell] = ["CRIU image of the process", "bytes", "does not run here", ""]
    images = [each for each in sizes if each.image]
    if images:
        image[2:] = [round(statistics.median(each.image for each in images)), longest.image]
    rows: list[Sequence[Cell]] = [
        row("records of the agent", "bytes", lambda each: each.records),
        row("the store's directory", "bytes", lambda each: each.directory),
        ["the same after the last release", "bytes", round(statistics.median(at_rest)), ""],
        row("the process, VmRSS", "bytes", lambda each: each.rss),
        row("the process, PSS", "bytes", lambda each: each.pss),
        image,
        row("VmRSS against records", "times", lambda each: each.rss / each.records),
        row("VmRSS against the directory", "times", lambda each: each.rss / each.directory),
        row("the whole history", "tokens", lambda each: each.history),
        row("the briefing", "tokens", lambda each: each.briefing),
        row("history against briefing", "times", lambda each: each.history / each.briefing),
        row("open the store and resume", "ms", lambda each: each.resumed_ms),
    ]
    notes = [
        f"At {len(sizes)} kills of the Python program, taken right before them; second, at the longest history of all.",
        "Records: the log as recall export writes it, outputs included.",
        "The directory: blocks on the disk; while it is in use much of it is SQLite's write-ahead log.",
        "The process: the interpreter, Recall and the messages since its start, without the tools that it runs.",
        "A real agent has a model's client library too, and is larger.",
        "PSS counts of a shared page its part: the bench itself, another Python process, bears some.",
        "A token is four UTF-8 bytes. Open and resume: by a new process, modules imported on first use included.",
    ]
    if no_image:
        notes.append(f"CRIU: {no_image}.")
    return Table("resume sizes", SIZES, rows, notes)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=whole(1), default=20, help="of each face (default: %(default)d)")
    parser.add_argument("--files", type=whole(1), default=16, help="to migrate (default: %(default)d)")
    parser.add_argument("--kills", type=whole(1), default=3, help="planned in each run (default: %(default)d)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (default: %(default)d)")
    parser.add_argument(
        "--faces", type=listed(one_of(FACES)), default=",".join(FACES), help="a list (default: %(default)s)"
    )
    given = parser.parse_args()
    if given.kills > given.files:
        parser.error(f"--kills {given.kills} are more than one for each of the files (--files {given.files})")
    compiled()
    tables, figures, failures = measure(
        given.runs, files=given.files, kills=given.kills, seed=given.seed, faces=given.faces
    )
    result = Result("files", command(), tables, figures)
    result.show()
    if given.save:
        result.save()
    for each in failures:
        print(each, file=sys.stderr)
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    carried_out(main)
