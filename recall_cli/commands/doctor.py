"""``recall doctor``: what the store stands on, what stands in it, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import READS, Exit, exit_of
from recall_cli.options import Globals, Verbs
from recall_cli.session import reading, writing
from store.backends.sqlite.health import Check, examine
from store.errors import Corrupt, RecallError, StoreMissing
from store.verify import Problem, verify

app = Verbs()

_GRAVEST = (Exit.CORRUPT, Exit.UNAVAILABLE, Exit.NOT_FOUND)


@app.verb("doctor", exits=READS)
def run(
    ctx: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Read every record too, as recall verify does.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Make projections anew that differ from their records.")] = False,
) -> None:
    """Examine the store and the machine under it.

    Each line is ok, warn or bad, with what to do. The exit code is 0 unless a line is bad:
    then 9 for damaged data, 7 for a store that cannot be used, 3 for none.

    Without --deep it reads no history but the newest 1,000 records. --fix changes nothing but
    the projection (heads), which is derived from the records; records are never touched.
    """
    here = Globals.of(ctx)
    if fix:
        _fix(here)
    codes: list[Exit] = []

    def rows() -> Iterator[dict[str, Any]]:
        for check in _checks(here, deep=deep):
            if check.status == "bad":
                codes.append(exit_of(check.problem) if check.problem else Exit.CORRUPT)
            yield {"check": check.name, "status": check.status, "detail": check.detail, "hint": check.hint}

    here.out.lines(rows(), _line)
    for code in _GRAVEST:
        if code in codes:
            raise typer.Exit(code)


def _checks(here: Globals, *, deep: bool) -> Iterator[Check]:
    sound = True
    for check in examine(str(here.directory)):
        sound = sound and not isinstance(check.problem, (StoreMissing, Corrupt))
        yield check
    if deep and sound:
        yield _deep(here)


def _deep(here: Globals) -> Check:
    def watch(records: Iterable[Any], total: int) -> Iterator[Any]:
        return here.out.progress(records, "reading", total)

    count, first = 0, ""
    try:
        with reading(here) as backend:
            for each in verify(backend, watch=watch):
                if isinstance(each, Problem):
                    first = first or f"{each.agent} {each.key}: {each.reason}"
                    count += 1
    except RecallError as problem:
        return Check("every record", "bad", problem.message, problem.hint, problem)
    if not count:
        return Check("every record", "ok", "hashes, order, blobs and the projection are as they were written")
    detail = f"{count:,} problem(s), first: {first}"
    return Check("every record", "bad", detail, "see all: recall verify; a projection: recall doctor --fix")


def _fix(here: Globals) -> None:
    with reading(here) as backend:  # it must exist: mending makes no store
        agents = backend.agents_stored()
    with writing(here) as backend:
        mended = [each for each in here.out.progress(agents, "mending", len(agents)) if backend.mend(each)]
    for each in mended:
        here.out.message(f"made the projection of {each} anew")
    if not mended:
        here.out.message("every projection is as its records say; nothing was changed")


def _line(row: Any) -> str:
    return f"{row['status']:<5} {row['check']:<12}  {row['detail']}" + (f" → {row['hint']}" if row["hint"] else "")
