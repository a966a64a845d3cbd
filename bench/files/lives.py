"""The lives of one agent: started, killed as planned, and started again until it is done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.files.criu import NoImage, image_bytes
from bench.measure import ROOT
from store.backends.sqlite import SqliteBackend
from store.transfer import export
from store.values import tokens_of
from store.views import View
from tests.shell.storm import AGENT, Place

LIMIT = 120.0  # seconds for one life; an undisturbed one takes a few
_WITHIN_FILE, _WITHIN_ACTION, _WITHIN_REPORT = 0.12, 0.06, 0.2  # seconds after its begin within which a kill comes


@dataclass
class Sizes:
    """What there was at one kill, in bytes unless said otherwise.

    Attributes:
        open: the step of the action that had begun and not ended, or "".
        records: the log as its export has it, a line a record, with its blobs.
        directory: what the store takes on the disk.
        rss, pss: the agent's resident memory, without the tools that it runs; of
            pages that it shares with other processes, pss counts its part.
        image: by CRIU; 0 for none.
        history: tokens of all turns, verbatim.
        briefing: tokens of what the next life was given.
        resumed_ms: what it took to open the store and to resume.
    """

    open: str
    records: int
    directory: int
    rss: int
    pss: int
    image: int
    history: int
    briefing: int = 0
    resumed_ms: float = 0.0


@dataclass
class Plan:
    """The kills to come: each at a file or later, one of them while an action is open.

    Attributes:
        at: by rising number of the file; the report counts as one more.
        inside: how many of those still have to come while an action is open.
    """

    chance: random.Random
    at: list[int]
    files: int
    inside: int = 1

    @classmethod
    def random(cls, chance: random.Random, files: int, kills: int, *, report: bool) -> Plan:
        """Any files; or the report as the last one."""
        others = sorted(chance.sample(range(files + (not report)), kills - report))
        return cls(chance, others + [files] * report, files)

    def pause(self, event: str, number: int) -> float | None:
        """Seconds after an event at which the agent is to die, or None if it is to live on."""
        if not self.at or number < self.at[0] or event not in ("file", "began"):
            return None
        if event == "file":
            # What is left has to suffice for those that must come inside; in the report, all.
            only_inside = len(self.at) <= self.inside or self.at[0] == self.files
            return None if only_inside else self.chance.uniform(0, _WITHIN_FILE)
        return self.chance.uniform(0, _WITHIN_REPORT if number == self.files else _WITHIN_ACTION)

    def hit(self, sizes: Sizes) -> None:
        """It died, with so much open."""
        if sizes.open:
            self.inside = max(0, self.inside - 1)
        if sizes.open or len(self.at) > self.inside:
            self.at.pop(0)


@dataclass
class Lived:
    """One run, to its end.

    Attributes:
        kills: all of them.
        planned: whether all came that were planned.
        finished: whether the last life said so.
    """

    kills: list[Sizes] = field(default_factory=list)
    resumes: int = 0
    planned: bool = False
    finished: bool = False


def live(at: Place, seed: int, plan: Plan, images: Path | None = None) -> Lived:
    """Start the agent until it is done, killing it as planned.

    Args:
        images: a directory for CRIU's images; None: it does not run here.
    """
    lived = Lived()
    while True:
        with _life(at, seed) as process:
            killed = _one_life(at, process, plan, lived, images)
        if not killed:
            lived.finished = process.returncode == 0 and lived.finished
            lived.planned = not plan.at
            return lived


@contextmanager
def _life(at: Place, seed: int) -> Iterator[subprocess.Popen[str]]:
    arguments = [str(at.store), AGENT, str(seed), str(len(at.texts))]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.files.agent", *arguments],
        cwd=at.repository,
        env={**at.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its tools die with it, as on a machine that goes down
    )
    watchdog = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))  # unplanned: it did not end by itself
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        _kill(process)
        if process.stdout is not None:
            process.stdout.close()


def _one_life(at: Place, process: subprocess.Popen[str], plan: Plan, lived: Lived, images: Path | None) -> bool:
    """Whether it was killed."""
    assert process.stdout is not None
    for line in process.stdout:
        told = json.loads(line)
        if told["event"] == "resumed" and lived.kills:
            lived.resumes += 1
            lived.kills[-1].briefing, lived.kills[-1].resumed_ms = told["tokens"], told["ms"]
        lived.finished = told["event"] == "finished"
        pause = plan.pause(told["event"], told.get("n", 0))
        if pause is not None:
            time.sleep(pause)
            rss, pss = memory(process.pid)
            image = _image(process.pid, images, len(lived.kills))
            if _kill(process):
                lived.kills.append(_sizes(at, rss, pss, image))
                plan.hit(lived.kills[-1])
                return True  # else it was over before
    process.wait(LIMIT)
    return False


def _kill(process: subprocess.Popen[str]) -> bool:
    """SIGKILL for the agent and its tools; whether the agent died of it. Returns when none of them is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 10
    while _group_is_left(process.pid) and time.monotonic() < until:
        time.sleep(0.002)
    return process.returncode == -signal.SIGKILL


def _group_is_left(group: int) -> bool:
    """Whether a process of the group is alive; a zombie is not, and nobody may ever reap it in a container."""
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                state, _, pgrp = (each / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(pgrp) == group and state != "Z":
                    return True
    return False


def memory(pid: int) -> tuple[int, int]:
    """A process's VmRSS and PSS in bytes; zeros if it is gone."""
    found = []
    for name, label in (("status", "VmRSS:"), ("smaps_rollup", "Pss:")):
        try:
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
        except OSError:
            lines = []
        found.append(next((int(line.split()[1]) * 1024 for line in lines if line.startswith(label)), 0))
    return found[0], found[1]


def _image(pid: int, images: Path | None, number: int) -> int:
    if images is None:
        return 0
    try:
        return image_bytes(pid, images / str(number))
    except NoImage as problem:
        print(problem, file=sys.stderr)
        return 0


def on_disk(directory: Path) -> int:
    """The bytes that a directory's files take, in whole blocks."""
    return sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file())


def _sizes(at: Place, rss: int, pss: int, image: int) -> Sizes:
    directory = on_disk(at.store)  # before it is looked into
    with SqliteBackend(at.store, read_only=True) as backend:
        view = View(backend, AGENT)
        return Sizes(
            open=next((each.step for each in view.pending()), ""),
            records=sum(len(line) for line in export(backend, [AGENT])),
            directory=directory,
            rss=rss,
            pss=pss,
            image=image,
            history=sum(
                tokens_of(view.content(turn.output_ref) if turn.output_ref else turn.content) for turn in view.turns()
            ),
        )
