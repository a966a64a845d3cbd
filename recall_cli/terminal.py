"""The terminal of a job, lent to a command that leads a process group of its own."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

FROM_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)  # what stops a process that uses it from the background


class Terminal:
    """This session's terminal, if one of our streams is it.

    Lent at once only where nobody else of our job can want it; in a pipeline
    with a pager the command gets it when it uses it.
    """

    def __init__(self) -> None:
        self._descriptor = _own_terminal()
        self.lent_last = False

    @property
    def there(self) -> bool:
        return self._descriptor >= 0

    def foreground(self) -> int:
        """The process group that has it; -1 if there is none."""
        try:
            return os.tcgetpgrp(self._descriptor) if self.there else -1
        except OSError:
            return -1

    def lend_early(self, group: int) -> None:
        """Lend it unless somebody else of our job may use it."""
        if self.foreground() == os.getpgrp() and all(os.isatty(each) for each in (0, 1, 2)):
            self.lend(group)

    def lend(self, group: int) -> None:
        """Make ``group`` the foreground."""
        # From the background this raises SIGTTOU, which would stop us.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with suppress(OSError):
                os.tcsetpgrp(self._descriptor, group)
        finally:
            signal.signal(signal.SIGTTOU, before)

    def take_back(self, group: int) -> bool:
        """Whether ``group`` had it; then we have it again."""
        self.lent_last = self.foreground() == group
        if self.lent_last:
            self.lend(os.getpgrp())
        return self.lent_last


def stop(number: int, target: int) -> None:
    """Stop a process (or with 0 our group, and so us); returns when we go on."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        os.kill(target, number)
    finally:
        signal.signal(number, before)


def _own_terminal() -> int:
    """A descriptor of this session's terminal, else -1."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            if os.isatty(descriptor) and os.tcgetpgrp(descriptor) >= 0:
                return descriptor
    return -1
