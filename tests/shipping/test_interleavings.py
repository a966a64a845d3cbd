"""The interleavings that the protocol has to survive, by number; each is the subject of tests with a real fault in it.

They stand in the files beside this one, by theme, and their docstrings begin with the number of the row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROWS = {
    1: "the SDK's own retry is answered with 412, though the first attempt landed",
    2: "a PUT lands late, after a GET showed that it was not there",
    3: "it landed, and a successor's head is there by the time one looks",
    4: "it landed, and its writer is fenced all the same",
    5: "a zombie writes with a stale ETag",
    6: "an ETag comes back",
    7: "the head is deleted at the release, and epochs start anew",
    8: "a restarted process, or a copied directory, goes on under the same epoch",
    9: "a virtual machine is cloned: the same incarnation, the same ETag",
    10: "the monotonic clock stands still, in a sleep or a snapshot",
    11: "the wall clock jumps ten minutes, either way",
    12: "a process is paused between its barrier and its tool",
    13: "a crash after the local commit, before the PUT",
    14: "a crash after the PUT, before it is marked as shipped",
    15: "the directory comes out of a backup",
    16: "the bucket is rolled back, or the head is gone",
    17: "a crash between a segment and the head that names it",
    18: "two processes in one directory; a fork",
    19: "one shared directory, two hosts",
    20: "a storm of 503 or 429",
    21: "the store ignores a condition, or begins to",
    22: "credentials expire, a policy denies",
    23: "a huge record, a backlog of lazy ones",
    24: "unknown, and the caller tries again",
    25: "what was set aside holds the close of an external action",
    26: "an object goes while a restore reads it",
}
_NAMED = re.compile(r"Rows? ([0-9]+(?:(?:, | and )[0-9]+)*)")


def _named() -> Iterator[int]:
    """The numbers that the docstrings of tests begin with."""
    for path in Path(__file__).parent.glob("test_*.py"):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
                said = _NAMED.match(ast.get_docstring(each) or "")
                yield from map(int, re.findall("[0-9]+", said[1] if said else ""))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row}: {ROWS[row]}")
def test_each_row_has_its_tests(row: int) -> None:
    """A row without a test that names it is a promise that nobody has tried."""
    assert row in set(_named())
