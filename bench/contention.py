"""16 processes writing to one directory: nothing is lost, and nobody starves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench.measure import fdatasync_us, row, scratch
from store.backends.sqlite import SqliteBackend

PROCESSES, SECONDS = 16, 4.0

WRITER = """
import sys, time
from recall_cli import Client
directory, name, start, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
with Client(local_dir=directory) as client, client.resume(name) as agent:
    time.sleep(max(0.0, start - time.time()))
    written = 0
    while time.time() < start + seconds:
        agent.record_turn("user", "hello")
        written += 1
print(written)
"""


def run(directory: Path, processes: int) -> list[int]:
    start = str(time.time() + 1.5 + processes * 0.15)
    command = [sys.executable, "-c", WRITER, str(directory)]
    started = [
        subprocess.Popen([*command, f"agent-{n}", start, str(SECONDS)], stdout=subprocess.PIPE, text=True)
        for n in range(processes)
    ]
    return [int(process.communicate()[0]) for process in started]


def main() -> None:
    with scratch() as directory:
        bare = fdatasync_us(directory / "bare", 300, 2000)
        alone = run(directory / "alone", 1)[0] / SECONDS
        written = run(directory / "shared", PROCESSES)
        with SqliteBackend(directory / "shared", read_only=True) as backend:
            stored = sum(backend.counters(f"agent-{n}").turns for n in range(PROCESSES))
    together = sum(written) / SECONDS
    row("bare write + fdatasync, one process", f"{1e6 / bare:.0f} /s")
    row("1 process", f"{alone:.0f} turns/s")
    row(f"{PROCESSES} processes together, against 1", f"{together:.0f} turns/s", together / alone)
    row("slowest process against the fastest", f"{min(written)} : {max(written)}", min(written) / max(written))
    row("acknowledged and not stored", f"{sum(written) - stored}")
    if sum(written) != stored:
        sys.exit("lost records")


if __name__ == "__main__":
    main()
