"""The server's process: its streams, its signals, its two threads, its end.

The main thread reads, and only reads, so that it always notices that stdin
has closed or that a signal has come. A second thread answers, one message
after another, so that the calls of a session keep their order; the leases are
renewed by threads of their own, however long a call or a slow client takes.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from recall_cli.mcp import framing
from recall_cli.mcp.log import complain
from recall_cli.mcp.protocol import Protocol, cancels, line_of
from recall_cli.streams import is_writable, wait_for, write_all

_CHUNK = 1 << 20
_MOST_WAITING = 64 << 20  # bytes of messages that wait for their turn; beyond it stdin is left alone
_OVERHEAD = 1 << 10  # bytes of even the smallest message while it waits
_GRACE = 10.0  # seconds for what was asked before stdin closed
LAST = 1.0  # seconds for the call that is under way when a signal comes
_STUCK = 2.0  # seconds that an answer may wait to be read once stdin has closed
RELEASING = 8.0  # seconds for giving the leases back; they are free anyway once the process is gone
_TICK = 0.05

_END = object()  # in a message's place
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(protocol: Protocol) -> int:
    """Answer what comes on stdin until it closes, until nobody reads stdout, or until told to end.

    Returns:
        0, or 130 after an interrupt from the keyboard.
    """
    given, taken = _streams()
    if os.isatty(given):
        complain("this speaks to an MCP host, which starts it by itself; Ctrl-D ends it, recall mcp --help explains it")
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    seen = catch_signals(woken)
    worker = _Worker(protocol, taken, woken)
    worker.start()
    _read(given, wake, worker, seen)
    worker.finish(at_once=bool(seen))
    _wait(worker, seen)
    closing = threading.Thread(target=protocol.session.close, daemon=True)
    closing.start()
    closing.join(RELEASING)
    return 130 if signal.SIGINT in seen else 0


def _wait(worker: _Worker, seen: list[int]) -> None:
    """Give the worker time for what was asked of it; a signal that comes meanwhile shortens it."""
    begun, stuck = time.monotonic(), 0.0
    ends = begun + (LAST if seen else _GRACE)
    while worker.is_alive() and time.monotonic() < ends and stuck < _STUCK:
        worker.join(_TICK)
        stuck = stuck + _TICK if worker.writing else 0.0
        if seen:
            ends = min(ends, time.monotonic() + LAST)


def _streams() -> tuple[int, int]:
    """Descriptors of the client's stdin and stdout that no child inherits.

    In their old places stand /dev/null and stderr, so that nothing else, in
    this process or a child, reads a message or writes between two answers.
    """
    # Above 2: where the host gave us no stderr, its number must not become the client's stdin.
    given, taken = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (0, 1))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    if sys.stderr is None:
        os.dup2(nothing, 2)
    if nothing > 2:
        os.close(nothing)
    if sys.stdout is not None:  # it is None where the host gave us none
        sys.stdout.flush()
    os.dup2(2, 1)
    return given, taken


def catch_signals(woken: int, numbers: Iterable[signal.Signals] = SIGNALS) -> list[int]:
    """Signals only wake who waits; which ones came is in the list."""
    seen: list[int] = []
    for each in numbers:
        signal.signal(each, lambda number, frame: seen.append(number))
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    return seen


def _read(given: int, wake: int, worker: _Worker, seen: list[int]) -> None:
    """Pass on messages until stdin ends, the worker does, or a signal comes."""
    lines = framing.Lines()
    while not seen and not worker.stopped:
        sources = [wake] if worker.full else [given, wake]
        ready = wait_for(dict.fromkeys(sources, select.POLLIN))
        if wake in ready:
            os.read(wake, 4096)
        if given not in ready:
            continue
        try:
            chunk = os.read(given, _CHUNK)
        except BlockingIOError:
            continue
        except OSError as problem:
            complain(f"stdin cannot be read: {problem.strerror}")
            return
        for line in lines.feed(chunk) if chunk else lines.end():
            worker.take(line)
        if not chunk:
            return


class _Worker(threading.Thread):
    """Answers messages in the order in which they came.

    Attributes:
        full: so much waits that no more should be read now.
        writing: an answer is on its way, and waits if the client does not read.
        stopped: nobody reads the answers any more.
    """

    def __init__(self, protocol: Protocol, taken: int, woken: int) -> None:
        super().__init__(daemon=True, name="recall-mcp")
        self._protocol, self._taken, self._woken = protocol, taken, woken
        self._changed = threading.Condition()
        self._output = threading.Lock()
        self._waiting: deque[tuple[Any, int]] = deque()
        self._size = 0
        self._ending = False
        self.full = False
        self.writing = False
        self.stopped = False

    def take(self, line: bytes | framing.Broken) -> None:
        """A message for later. A ping is answered at once, and a cancellation takes out what waits."""
        message = framing.parse(line) if isinstance(line, bytes) else line
        size = _OVERHEAD + (len(line) if isinstance(line, bytes) else 0)
        if isinstance(message, dict) and message.get("method") == "ping" and self._answered_now(message):
            return
        cancelled = cancels(message)
        with self._changed:
            if cancelled is not None:
                self._drop(cancelled)
                return
            self._waiting.append((message, size))
            self._size += size
            self.full = self._size > _MOST_WAITING
            self._changed.notify()

    def _answered_now(self, message: Any) -> bool:
        """Answer beside the call that is under way, if that cannot block: the reader must never wait for a client."""
        line = b"".join(line_of(each) for each in [self._protocol.answer(message)] if each is not None)
        if len(line) > select.PIPE_BUF or not self._output.acquire(timeout=_TICK):  # the last answer may just be out
            return False
        try:
            ready = is_writable(self._taken)
            if ready:
                write_all(self._taken, line)
            return ready
        except OSError:
            return False  # the worker will find out, too
        finally:
            self._output.release()

    def _drop(self, id: str | int) -> None:
        for each in self._waiting:
            message, size = each
            if isinstance(message, dict) and message.get("id") == id and message.get("method") != "initialize":
                self._waiting.remove(each)
                self._let_go(size)
                return

    def _let_go(self, size: int) -> None:
        self._size -= size
        if self.full and self._size <= _MOST_WAITING:
            self.full = False
            self._wake()

    def finish(self, *, at_once: bool) -> None:
        """No more will come; answer what waits, or only finish what is under way."""
        with self._changed:
            self._ending = True
            if at_once:
                self._waiting.clear()
            self._changed.notify()

    def run(self) -> None:
        try:
            while (message := self._next()) is not _END:
                answer = self._protocol.answer(message)
                if answer is not None:
                    line = line_of(answer)
                    self.writing = True
                    with self._output:
                        write_all(self._taken, line)
                    self.writing = False
        except OSError:  # the client has closed stdout: it is gone, or wants no more
            pass
        except BaseException as problem:  # noqa: BLE001 (the process must end, and release, not hang)
            complain(f"unexpected {type(problem).__name__}: {problem}; this is a defect of recall")
        self.stopped = True
        self._wake()

    def _next(self) -> Any:
        with self._changed:
            while not self._waiting and not self._ending:
                self._changed.wait()
            if not self._waiting:
                return _END
            message, size = self._waiting.popleft()
            self._let_go(size)
            return message

    def _wake(self) -> None:
        try:
            os.write(self._woken, b"\0")
        except OSError:
            pass  # full of wakings already
