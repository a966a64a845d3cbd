"""The quick form of ``python -m bench.files``."""

from __future__ import annotations

import pytest

from bench.files import criu
from bench.files.__main__ import COLUMNS, measure


def test_killed_three_times_it_migrates_each_file_once() -> None:
    """Five files and one report come once each in spite of three kills, and the sizes of all kills are there."""
    tables, figures, failures = measure(1, files=5, kills=3, seed=3, faces=["Python"])
    assert not failures
    row = dict(zip(COLUMNS, tables[0].rows[0], strict=True))
    assert row.pop("seconds")
    # How many came where they were planned is the machine's doing too; that they came is not.
    assert int(row["kills"]) >= 2
    assert row.pop("kills") == row.pop("resumes")
    assert int(row.pop("inside an action")) >= int(row.pop("inside the report")) >= 0
    assert row.pop("not killed as planned") in (0, 1)
    assert row == {
        "face": "Python",
        "runs": 1,
        "finished": 1,
        "files": 5,
        "migrated once": 5,
        "more than once": 0,
        "not migrated": 0,
        "reports": 1,
    }
    median = {f"{what}": median for what, _, median, _ in tables[1].rows}
    assert 0 < float(median["records of the agent"]) < float(median["the process, VmRSS"])
    assert 0 < float(median["the briefing"]) < float(median["the whole history"])
    assert figures["Python files lost"] == 0


def test_where_criu_does_not_run_its_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without it says so, and nothing is installed."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(criu.NoImage, match=r"^CRIU is not installed$"):
        criu.check()
