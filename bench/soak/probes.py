"""Two invariants that no history shows, tried on the directory that a soak leaves behind."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.soak.ground import copied
from tests.keeping import tampering

Recall = Callable[..., "subprocess.CompletedProcess[str]"]
_SQLITES_OWN = ("recall.db-wal", "recall.db-shm")


def looking_does_not_touch(recall: Recall, directory: Path, agents: Sequence[str]) -> Iterator[str]:
    """7. Every way of looking leaves each file as it was, and adds none."""
    before = _files(directory)
    looks = [("agents",), ("doctor",), ("actions", "list", "--pending"), ("verify",)]
    looks += [(word, agents[0]) for word in ("briefing", "log")]
    looks += [(noun, "list", agents[0]) for noun in ("turns", "pointers", "outputs", "actions")]
    for words in looks:
        done = recall(directory, *words)
        if done.returncode:
            yield f"looking_does_not_touch: recall {' '.join(words)}: exit {done.returncode}: {done.stderr}"
    changed = {name for name, _ in before.items() ^ _files(directory).items()}
    yield from (f"looking_does_not_touch: {name} was changed by looking" for name in sorted(changed))


def _files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in _SQLITES_OWN
    }


def one_bad_record_bricks_nothing(recall: Recall, directory: Path, agents: Sequence[str], copy: Path) -> Iterator[str]:
    """8. In a copy where one turn is damaged verify names it, and its agent and another are read and resumed."""
    copied(directory, copy)
    with tampering(copy) as connection:
        turns = "SELECT agent, branch, lsn FROM records WHERE kind = 'turn' ORDER BY agent, lsn"
        found = connection.execute(turns).fetchall()
        bad, branch, lsn = found[len(found) // 2]
        damage = "UPDATE records SET line = 'no JSON' WHERE agent = ? AND branch = ? AND lsn = ?"
        connection.execute(damage, (bad, branch, lsn))
    verified = recall(copy, "verify")
    if verified.returncode != 9 or f"{bad} lsn {lsn}" not in verified.stdout:
        yield f"one_bad_record_bricks_nothing: verify does not name {bad} lsn {lsn}: {verified.stdout}"
    other = next(each for each in agents if each != bad)
    for words in (("turns", "list", bad), ("briefing", bad), ("resume", bad), ("resume", other)):
        done = recall(copy, *words)
        if done.returncode:
            yield f"one_bad_record_bricks_nothing: {' '.join(words)}: exit {done.returncode}: {done.stderr}"
