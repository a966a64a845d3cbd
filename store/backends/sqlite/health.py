"""The checks of ``recall doctor``: what a store stands on, and what stands in it.

Each is cheap and looks without touching; none reads a whole history. That is
``store.verify``'s work, which ``doctor --deep`` adds.
"""

from __future__ import annotations

import fcntl
import glob
import os
import platform
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from store.asides import asides
from store.audit import Row, body_of, check_body
from store.backend import all_leases
from store.backends.sqlite import files, schema
from store.backends.sqlite.backend import SqliteBackend
from store.backends.sqlite.lock import NAME as LOCK
from store.clock import Instant, parse_rfc3339
from store.errors import (
    BadRecord,
    Corrupt,
    NetworkFilesystem,
    RecallError,
    StoreBusy,
    StoreDamaged,
    StoreEmpty,
    StoreFull,
    StoreMissing,
    StoreNewer,
)
from store.lease import Lease
from store.process import provably_dead, stopped
from store.records import ACTION, Record
from store.running import stuck
from store.value import value
from store.values import Action

Status = Literal["ok", "warn", "bad"]

_LOW_SPACE, _NO_SPACE = 256 * 1024 * 1024, 8 * 1024 * 1024
_LARGE_WAL = 64 * 1024 * 1024
_SAMPLE = 1000  # newest records that are read, open actions that are dated
_LOCK_PATIENCE = 1.0  # seconds; a write takes far less


@value
class Check:
    """One line of the examination.

    Attributes:
        hint: what to do about it, or "".
        problem: of a bad one, the situation; its kind says whether data is damaged or the store cannot be used.
    """

    name: str
    status: Status
    detail: str
    hint: str = ""
    problem: RecallError | None = None


def examine(directory: str) -> Iterator[Check]:
    """All checks, in the order of what rests on what; it stops where there is nothing more to look at."""
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()}")
    yield check_sqlite(sqlite3.sqlite_version_info)
    try:
        if not files.exists(directory):
            raise StoreMissing(what="store", name="", path=directory)
    except RecallError as problem:
        yield _bad("store", problem)
        return
    yield from _modes(directory)
    yield from _file_system(directory)
    yield _lock(directory)
    try:
        backend = SqliteBackend(directory, read_only=True)
    except RecallError as problem:
        yield _bad("store", problem)
        return
    try:
        yield _format(backend)
        yield _wal(directory)
        if not backend.empty:
            yield from _contents(backend)
    finally:
        backend.close()
    yield _leftovers(directory)


_RESCUE = (
    "copy the directory, then put a backup or an export in its place (recall import FILE --dir OTHER-DIRECTORY); "
    "without one, sqlite3 recall.db .recover on the copy shows what can be read"
)


def _bad(name: str, problem: RecallError) -> Check:
    hint = _RESCUE if isinstance(problem, StoreDamaged) else problem.hint
    return Check(name, "bad", problem.message, hint, problem)


def check_sqlite(version: tuple[int, ...]) -> Check:
    """Whether this SQLite has the WAL-reset bug (https://sqlite.org/wal.html)."""
    text = ".".join(map(str, version))
    mended = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    if mended or version < (3, 7):
        return Check("sqlite", "ok", text)
    detail = f"{text}, whose WAL-reset bug cannot happen here: all writes and checkpoints of recall take turns"
    return Check("sqlite", "ok", detail, "let no other program write to recall.db; reading is harmless")


# -- the directory ---------------------------------------------------------------------


def _modes(directory: str) -> Iterator[Check]:
    path = files.database(directory)
    loose = []
    for each, most in ((directory, 0o700), (path, 0o600), (path + "-wal", 0o600), (path + "-shm", 0o600)):
        try:
            mode = stat.S_IMODE(os.stat(each).st_mode)
        except OSError:
            continue
        if mode & ~most:
            loose.append(f"chmod {most:o} {each}")
    if os.path.islink(path):
        yield Check("directory", "warn", f"{path} is a symbolic link", "use the directory that it points to")
    elif loose:
        yield Check("directory", "warn", f"{directory} can be read or written by others", "; ".join(loose))
    else:
        yield Check("directory", "ok", f"{directory}, private to this user")
    closed = [each for each in (directory, path) if not os.access(each, os.W_OK)]
    if closed:
        detail = f"{closed[0]} is read-only for this user: it can be looked at, but every write will fail"
        yield Check("writing", "warn", detail, "to write, be its owner, or mount it read-write")


def _file_system(directory: str) -> Iterator[Check]:
    kind = files.filesystem_of(directory, files.read_mountinfo())
    if files.is_network(kind):
        yield _bad("file system", NetworkFilesystem(path=directory, fstype=kind))
    else:
        yield Check("file system", "ok", kind or "unknown type")
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < _NO_SPACE:
        yield _bad("free space", StoreFull(path=directory))
    elif free < _LOW_SPACE:
        yield Check("free space", "warn", _size(free), "writes fail, and lose nothing, when it is used up")
    else:
        yield Check("free space", "ok", _size(free))


def _lock(directory: str) -> Check:
    try:
        descriptor = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return Check("write lock", "ok", "free")
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                # Shared and given back at once: it can keep nobody waiting.
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                return Check("write lock", "ok", "free")
            except BlockingIOError:
                pid = _lock_holder(descriptor)
                if time.monotonic() > deadline or (pid and stopped(pid)):
                    break
                time.sleep(0.02)
    finally:
        os.close(descriptor)
    if pid and stopped(pid):
        holder = f"pid {pid} (stopped by a signal)"
        return _bad("write lock", StoreBusy(path=directory, holder=holder, waited=f"{_LOCK_PATIENCE:g} or more"))
    held = f"held by pid {pid}" if pid else "held by another process"
    return Check("write lock", "warn", f"{held} for more than {_LOCK_PATIENCE:g} s", "an import may take that long")


def _lock_holder(descriptor: int) -> int:
    try:
        return int(os.pread(descriptor, 20, 0) or b"0")
    except (OSError, ValueError):
        return 0


# -- the store ------------------------------------------------------------------------------


def _format(backend: SqliteBackend) -> Check:
    found, known = backend.format_version(), schema.known_version()
    if backend.empty:
        problem = StoreEmpty(what="store", name="", path=backend.directory)
        return Check("store", "warn", "empty: its making was cut short, or it was emptied", problem.hint)
    if found > known:
        return _bad("store", StoreNewer(path=backend.directory, found=found, known=known))
    if found < known:
        detail = f"format {found}, older than this recall's {known}"
        return Check("store", "ok", detail, "the next write brings it up to date, after a copy")
    return Check("store", "ok", f"format {found}, id {backend.store_id}")


def _wal(directory: str) -> Check:
    size = files.wal_size(directory)
    if size > _LARGE_WAL:
        return Check("log file", "warn", f"recall.db-wal has {_size(size)}", "a reader that stays open may pin it")
    return Check("log file", "ok", f"recall.db-wal has {_size(size)}")


def _contents(backend: SqliteBackend) -> Iterator[Check]:
    checks: tuple[tuple[str, Callable[[SqliteBackend], Check]], ...] = (
        ("file", _quick_check),
        ("guards", _guards),
        ("records", _sample),
        ("leases", _leases),
        ("actions", _pending),
        ("set aside", _asides),
    )
    told: set[str] = set()
    for name, check in checks:
        try:
            found = check(backend)
        except Corrupt as problem:
            found = _bad(name, problem)
        except (TypeError, ValueError, AttributeError) as odd:  # a column of a tampered store may hold anything
            found = _bad(name, StoreDamaged(path=backend.directory, reason=f"rows that cannot be read ({odd})"))
        if isinstance(found.problem, StoreDamaged):
            # One damage stops several checks; what to do about it is the same.
            again = "the same" if found.detail in told else found.detail
            told.add(found.detail)
            found = replace(found, detail=again, hint=found.hint if len(told) == 1 and again != "the same" else "")
        yield found


def _quick_check(backend: SqliteBackend) -> Check:
    found = backend.check_file()
    if not found:
        return Check("file", "ok", "SQLite's quick_check finds nothing")
    return _bad("file", StoreDamaged(path=backend.directory, reason=f"{found[0]} ({len(found)} in all)"))


def _guards(backend: SqliteBackend) -> Check:
    found = backend.objects()
    missing = [name for name, made_by in schema.objects().items() if found.get(name) != made_by]
    if not missing or backend.format_version() != schema.known_version():
        return Check("guards", "ok", "records are append-only by the database's own triggers")
    hint = "somebody changed the database; look at it with: recall verify"
    return Check("guards", "warn", f"missing or changed: {', '.join(missing)}", hint)


def _sample(backend: SqliteBackend) -> Check:
    bad: list[BadRecord] = []
    rows = backend.newest_stored(_SAMPLE)
    for row in rows:
        try:
            _read(backend, row)
        except BadRecord as problem:
            bad.append(problem)
    if bad:
        detail = f"{len(bad)} of the newest {len(rows):,} cannot be read, first: {bad[0].message}"
        return Check("records", "bad", detail, "the others are not affected; see: recall verify", bad[0])
    detail = f"the newest {len(rows):,} can be read; hashes not checked"
    return Check("records", "ok", detail, "recall verify, or --deep, checks those of all records")


def _read(backend: SqliteBackend, row: Row) -> None:
    fields, body = body_of(row.line)
    record = Record(*row[:4], row.kind, row.seq, row.name, body, row.at, row.line, row.hash)
    if fields is None:
        raise record.bad("its line is not a JSON object with a body")
    check_body(record, lambda name: backend.blob(row.agent, name))


def _leases(backend: SqliteBackend) -> Check:
    agents, dead, lapsed, live = 0, [], [], 0
    now = backend.clock.now()
    for each in all_leases(backend):
        agents += 1
        if each.state != "held":
            continue
        if provably_dead(each.process):
            dead.append(each.agent)
        elif each.left_ms(now) <= 0:
            lapsed.append(each.agent)
        else:
            live += 1
    detail = f"{agents:,} agent(s), {live:,} held by a live process"
    if dead:
        detail += f"; {len(dead):,} held by a dead one ({_few(dead)})"
    if lapsed:
        detail += f"; {len(lapsed):,} lapsed ({_few(lapsed)})"
    if dead or lapsed:
        return Check("leases", "warn", detail, f"go on with: recall resume {(dead + lapsed)[0]}")
    return Check("leases", "ok", detail)


def _pending(backend: SqliteBackend) -> Check:
    found = backend.in_force(None, ACTION, limit=_SAMPLE)
    if not found:
        return Check("actions", "ok", "none is unfinished")
    now = backend.clock.now()
    ages = [now.wall_us / 1_000_000 - parse_rfc3339(each.at).timestamp() for each in found]
    hours, days = sum(age > 3600 for age in ages), sum(age > 86400 for age in ages)
    leases = {agent: backend.lease(agent) for agent in {each.agent for each in found}}
    stopped_short = [each.agent for each in found if _is_stuck(backend, each, leases[each.agent], now)]
    count = f"{len(found):,}" + (" or more" if len(found) == _SAMPLE else "")
    detail = f"{count} unfinished, {hours:,} for more than an hour, {days:,} for more than a day"
    if stopped_short:
        detail += f"; {len(stopped_short):,} stuck ({_few(list(dict.fromkeys(stopped_short)))})"
        return Check("actions", "warn", detail, "see: recall actions list --stuck")
    return Check("actions", "warn" if hours else "ok", detail, "see: recall actions list --pending")


def _is_stuck(backend: SqliteBackend, record: Record, lease: Lease | None, now: Instant) -> bool:
    try:
        return stuck(backend.directory, Action.read(record, None), lease, now)
    except BadRecord:
        return False  # the check of the records names it


def _asides(backend: SqliteBackend) -> Check:
    found = [each for agent in backend.agents_branched() for each in asides(backend, agent)]
    if not found:
        return Check("set aside", "ok", "nothing")
    detail = f"{sum(each.records for each in found):,} records of {len({each.agent for each in found}):,} agent(s)"
    return Check("set aside", "warn", detail, "see: recall aside list")


def _leftovers(directory: str) -> Check:
    inside = [each for each in sorted(os.listdir(directory)) if each.endswith((".backup", ".partial"))]
    copies = glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), "recall-read-*"))
    mine = [each for each in copies if _is_old(each)]
    if not inside and not mine:
        return Check("leftovers", "ok", "none")
    return Check("leftovers", "warn", ", ".join(inside + mine), "delete what you do not need; recall does not use it")


def _is_old(path: str) -> bool:
    """A private copy of this user's that no command can still be reading from."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return found.st_uid == os.getuid() and time.time() - found.st_mtime > 3600


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _size(count: int) -> str:
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    step = min(max(0, count.bit_length() - 1) // 10, len(units) - 1)
    return f"{count / 1024**step:,.0f} {units[step]}"
