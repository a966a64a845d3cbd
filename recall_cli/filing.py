"""Files that the command makes: whole or not at all, private, and never over another one by accident."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable

from recall_cli.render import Out
from store.errors import InvalidInput, Unavailable
from store.text import quoted


class FileFailed(Unavailable):
    """The file could not be written; what was there before is as it was."""

    code = "file_failed"
    template = "{path} cannot be written: {reason}"
    hint_template = "write it to another place with -o"


def deliver(out: Out, lines: Iterable[bytes], path: str, *, force: bool) -> None:
    """Write ``lines`` to a new file (mode 0600), or to stdout for ``-``.

    The file appears under its name only when it is complete and on the disk.

    Raises:
        InvalidInput: the file exists, and ``force`` is not given; or stdout is a terminal.
        FileFailed: the disk refuses.
    """
    if path == "-":
        if out.terminal:
            raise InvalidInput(
                field="-o", reason="standard output is a terminal", hint="name a file with -o FILE, or redirect"
            )
        for line in lines:
            out.write(line.decode())
        out.flush()
        return
    target = _target(path, force=force)
    try:
        descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".recall-", suffix=".partial")
    except OSError as problem:
        raise _failed(path, problem) from problem
    try:
        with _Watched(path), open(descriptor, "wb") as file:
            for line in lines:
                with _Watched(path):
                    file.write(line)
            file.flush()
            os.fsync(file.fileno())
        with _Watched(path):
            _publish(partial, target, path, force=force)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def _target(path: str, *, force: bool) -> str:
    if not path:
        raise InvalidInput(field="-o", reason="must not be empty")
    target = os.path.realpath(path) if force else os.path.abspath(path)
    try:
        mode = os.lstat(target).st_mode
    except OSError:
        return target  # missing, as it should be; anything else shows when it is written
    if not force:
        raise _exists(path)
    if not stat.S_ISREG(mode):
        raise InvalidInput(field="-o", reason=f"{quoted(path)} is not a file", hint="use -o - and redirect")
    return target


def _publish(partial: str, target: str, path: str, *, force: bool) -> None:
    if force:
        os.replace(partial, target)
    else:
        try:
            os.link(partial, target)  # refuses a name that somebody took meanwhile
        except FileExistsError:
            raise _exists(path) from None
        except OSError:  # a file system without hard links
            os.rename(partial, target)
    directory = os.open(os.path.dirname(target), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _exists(path: str) -> InvalidInput:
    return InvalidInput(field="-o", reason=f"{quoted(path)} exists", hint="name another file, or add --force")


def _failed(path: str, problem: OSError) -> FileFailed:
    return FileFailed(path=quoted(path), reason=(problem.strerror or str(problem)).lower())


class _Watched:
    """Turns the operating system's refusals into ours, and lets those of the lines' maker pass."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, OSError):
            raise _failed(self._path, problem) from problem
