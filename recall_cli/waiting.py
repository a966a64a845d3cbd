"""Waiting between two looks, for commands that go on until their reader is gone."""

from __future__ import annotations

import select
import sys
import time


def pause(seconds: float) -> None:
    """Sleep, but end with BrokenPipeError when the reader of stdout has gone."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError, AttributeError):
        time.sleep(seconds)
        return
    for _, event in watched.poll(seconds * 1000):
        if event & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError
        time.sleep(seconds)
