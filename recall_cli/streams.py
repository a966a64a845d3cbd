"""A command's output on its way through: passed on at once, its beginning kept."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import termios
from dataclasses import dataclass, field

_CHUNK = 65536
_ATOMIC = select.PIPE_BUF  # bytes that a pipe which is ready takes without blocking


@dataclass
class Kept:
    """The beginning of a stream, up to a limit; the rest is counted."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    left_out: int = 0

    def add(self, chunk: bytes) -> None:
        room = max(0, self.limit - len(self.data))
        self.data += chunk[:room]
        self.left_out += len(chunk) - min(room, len(chunk))


class Stream:
    """One stream of the command on its way to ours: never more of it in hand than one chunk.

    Attributes:
        pending: what was read and is not passed on yet.
        left: bytes that the command left in its pipe when it ended, and that are not read yet.
        ended: whether there is no more to read.
    """

    def __init__(self, source: int, target: int, kept: Kept) -> None:
        self.source, self.target, self.kept = source, target, kept
        self.pending = memoryview(b"")
        self.left = 0
        self.ended = False
        self._unread = False
        mode = os.fstat(target).st_mode
        self._may_block = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(target)

    def read(self) -> None:
        chunk = os.read(self.source, _CHUNK)
        self.kept.add(chunk)
        its_last, self.left = self.left > 0, max(0, self.left - len(chunk))
        if not chunk:
            self._close()
        elif not self._unread:
            self.pending = memoryview(chunk)
        elif not its_last and not wait_for({self.source: select.POLLHUP}, 0):
            # It goes on: let it feel that nobody reads, as it would without us. What it writes now is not known.
            self.kept.left_out = max(self.kept.left_out, 1)
            self._close()

    def write(self) -> None:
        """Write what is taken without waiting, so that a slow reader keeps us from no signal and no time-out."""
        try:
            written = os.write(self.target, self.pending[:_ATOMIC] if self._may_block else self.pending)
            self.pending = self.pending[written:]
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads any more. The command may have written its last, and then all of it is kept: its
            # output is whole for a replay, although the script that asked for it was killed.
            self.pending, self._unread = memoryview(b""), True

    def note_end(self) -> None:
        """The command has ended: what is in its pipe by now is read, however long our reader takes."""
        if not self.ended:
            size = fcntl.ioctl(self.source, termios.FIONREAD, bytes(4))
            self.left = int.from_bytes(size, sys.byteorder)

    def keep_rest(self) -> None:
        """Pass nothing on any more; keep what the command, which has ended, left in its pipe."""
        self.pending, self._unread = memoryview(b""), True
        while self.left:
            self.read()

    def _close(self) -> None:
        self.pending, self.left, self.ended = memoryview(b""), 0, True
        os.close(self.source)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however long the reader takes."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody made our stdout non-blocking
            wait_for({descriptor: select.POLLOUT})


def is_writable(descriptor: int) -> bool:
    """Whether up to PIPE_BUF bytes can be written right now without waiting."""
    return bool(wait_for({descriptor: select.POLLOUT}, 0))


def wait_for(wanted: dict[int, int], milliseconds: int | None = None) -> list[int]:
    """Those of the descriptors that are ready for what is wanted of each, or have failed.

    Not ``select``, which knows no descriptor over 1,023: a parent may leave us that many.
    """
    waiting = select.poll()
    for descriptor, events in wanted.items():
        waiting.register(descriptor, events)
    return [descriptor for descriptor, _ in waiting.poll(milliseconds)]
