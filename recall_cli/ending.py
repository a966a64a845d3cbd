"""An outcome from the command line."""

from __future__ import annotations

from recall_cli.options import Globals
from store import checks
from store.actions import ActionEnd
from store.canonical import BLOB_LIMIT
from store.text import check_text


def ending_of(
    here: Globals, status: str, result: str | None, error: str | None, resolution: str | None, option: str
) -> ActionEnd:
    """An outcome, each text read and checked before anything is opened.

    Args:
        option: the one that ``resolution`` was given with.

    Raises:
        InvalidInput: a text is too long, or cannot be read.
    """
    read = here.values.read
    texts = [
        "" if given is None else check_text(field, read(field, given), limit=limit)
        for field, given, limit in (
            ("--result", result, BLOB_LIMIT),
            ("--error", error, checks.ERROR_LIMIT),
            (option, resolution, checks.REASON_LIMIT),
        )
    ]
    return ActionEnd(status, *texts)
