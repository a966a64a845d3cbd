"""The server's log: lines on stderr that hold nothing up, whether or not a host reads them."""

from __future__ import annotations

import os
import select
import sys

from recall_cli.streams import is_writable


def complain(text: str) -> None:
    """Say something to whoever reads the server's log; what a full pipe does not take is left unsaid.

    Some hosts never read it. A thread that waited for them would answer no
    more, or renew no more leases.
    """
    try:
        target = sys.stderr.fileno()
        for line in text.rstrip("\n").split("\n"):
            data = f"recall mcp: {line}".encode("utf-8", "backslashreplace")[: select.PIPE_BUF - 1] + b"\n"
            if not is_writable(target):
                return
            os.write(target, data)
    except (OSError, ValueError, AttributeError):
        pass  # it is closed, or there is none
