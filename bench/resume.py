"""Resume and briefing at 100, 10,000 and 100,000 turns: the cost must not grow with the history."""

from __future__ import annotations

from pathlib import Path

from bench.measure import median_ms, row, scratch
from recall_cli import Client
from store.records import NEXT, TURN, Draft

SIZES = (100, 10_000, 100_000)
MESSAGE = "message {} of a history " + "with some words in it " * 20  # 100 of them are more than a briefing shows


def fill(client: Client, turns: int) -> None:
    """An agent's history, in batches (how it got there is not what is measured)."""
    with client.resume("a") as agent:
        agent.update_working_state(goal="measure", plan=["fill", "resume"])
        fence = agent._keeper.fence
        for start in range(0, turns, 1000):
            drafts = [
                Draft(TURN, {"role": "user", "content": MESSAGE.format(n)}, seq=NEXT)
                for n in range(start, min(start + 1000, turns))
            ]
            client.backend.append(fence, drafts)
        agent.set_pointer("wip", "git_ref", {"branch": "main"})


def measure(directory: Path, turns: int) -> float:
    with Client(local_dir=directory) as client:
        fill(client, turns)

    def resume() -> None:
        with Client(local_dir=directory) as client, client.resume("a") as agent:
            assert agent.context.briefing

    resume()
    return median_ms(resume, 30)


def main() -> None:
    with scratch() as directory:
        least = 0.0
        for turns in SIZES:
            taken = measure(directory / str(turns), turns)
            least = least or taken
            row(f"open, resume, briefing, release at {turns:,} turns", f"{taken:.2f} ms", taken / least, 1.5)


if __name__ == "__main__":
    main()
