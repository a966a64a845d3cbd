"""The world outside: a service whose state is one file, appended to under a lock; a module, and a program for shells.

It is fenced, as docs/shipping.md asks of a tool that matters: it keeps the
highest epoch that acted or asked for an agent, and refuses a call of a lower
one. Without that no log could keep a holder that was stopped between its
barrier and its tool from running the tool late. It does *not* refuse a second
call with the key of an external one: that there is none is Recall's promise,
and this file is where it would show.

    outside.py call FILE STEP CLASS     do it, with RECALL_IDEMPOTENCY_KEY and RECALL_FENCE
    outside.py asked FILE               exit 0 if it happened, 1 if not, 2 if it cannot tell; a resolver for recall run
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import zlib
from typing import Any, NamedTuple

UNSURE = 4  # of so many questions there is one that a resolver cannot answer


class Fence(NamedTuple):
    """``epoch`` and ``lsn`` of the caller; who only asks has lsn 0."""

    epoch: int
    lsn: int = 0

    @staticmethod
    def parse(token: str) -> Fence:
        """Of RECALL_FENCE or ``Agent.fence_of``: ``lineage:epoch:lsn``."""
        _, epoch, lsn = token.split(":")
        return Fence(int(epoch), int(lsn))


class Outside:
    """One agent's part of the world."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def call(self, key: str, fence: Fence, *, step: str, class_: str) -> str:
        """Do it: ``effect``; ``again`` for the known key of an idempotent call; ``refused`` below the fence."""
        with self._open() as file:
            lines = _locked(file)
            what = "effect"
            if fence < _highest(lines):
                what = "refused"
            elif class_ == "idempotent" and _happened(lines, key):
                what = "again"
            _add(file, what=what, key=key, epoch=fence.epoch, lsn=fence.lsn, step=step, **{"class": class_})
            return what

    def asked(self, key: str, fence: Fence) -> bool:
        """Whether a call happened; after this no caller below ``fence`` makes it happen."""
        with self._open() as file:
            lines = _locked(file)
            _add(file, what="asked", key=key, epoch=fence.epoch, lsn=fence.lsn)
            return _happened(lines, key)

    def _open(self) -> Any:
        return open(self._path, "ab+", buffering=0)


def _locked(file: Any) -> list[dict[str, Any]]:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0)
    return [json.loads(line) for line in file.readall().splitlines()]


def _add(file: Any, **fields: Any) -> None:
    file.write(json.dumps(fields).encode() + b"\n")  # one write to a file opened with O_APPEND


def _highest(lines: list[dict[str, Any]]) -> Fence:
    return max((Fence(each["epoch"], each["lsn"]) for each in lines), default=Fence(0))


def _happened(lines: list[dict[str, Any]], key: str) -> bool:
    return any(each["what"] == "effect" and each["key"] == key for each in lines)


def _chosen(key: str) -> int:
    """A number that this life's seed chooses for a call."""
    return zlib.crc32(f"{os.environ['SEED']} {key}".encode())


def main(words: list[str]) -> int:
    outside, key = Outside(words[1]), os.environ["RECALL_IDEMPOTENCY_KEY"]
    if words[0] == "call":
        fence = Fence.parse(os.environ["RECALL_FENCE"])
        told = outside.call(key, fence, step=words[2], class_=words[3])
        time.sleep(_chosen(key) % 80 / 1000)  # it happened, and who called does not know yet: when a kill is worst
        return 3 if told == "refused" else 0
    if _chosen(key) % UNSURE == 0:  # the next life may know
        return 2
    # The token of the session that asks: store:lineage:epoch:incarnation.
    return 0 if outside.asked(key, Fence(int(os.environ["RECALL_LEASE"].split(":")[2]))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
