"""What the benches are given on the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.measure import ROOT


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("kills --only nobody", "none begins with 'nobody'; there are recall/python/sqlite, "),
        ("kills --only recall dbos/none", "dbos/python/sqlite"),
        ("kills --jobs -3", "'-3' is not a whole number of 1 or more"),
        ("kills --trials -1", "'-1' is not a whole number of 0 or more"),
        ("kills --moments some", "'some' is not a whole number of 0 or more"),
        ("files --faces nope", "'nope' is none of Python, shell"),
        ("files --files 0", "'0' is not a whole number of 1 or more"),
        ("files --runs 0", "'0' is not a whole number of 1 or more"),
        ("files --files 2 --kills 3", "--kills 3 are more than one for each of the files (--files 2)"),
        ("contention --processes 0", "'0' is not a whole number of 1 or more"),
        ("contention --processes a", "'a' is not a whole number of 1 or more"),
        ("contention --processes 4,4", "'4,4' names one twice"),
        ("contention --seconds 0", "'0' is not a number above 0"),
        ("contention --busy-timeout inf", "'inf' is not a number above 0"),
        ("soak --minutes nan", "'nan' is not a number above 0"),
        ("soak --store tape", "invalid choice: 'tape'"),
        ("soak --sav", "unrecognized arguments: --sav"),
        ("latency --sizes 10,x", "'x' is not a whole number of 0 or more"),
        ("latency --times 0", "'0' is not a whole number of 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(given: str, said: str) -> None:
    """Exit code 2, the last line says what is wrong, and the usage before it names the command as it is run."""
    name, *options = given.split()
    command = [sys.executable, "-m", f"bench.{name}", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    told = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told[0].startswith(f"usage: python -m bench.{name} ")
    assert told[-1].startswith(f"python -m bench.{name}: error: ") and said in told[-1]
