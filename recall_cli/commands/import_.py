"""``recall import``: an export, into a store that does not have its agents."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, BinaryIO

import typer

from recall_cli.exits import Exit
from recall_cli.options import Globals, Verbs
from recall_cli.render import Column
from store.backends.sqlite import SqliteBackend, files
from store.errors import AgentExists, InvalidInput, StoreMissing
from store.restore import check_header, restore
from store.text import quoted
from store.transfer import Transferred

app = Verbs()


@app.verb("import", exits=(Exit.CONFLICT, Exit.UNAVAILABLE, Exit.CORRUPT))
def run(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="An export, or - for stdin.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the whole file and import nothing.")] = False,
) -> None:
    """Import the agents of an export, all of them or none.

    Every byte is checked before any of it is kept. An agent that this store knows is refused,
    since two histories are never merged. An imported agent is free; the first process that
    resumes it goes on in a lineage of its own, under a higher epoch.

    Other writers of the store wait while an import runs.
    """
    here = Globals.of(ctx)
    with _opened(file) as source:
        check_header(source)
        source.seek(0)

        def watch(lines: Iterator[Any]) -> Iterator[Any]:
            return here.out.progress(lines, "checking" if dry_run else "importing")

        done = _rehearsal(here, source, watch) if dry_run else _import(here, source, watch)
    columns = [Column("agent", keep=True), Column("records", right=True), Column("blobs", right=True)]
    columns += [Column("lsn", right=True), Column("hash")]
    here.out.table(columns, map(vars, done), empty="the export has no agents")
    if dry_run:
        here.out.message("the file is sound; nothing was imported")
    elif done:
        here.out.message(f"imported {len(done):,} agent(s)", f"recall briefing {done[0].agent}")


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The file, from its beginning; a pipe's data is first collected, so that the store waits for nobody.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        if path == "-":
            if sys.stdin is None or sys.stdin.isatty():
                raise InvalidInput(field="FILE", reason="standard input is a terminal", hint="name a file, or redirect")
            source: BinaryIO = sys.stdin.buffer
        else:
            source = open(path, "rb")  # noqa: SIM115 (closed below)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidInput(field="FILE", reason=f"{quoted(path)} cannot be read: {reason}") from problem
    with source:
        if stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            yield source
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)
            copy.seek(0)
            yield copy


def _import(here: Globals, source: BinaryIO, watch: Any) -> list[Transferred]:
    """Into the store, or into a new one that gets its name when it is complete: a refusal leaves nothing behind."""
    directory = os.path.abspath(here.directory)
    if os.path.lexists(directory):
        return _into(directory, here, source, watch)
    parents = [each for each in _parents(directory) if not os.path.isdir(each)]
    above, name = os.path.split(directory)
    made = ""
    try:
        files.make_directory(above)
        made = tempfile.mkdtemp(prefix=f".{name}.", suffix=".import", dir=above)
        done = _into(made, here, source, watch)
        try:
            os.rename(made, directory)
        except OSError:  # somebody has made a store there meanwhile
            source.seek(0)
            return _into(directory, here, source, watch)
        files.sync_directory(above)
        return done
    finally:
        shutil.rmtree(made, ignore_errors=True)
        for each in parents:
            with suppress(OSError):  # in use by now
                os.rmdir(each)


def _into(directory: str, here: Globals, source: BinaryIO, watch: Any) -> list[Transferred]:
    backend = SqliteBackend(directory, on_bad_record=here.out.warn)
    try:
        return restore(backend, source, watch=watch)
    finally:
        backend.close()


def _parents(directory: str) -> Iterator[str]:
    """The directories above, the nearest first."""
    above = os.path.dirname(directory)
    while above != directory:
        yield above
        directory, above = above, os.path.dirname(above)


def _rehearsal(here: Globals, source: BinaryIO, watch: Any) -> list[Transferred]:
    """The import, into a store that is then thrown away; the real one is only asked for its agents."""
    with tempfile.TemporaryDirectory(prefix="recall-import-") as directory:
        scratch = SqliteBackend(directory)
        try:
            done = restore(scratch, source, watch=watch)
        finally:
            scratch.close()
    try:
        backend = SqliteBackend(here.directory, read_only=True)
    except StoreMissing:
        return done
    try:
        for each in done:
            if backend.lease(each.agent) is not None:
                raise AgentExists(agent=each.agent)
    finally:
        backend.close()
    return done
