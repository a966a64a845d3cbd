"""A durable turn in process, against the bare write and fdatasync of the same bytes on the same disk."""

from __future__ import annotations

import statistics

from bench.measure import fdatasync_us, mean_us, row, scratch
from recall_cli import Client

TURN = "12 call sites found; migrating api/checkout.py first. " * 2
TIMES, ROUNDS = 2000, 5


def main() -> None:
    with (
        scratch() as directory,
        Client(local_dir=directory / "store") as client,
        client.resume("billing-migrator") as agent,
    ):
        agent.record_turn("assistant", TURN)
        size = len(next(client.backend.log(agent.id, after=client.backend.counters(agent.id).lsn - 1)).line)
        ratios, turns, bares = [], [], []
        for _ in range(ROUNDS):  # in turn: the disk's speed drifts
            turns.append(mean_us(lambda: agent.record_turn("assistant", TURN), TIMES))
            bares.append(fdatasync_us(directory / "bare", size, TIMES))
            ratios.append(turns[-1] / bares[-1])
        stored = (directory / "store" / "recall.db").stat().st_size / (TIMES * ROUNDS)
    row(f"write + fdatasync of {size} bytes", f"{statistics.median(bares):.0f} µs")
    row("record_turn, checkpoints included", f"{statistics.median(turns):.0f} µs", statistics.median(ratios), 2.0)
    row("database bytes a turn", f"{stored:.0f}")


if __name__ == "__main__":
    main()
