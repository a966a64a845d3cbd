"""A command as a child: started only when told, watched to its end, its streams passed through.

The child is forked first and waits; its pid can be recorded before the command
starts. If its parent dies meanwhile, it never starts. It leads a process group
of its own, to which signals are passed on and which has the terminal while it
runs, as in a shell.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

# Passed on to the command. SIGKILL and SIGSTOP cannot be; SIGTERM's meaning is the caller's.
PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_CHUNK = 65536
_LINGER = 0.25  # seconds to go on reading after the command ended, for what it left in the pipe
KILL_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


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


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: its exit status; 128 + N by signal N.
        signal: the signal that ended it, or 0.
        timed_out: whether it was ended because its time was over.
    """

    status: int
    signal: int = 0
    timed_out: bool = False


class Child:
    """One command.

    Args:
        argv: the command and its arguments.
        environ: its whole environment.
        capture: pass stdout and stderr through pipes that ``watch`` reads.
        descriptors: what the command has open beside its streams: its number there, ours here.
        die_with_parent: on Linux, let the kernel kill it when this process dies.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        capture: bool,
        descriptors: Mapping[int, int] | None = None,
        die_with_parent: bool = False,
    ) -> None:
        self._argv = list(argv)
        go_read, self._go = os.pipe()
        self._failure, failure_write = os.pipe()
        self._out, out_write = os.pipe() if capture else (-1, -1)
        self._err, err_write = os.pipe() if capture else (-1, -1)
        self._terminal = _foreground_terminal()
        self._ended: Ended | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go)
                # Out of the way of the numbers that the command may want.
                failure_write = fcntl.fcntl(failure_write, fcntl.F_DUPFD_CLOEXEC, 256)
                os.setpgid(0, 0)
                if die_with_parent:
                    _die_with(parent)
                _reset_signals()
                told = os.read(go_read, _CHUNK)
                if told == b"":
                    os._exit(0)
                if capture:
                    os.dup2(out_write, 1)
                    os.dup2(err_write, 2)
                for number, ours in (descriptors or {}).items():
                    os.dup2(ours, number)
                    os.set_inheritable(number, True)  # dup2 leaves it as it is where the numbers are the same
                os.execvpe(self._argv[0], self._argv, {**environ, **json.loads(told)})
            except OSError as problem:
                os.write(failure_write, str(problem.errno or errno.EIO).encode())
            finally:
                os._exit(127)
        for descriptor in (go_read, failure_write, out_write, err_write):
            if descriptor >= 0:
                os.close(descriptor)
        with suppress(OSError):  # the child does it too; whoever is first
            os.setpgid(self.pid, self.pid)

    def go(self, environ: Mapping[str, str]) -> OSError | None:
        """Let the command start.

        Args:
            environ: variables that were not known before, a few hundred bytes of them.

        Returns:
            why it could not be started, or None.
        """
        self._give_terminal()
        os.write(self._go, json.dumps(dict(environ)).encode())  # less than PIPE_BUF, so in one piece
        os.close(self._go)
        self._go = -1
        failure = os.read(self._failure, 16)  # ends when the command has taken the child's place
        os.close(self._failure)
        if not failure:
            return None
        self._reap(blocking=True)
        self._take_terminal()
        return OSError(int(failure), os.strerror(int(failure)), self._argv[0])

    def cancel(self) -> None:
        """Never start it."""
        if self._go >= 0:
            os.close(self._go)
            os.close(self._failure)
            self._go = -1
            self._reap(blocking=True)

    def watch(
        self,
        *,
        keep: tuple[Kept, Kept] | None = None,
        timeout: float | None = None,
        on_term: Callable[[], float] = lambda: 0.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Ended:
        """Pass signals and streams through until the command has ended.

        Args:
            keep: where the openings of stdout and stderr go, if they were captured.
            timeout: seconds after which it is ended.
            on_term: called at SIGTERM; the seconds that the command may still go on.
            stop: asked now and then whether it has to be ended.
        """
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        got: list[int] = []

        def handle(number: int, frame: FrameType | None) -> None:
            got.append(number)

        watched = (*PASSED_ON, signal.SIGTERM, signal.SIGCHLD)
        before = {number: signal.signal(number, handle) for number in watched}
        wakeup_before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        try:
            return self._loop(wake_read, got, keep, timeout, on_term, stop)
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            for descriptor in (wake_read, wake_write):
                os.close(descriptor)
            self._take_terminal()

    def _loop(
        self,
        wake: int,
        got: list[int],
        keep: tuple[Kept, Kept] | None,
        timeout: float | None,
        on_term: Callable[[], float],
        stop: Callable[[], bool],
    ) -> Ended:
        streams = {self._out: (1, keep[0]), self._err: (2, keep[1])} if keep else {}
        end_at = None if timeout is None else time.monotonic() + timeout
        kill_at: float | None = None
        timed_out = False
        linger_until: float | None = None
        while True:
            now = time.monotonic()
            if self._reap():
                linger_until = linger_until or now + _LINGER
                if not streams or now >= linger_until:
                    break
            elif kill_at is not None and now >= kill_at:
                self.signal(signal.SIGKILL)
                kill_at = now + 1.0
            elif kill_at is None and ((end_at is not None and now >= end_at) or stop()):
                timed_out = end_at is not None and now >= end_at and timeout is not None
                self.signal(signal.SIGTERM)
                self.signal(signal.SIGCONT)
                kill_at = now + KILL_GRACE
            moments = [each for each in (linger_until, kill_at or end_at) if each is not None]
            pause = min([max(0.0, each - now) for each in moments] + [1.0])
            ready, _, _ = select.select([wake, *streams], [], [], pause)
            if wake in ready:
                with suppress(BlockingIOError):
                    os.read(wake, _CHUNK)
            while got:
                number = got.pop(0)
                if number == signal.SIGTERM:
                    grace = time.monotonic() + on_term()
                    end_at = grace if end_at is None else min(end_at, grace)
                    timeout = None
                elif number != signal.SIGCHLD:
                    self.signal(number)
            for descriptor in [each for each in ready if each != wake]:
                target, kept = streams[descriptor]
                if not self._pass(descriptor, target, kept):
                    del streams[descriptor]
                elif linger_until is not None:
                    linger_until = time.monotonic() + _LINGER
        assert self._ended is not None
        return Ended(self._ended.status, self._ended.signal, timed_out)

    def _pass(self, source: int, target: int, kept: Kept) -> bool:
        """Move one chunk; False at the end of the stream."""
        chunk = os.read(source, _CHUNK)
        if chunk:
            kept.add(chunk)
            try:
                _write_all(target, chunk)
                return True
            except OSError:
                # Nobody reads any more: let the command feel it, as it would without us.
                kept.left_out = max(kept.left_out, 1)
        os.close(source)
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the command's whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    # -- waiting and the terminal ----------------------------------------------------------

    def _reap(self, *, blocking: bool = False) -> bool:
        """Whether the command has ended."""
        while self._ended is None:
            pid, status = os.waitpid(self.pid, os.WUNTRACED | (0 if blocking else os.WNOHANG))
            if pid == 0:
                return False
            if os.WIFSTOPPED(status):
                self._stopped()
            elif os.WIFSIGNALED(status):
                self._ended = Ended(128 + os.WTERMSIG(status), os.WTERMSIG(status))
            else:
                self._ended = Ended(os.waitstatus_to_exitcode(status))
        return True

    def _stopped(self) -> None:
        """The command was stopped from the terminal: stop too, and go on together."""
        if self._terminal < 0:
            return
        self._take_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._give_terminal()
        self.signal(signal.SIGCONT)

    def _give_terminal(self) -> None:
        if self._terminal >= 0:
            _set_foreground(self._terminal, self.pid)

    def _take_terminal(self) -> None:
        if self._terminal >= 0:
            _set_foreground(self._terminal, os.getpgrp())


def guard(group: int) -> Callable[[], None]:
    """Kill a process group when this process dies, however it dies.

    A shell of its own session waits for the end of a pipe that only this
    process holds open. It does not look like this process, so that what kills
    one by its name does not kill the other.

    Returns:
        what calls it off.
    """
    import subprocess

    script = 'trap "" HUP INT QUIT TERM; read -r off || kill -KILL "-$0"'
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def call_off() -> None:
        with suppress(BrokenPipeError):
            process.communicate(b"off\n")

    return call_off


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody made our stdout non-blocking
            select.select([], [descriptor], [])


def _foreground_terminal() -> int:
    """A descriptor of the terminal if this process may give it away, else -1."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp():
                return descriptor
    return -1


def _set_foreground(terminal: int, group: int) -> None:
    # From the background this raises SIGTTOU, which would stop us.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with suppress(OSError):
            os.tcsetpgrp(terminal, group)
    finally:
        signal.signal(signal.SIGTTOU, before)


def _reset_signals() -> None:
    """The dispositions that a command expects; Python ignores SIGPIPE for itself."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _die_with(parent: int) -> None:
    """Linux: be killed when the parent is (prctl(2), PR_SET_PDEATHSIG = 1)."""
    import ctypes

    try:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it died before the call
        os._exit(0)
