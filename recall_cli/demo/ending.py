"""Ending early in good order: the signals that end a program, as exceptions at moments that can bear one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Raises for the first of the signals; later ones are ignored, so that nothing disturbs the clearing up."""

    def __init__(self) -> None:
        self._held_back = False
        self._waiting = 0
        self._ending = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A block in which the signals raise: KeyboardInterrupt, or SystemExit with 128 + the number."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number, handler in before.items():
                if handler is not signal.SIG_IGN:  # as under nohup
                    signal.signal(number, self._received)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """A block that they do not interrupt: a process started in it is known before anything is raised."""
        self._held_back = True
        try:
            yield
        finally:
            self._held_back = False
            if self._waiting:
                self._end(self._waiting)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._held_back:
            self._waiting = number
        elif not self._ending:
            self._end(number)

    def _end(self, number: int) -> None:
        self._ending, self._waiting = True, 0
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
