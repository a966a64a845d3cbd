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
from typing import Any

from recall_cli.streams import Kept, Stream, write_all
from recall_cli.terminal import FROM_TERMINAL, Terminal, stop
from store.value import value

# Passed on to the command. SIGKILL and SIGSTOP cannot be; SIGTERM's meaning is the caller's.
PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_CHUNK = 65536
_LINGER = 0.25  # seconds of silence after its end until what it left behind is no longer waited for
_LINGER_MOST = 2.0
KILL_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


@value
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
        self._terminal = Terminal()
        self._ended: Ended | None = None
        self._got: list[int] = []
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._wake = (-1, -1)
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
                told = b"".join(iter(lambda: os.read(go_read, _CHUNK), b""))
                if not told:
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
        """Let the command start. From here on signals are kept for ``watch``, which has to follow.

        Args:
            environ: variables that were not known before.

        Returns:
            why it could not be started, or None.
        """
        self._listen()
        self._terminal.lend_early(self.pid)
        with suppress(BrokenPipeError):  # it was killed while it waited: watch tells
            write_all(self._go, json.dumps(dict(environ)).encode())
        os.close(self._go)
        self._go = -1
        failure = os.read(self._failure, 16)  # ends when the command has taken the child's place
        os.close(self._failure)
        if not failure:
            return None
        self._reap(blocking=True)
        self._deafen()
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
        grace: float = KILL_GRACE,
        on_term: Callable[[], float] = lambda: 0.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Ended:
        """Pass signals and streams through until the command has ended.

        Args:
            keep: where the openings of stdout and stderr go, if they were captured.
            timeout: seconds after which it is ended.
            grace: seconds between SIGTERM and SIGKILL when it is ended.
            on_term: called at SIGTERM; the seconds that the command may still go on.
            stop: asked now and then whether it has to be ended.
        """
        streams = [Stream(self._out, 1, keep[0]), Stream(self._err, 2, keep[1])] if keep else []
        try:
            return self._loop(streams, timeout, grace, on_term, stop)
        finally:
            self._deafen()

    def _loop(
        self,
        streams: list[Stream],
        timeout: float | None,
        grace: float,
        on_term: Callable[[], float],
        stop: Callable[[], bool],
    ) -> Ended:
        end_at = None if timeout is None else time.monotonic() + timeout
        kill_at: float | None = None
        timed_out = False
        told_to_end = False
        silent_at, silent_most = 0.0, 0.0
        while True:
            now = time.monotonic()
            if self._reap():
                if not silent_most:
                    silent_at, silent_most = now + _LINGER, now + _LINGER_MOST
                    for stream in streams:
                        stream.note_end()
                if told_to_end and now >= silent_most:
                    streams = self._keep_rest(streams)
                streams = [each for each in streams if not each.ended]
                if now >= min(silent_at, silent_most):
                    streams = [each for each in streams if each.pending or each.left]
                if not streams:
                    break
            elif kill_at is not None and now >= kill_at:
                self.signal(signal.SIGKILL)
                kill_at = now + 1.0
            elif kill_at is None and ((end_at is not None and now >= end_at) or stop()):
                timed_out = end_at is not None and now >= end_at and timeout is not None
                self.signal(signal.SIGTERM)
                self.signal(signal.SIGCONT)
                kill_at = now + grace
            moments = (silent_at, silent_most) if self._ended else (kill_at or end_at or 0.0,)
            pause = min([each - now for each in moments if each > now] + [1.0])
            reading = {each.source: each for each in streams if not each.pending and not each.ended}
            writing = {each.target: each for each in streams if each.pending}
            ready, free, _ = select.select([self._wake[0], *reading], [*writing], [], pause)
            if self._wake[0] in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake[0], _CHUNK)
            while self._got:
                number = self._got.pop(0)
                if self._ended and number in (signal.SIGTERM, signal.SIGINT):
                    # Nothing is left to be ended but our waiting for a reader.
                    streams, ready, free = self._keep_rest(streams), [], []
                elif number == signal.SIGTERM:
                    told_to_end = True
                    grace_ends = time.monotonic() + on_term()
                    end_at = grace_ends if end_at is None else min(end_at, grace_ends)
                    timeout = None
                elif number == signal.SIGTSTP:
                    self._suspended_with_us()
                elif number != signal.SIGCHLD:
                    self.signal(number)
            for stream in [reading[each] for each in ready if each in reading]:
                stream.read()
                silent_at = time.monotonic() + _LINGER if self._ended else 0.0
            for stream in [writing[each] for each in free]:
                stream.write()
        if kill_at is not None:
            self.end_group(kill_at - time.monotonic())
        return Ended(self._ended.status, self._ended.signal, timed_out) if self._ended else Ended(1)

    @staticmethod
    def _keep_rest(streams: list[Stream]) -> list[Stream]:
        """Wait for no reader any more; the streams that are left, which are none."""
        for stream in streams:
            stream.keep_rest()
        return []

    def end_group(self, grace: float) -> None:
        """Its leader is gone: wait up to ``grace`` seconds for the others of the group, then kill them."""
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, 0)
            except OSError:
                return
            time.sleep(0.02)
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the command's whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    # -- signals -----------------------------------------------------------------------------

    def _listen(self) -> None:
        """Keep signals from now on; those that we were started to ignore stay ignored, by the command too."""
        self._wake = os.pipe()
        for each in self._wake:
            os.set_blocking(each, False)
        watched = [*PASSED_ON, signal.SIGTERM, signal.SIGCHLD]
        if self._terminal.there:
            watched.append(signal.SIGTSTP)
        for number in watched:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda got, frame: self._got.append(got))
        self._wakeup_before = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)

    def _deafen(self) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        for each in self._wake:
            os.close(each)
        self._terminal.take_back(self.pid)

    def die_alike(self, ended: Ended) -> None:
        """End by Ctrl-C if the command did, so that a script which started us ends too, as without us."""
        if not self._terminal.there or ended.signal != signal.SIGINT:
            return
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # The terminal told the command's group alone, if it was lent.
        os.kill(0 if self._terminal.lent_last else os.getpid(), signal.SIGINT)

    # -- waiting and the terminal ----------------------------------------------------------

    def _reap(self, *, blocking: bool = False) -> bool:
        """Whether the command has ended."""
        if os.getpid() == 1:
            self._reap_orphans()
        while self._ended is None:
            pid, status = os.waitpid(self.pid, os.WUNTRACED | (0 if blocking else os.WNOHANG))
            if pid == 0:
                return False
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
            elif os.WIFSIGNALED(status):
                self._ended = Ended(128 + os.WTERMSIG(status), os.WTERMSIG(status))
            else:
                self._ended = Ended(os.waitstatus_to_exitcode(status))
        return True

    def _reap_orphans(self) -> None:
        """The first process of a container is given every orphan in it."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid == self.pid:
                return
            os.waitpid(found.si_pid, 0)

    def _stopped(self, number: int) -> None:
        """The command was stopped: lend it the terminal that it asks for, or stop with it and go on together."""
        if not self._terminal.there:
            return
        if number in FROM_TERMINAL and self._terminal.foreground() in (os.getpgrp(), self.pid):
            self._terminal.lend(self.pid)
        elif self._terminal.take_back(self.pid):
            stop(signal.SIGTSTP, 0)  # the terminal told the command's group alone: tell our job
            self._continue()
            return
        elif number in FROM_TERMINAL:
            stop(number, 0)
            self._continue()
            return
        else:
            return  # by somebody's kill, who will continue it
        self.signal(signal.SIGCONT)

    def _suspended_with_us(self) -> None:
        """The terminal told our job to stop: the command is not of our group."""
        self.signal(signal.SIGTSTP)
        stop(signal.SIGTSTP, os.getpid())
        self._continue()

    def _continue(self) -> None:
        self._terminal.lend_early(self.pid)
        self.signal(signal.SIGCONT)


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


def _reset_signals() -> None:
    """The dispositions that a command expects; Python ignores SIGPIPE for itself."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
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
