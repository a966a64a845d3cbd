"""SQLite, embedded: one directory, one file, no server."""

from store.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
