"""Where the store is, and when it ships."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from store.errors import InvalidInput
from store.text import quoted

SHIP_MODES = ("barrier", "lazy", "off")  # when records have to be in the bucket, the default first
_LOCAL = ("local", "sqlite")


def store_directory(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The store's directory: given, else RECALL_DIR, else the peer's variables, else the user's data directory.

    Raises:
        InvalidInput: RECALL_BACKEND or its URL names a backend that there is none of.
    """
    if given:
        return given
    if environ.get("RECALL_DIR"):
        return environ["RECALL_DIR"]
    backend = environ.get("RECALL_BACKEND", "")
    if backend not in ("", *_LOCAL):
        raise _unsupported("RECALL_BACKEND", backend)
    if backend and environ.get("RECALL_BACKEND_URL"):
        return directory_of("RECALL_BACKEND_URL", environ["RECALL_BACKEND_URL"])
    import platformdirs

    return platformdirs.user_data_dir("recall", appauthor=False)


def directory_of(field: str, url: str) -> str:
    """The directory that ``PATH``, ``sqlite:PATH``, ``local:PATH`` or ``sqlite:///PATH`` names.

    Raises:
        InvalidInput: it names another backend, or nothing.
    """
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]+):(?://)?(.*)", url, re.DOTALL)
    if match and match[1].lower() not in _LOCAL:
        # Only the scheme is shown: the rest of a URL may hold a password.
        raise _unsupported(field, match[1])
    path = match[2] if match else url
    if not path:
        raise InvalidInput(field=field, reason="must not be empty")
    return path


def _unsupported(field: str, backend: str) -> InvalidInput:
    return InvalidInput(
        field=field,
        reason=f"backend {quoted(backend)} is not supported by this version",
        hint="use a directory: --dir PATH, RECALL_DIR, or sqlite:PATH",
    )
