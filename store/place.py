"""Where the store is, when nobody says so."""

from __future__ import annotations

import os
from collections.abc import Mapping

from store.errors import InvalidInput
from store.text import quoted


def store_directory(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The store's directory: given, else RECALL_DIR, else the peer's variables, else the user's data directory.

    Raises:
        InvalidInput: RECALL_BACKEND names a backend that there is none of.
    """
    if given:
        return given
    if environ.get("RECALL_DIR"):
        return environ["RECALL_DIR"]
    backend = environ.get("RECALL_BACKEND", "")
    if backend not in ("", "local"):
        raise InvalidInput(field="RECALL_BACKEND", reason=f"{quoted(backend)} is not supported", hint="use local")
    if backend == "local" and environ.get("RECALL_BACKEND_URL"):
        return environ["RECALL_BACKEND_URL"]
    import platformdirs

    return platformdirs.user_data_dir("recall", appauthor=False)
