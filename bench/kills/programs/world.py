"""What the tools touch, in files outside of any store; needs nothing but Python, for it runs under other people's.

A lookup only reads. An invoice is one file for each idempotency key, as with a
service that knows such keys. An email is a line: sent is sent.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from pathlib import Path

ORDER = ("lookup", "invoice", "email")
CLASSES = {"lookup": "pure", "invoice": "idempotent", "email": "external"}
POINTS = ("recorded", "effect", "returned")
WAITING = 8  # exit code of a program that waits for a person
UNSURE = 2  # exit code of a question that cannot be answered
PACE = 0.005  # seconds that a tool takes before its effect, and again after it


class World:
    """The world of one trial, named by WORLD.

    KILL_AT is the ``tool:point`` at which this process is to be killed. With
    UNSURE a resolver that asks is not told; a person who looks sees it all the same.
    """

    def __init__(self) -> None:
        self.path = Path(os.environ["WORLD"])
        self.fatal = os.environ.get("KILL_AT", "")
        self.unsure = bool(os.environ.get("UNSURE"))

    def call(self, tool: str, key: str = "") -> str:
        """Carry out a tool; ``key`` is its idempotency key, if whoever calls it has one. Returns its result."""
        time.sleep(PACE)
        self.reach(tool, "recorded")
        if tool == "lookup":
            self._add("lookups", "acme")
        elif tool == "invoice":
            (self.path / "invoices" / (key or uuid.uuid4().hex)).touch()
        else:
            self._add("emails", key or "no key")
        self.reach(tool, "effect")
        time.sleep(PACE)
        return result_of(tool)

    def sent(self, key: str) -> bool:
        """Whether the email with this key has left."""
        return key in lines(self.path / "emails")

    def asked(self, key: str) -> bool | None:
        """What a resolver is told of the email with this key: whether it has left, or None if that cannot be said."""
        return None if self.unsure else self.sent(key)

    def ready(self) -> None:
        """Tell the harness that the program is about to resume: kills by time count from here."""
        self._tell(b"r")

    def reach(self, tool: str, point: str) -> None:
        """If this is where the process is to die: say so, and wait for it."""
        if self.fatal == f"{tool}:{point}":
            self._tell(b"k")
            while True:
                signal.pause()

    def _tell(self, what: bytes) -> None:
        descriptor = os.open(self.path / "told", os.O_WRONLY)
        os.write(descriptor, what)
        os.close(descriptor)

    def _add(self, name: str, line: str) -> None:
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def result_of(tool: str) -> str:
    """What a tool returns: what it must be said to have returned ever after, too."""
    return f"{tool} is done"


def counts(world: Path) -> dict[str, int]:
    """The effects in a world, by tool."""
    invoices = len(list((world / "invoices").iterdir()))
    return {"lookup": len(lines(world / "lookups")), "invoice": invoices, "email": len(lines(world / "emails"))}


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it is not there."""
    return path.read_text().splitlines() if path.exists() else []


def main(arguments: list[str]) -> int:
    """For a shell: ``call TOOL [KEY]``, ``asked KEY``, ``reach TOOL POINT`` or ``ready``."""
    world = World()
    verb, *rest = arguments
    if verb == "asked":
        told = world.asked(rest[0])
        if told:
            print(result_of("email"))
        return UNSURE if told is None else int(not told)
    if verb == "call":
        print(world.call(*rest))
    elif verb == "reach":
        world.reach(*rest)
    else:
        world.ready()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
