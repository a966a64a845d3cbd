"""What a bench measured: shown as a table, and kept with its machine and versions as ``bench/results/NAME.json``.

``docs/proof.md`` and the README's figures are generated from those files
(``make generate``), so that no number stands in them that was not measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.measure import ROOT

RESULTS = ROOT / "bench" / "results"

Cell = str | int | float
T = TypeVar("T")


@dataclass
class Table:
    """Rows under columns.

    Attributes:
        name: by which ``docs/proof.md`` asks for it.
        notes: what has to be known to read it, a sentence each.
        made: where rows may come from several runs: how and when, by whose rows they are.
    """

    name: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)

    def told(self) -> list[str]:
        """What stands below it: the notes, and which rows were made how."""
        by: dict[str, list[str]] = {}
        for whose, how in self.made.items():
            by.setdefault(how, []).append(whose)
        if len(by) == 1:
            return [*self.notes, f"Made by {next(iter(by))}."]
        return [*self.notes, *(f"Made by {how}: {', '.join(each)}." for how, each in by.items())]

    def cells(self) -> list[list[str]]:
        """The rows as text: an integer with its thousands separated, a fraction with two digits."""
        return [[_text(each) for each in row] for row in self.rows]

    def shown(self) -> str:
        """The table for a terminal."""
        lines = [list(self.columns), *self.cells()]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.columns))]
        numeric = [all(isinstance(row[n], int | float) for row in self.rows) for n in range(len(self.columns))]
        out = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            )
            for line in lines
        ]
        return "\n".join([*(line.rstrip() for line in out), *self.told()])


def arguments(document: str | None) -> argparse.ArgumentParser:
    """What every bench takes; each adds its own."""
    parser = argparse.ArgumentParser(
        prog=_program(),
        description=document,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # so that ``command`` knows ``--save`` when it sees it
    )
    parser.add_argument("--save", action="store_true", help="keep the result in bench/results for the documents")
    return parser


def command(*more: str) -> str:
    """The command that runs this bench as it was run; ``--save`` is left out, for it changes nothing that is measured.

    Args:
        more: options that were not given, and without which another run would be another one.
    """
    given = [each for each in sys.argv[1:] if each != "--save"]
    return shlex.join([*_program().split(), *given, *more])


def _program() -> str:
    spec = sys.modules["__main__"].__spec__
    name = spec.name if spec else Path(sys.argv[0]).stem
    return f"python -m {name.removesuffix('.__main__')}"


# -- types of options: what they refuse is said in one line, and the bench exits with 2 ----------------


def whole(least: int = 0) -> Callable[[str], int]:
    """A whole number, ``least`` or more."""

    def read(text: str) -> int:
        if text.isdecimal() and int(text) >= least:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")

    return read


def positive(text: str) -> float:
    """A number above 0 that is finite."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number) and number > 0:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """One of some names; for one alone there is argparse's ``choices``, this is for lists."""

    def read(text: str) -> str:
        if text in names:
            return text
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")

    return read


def listed(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Values between commas, each of the type ``one`` and given once."""

    def read(text: str) -> list[T]:
        found = [one(each) for each in text.split(",")]
        if any(found.count(each) > 1 for each in found):
            raise argparse.ArgumentTypeError(f"{text!r} names one twice")
        return found

    return read


def machine() -> dict[str, str]:
    """What this machine is, as far as it bears on a measurement."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(ROOT),
    }


def versions_of_python() -> dict[str, str]:
    return {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}


def peer_versions(python: Path, names: Sequence[str]) -> dict[str, str]:
    """The versions of packages in another environment."""
    asked = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    told = subprocess.run([python, "-c", asked, *names], check=True, capture_output=True, text=True).stdout
    return dict(json.loads(told))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(path: Path) -> str:
    """The type of the file system that holds ``path``: of the longest mount point above it."""
    best, kind = "", "unknown"
    try:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, point, type_ = line.split()[:3]
            if path.is_relative_to(point) and len(point) > len(best):
                best, kind = point, type_
    except OSError:
        pass
    return kind


def _text(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


@dataclass
class Result:
    """One run of one bench.

    Attributes:
        name: the file's name in ``bench/results``.
        command: what made it, and makes it again.
        figures: numbers that a text quotes, by name.
        versions: of what was measured beside Recall.
    """

    name: str
    command: str
    tables: list[Table]
    figures: dict[str, Cell] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=machine)
    measured: str = field(default_factory=lambda: time.strftime("%Y-%m-%d", time.gmtime()))

    def show(self) -> None:
        """Print the tables; one of which nothing was measured is left out."""
        for table in self.tables:
            if table.rows or table.made:
                print(f"\n{table.name}\n{table.shown()}", flush=True)

    def save(self, where: Path = RESULTS) -> None:
        """Write it where the documents find it."""
        where.mkdir(exist_ok=True)
        versions = {"Recall": importlib.metadata.version("recall-memory"), **versions_of_python(), **self.versions}
        text = json.dumps({**asdict(self), "versions": versions}, indent=1, ensure_ascii=False)
        (where / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def load(name: str, where: Path = RESULTS) -> Result:
    """A result that was saved."""
    kept = json.loads((where / f"{name}.json").read_text(encoding="utf-8"))
    return Result(**{**kept, "tables": [Table(**each) for each in kept["tables"]]})


if __name__ == "__main__":
    json.dump(machine(), sys.stdout, indent=1)
