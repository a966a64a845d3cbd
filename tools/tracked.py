"""Refuses what a trial leaves behind and ``git add`` takes along: links, submodules, names that nobody chose.

Each tracked file is a regular one, whose name scripts need not quote. Run as
``python tools/tracked.py``; it looks at the checkout of the current directory.
"""

from __future__ import annotations

import re
import subprocess
import sys

_NAME = re.compile(r"[A-Za-z0-9._/-]+")
_KINDS = {"120000": "a symbolic link", "160000": "a submodule"}


def main() -> int:
    """Print a line for each that is refused; 1 if any is."""
    listed = subprocess.run(["git", "ls-files", "--stage", "-z"], stdout=subprocess.PIPE, check=False)
    if listed.returncode:
        return listed.returncode  # git has said why
    refused = 0
    for entry in listed.stdout.decode("utf-8", "backslashreplace").split("\0")[:-1]:
        about, _, name = entry.partition("\t")
        kind = _KINDS.get(about[:6], "")
        if kind or not _NAME.fullmatch(name):
            refused += 1
            why = f"is {kind}, not a file" if kind else "has a name with other characters than A-Z a-z 0-9 . _ - /"
            print(f"{name!r} is tracked by git, but {why}; take it out: git rm --cached -- FILE", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
