"""Whether a call is still going on.

Ctrl-C, or any signal handler that raises, can end a call between any two
steps, so that it never gave back what it had taken. Whoever finds something
taken by its own thread has to tell such a leftover, which is cleared, from a
call that is further up this very stack (a signal handler or a callback came in
between), which must not be disturbed.
"""

from __future__ import annotations

import sys
from types import FrameType


def frame(above: int = 0) -> FrameType:
    """The frame of the function that asks, or of one ``above`` it."""
    return sys._getframe(1 + above)


def going_on(call: FrameType | None) -> bool:
    """Whether the call of a frame is on this thread's stack."""
    here: FrameType | None = sys._getframe(1)
    while here is not None and call is not None:
        if here is call:
            return True
        here = here.f_back
    return False
