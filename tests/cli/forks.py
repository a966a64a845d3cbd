"""Runs many commands quickly: each in a forked child of one process that has imported everything.

Standard input has a JSON list of [arguments, input, directory], the first two
with bytes as Latin-1 text; standard output gets a list of [code, out, err].
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT, Ended

Case = tuple[Sequence[str | bytes], bytes, Path]


def run_all(cases: Sequence[Case], environment: dict[str, str]) -> list[Ended]:
    """What each command did, run with its directory as RECALL_DIR's parent and working directory."""
    given = [
        [[os.fsencode(each).decode("latin-1") for each in arguments], data.decode("latin-1"), str(directory)]
        for arguments, data, directory in cases
    ]
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(given),
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [Ended(*each) for each in json.loads(done.stdout)]


def _run(arguments: list[str], data: str, directory: str) -> tuple[int, str, str]:
    os.makedirs(directory)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(data.encode("latin-1"))
        stdin.seek(0)
        pid = os.fork()
        if pid == 0:
            _become(stdin.fileno(), stdout.fileno(), stderr.fileno(), arguments, directory)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        stdout.seek(0)
        stderr.seek(0)
        return code, stdout.read().decode(), stderr.read().decode()


def _become(stdin: int, stdout: int, stderr: int, arguments: list[str], directory: str) -> None:
    code = 1
    try:
        for number, source in enumerate((stdin, stdout, stderr)):
            os.dup2(source, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 (the process's own)
        os.chdir(directory)
        os.environ["RECALL_DIR"] = os.path.join(directory, "recall-data")
        sys.argv = ["recall", *(os.fsdecode(each.encode("latin-1")) for each in arguments)]
        from recall_cli.app import main as recall

        code = recall()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    import recall_cli.resolving
    import recall_cli.root
    import recall_cli.tree

    recall_cli.tree.tree()
    sys.stdout.write(json.dumps([_run(*case) for case in json.load(sys.stdin)]))
