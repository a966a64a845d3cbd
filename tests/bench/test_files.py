"""The quick form of ``python -m bench.files``."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.files import criu
from bench.files.__main__ import COLUMNS, measure


def test_killed_three_times_it_migrates_each_file_once() -> None:
    """Five files and one report come once each in spite of three kills, and the sizes of all kills are there."""
    tables, figures, failures = measure(1, files=5, kills=3, seed=3, faces=["Python"])
    assert not failures
    row = dict(zip(COLUMNS, tables[0].rows[0], strict=True))
    assert row.pop("seconds in all")
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


def test_where_criu_does_not_run_its_reason_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without it says so, and one where it fails passes on what it says; nothing is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(criu.NoImage, match=r"^CRIU is not installed$"):
        criu.check()
    failing = (
        "#!/bin/sh\necho 'Error (a.c:1): exited, status=1' >&2\necho 'Error (b.c:2): no such kernel.' >&2\nexit 1\n"
    )
    _command(tmp_path / "criu", failing)
    with pytest.raises(criu.NoImage, match=r"^criu check: no such kernel$"):
        criu.check()


def test_where_criu_runs_its_image_is_weighed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is all that it wrote into the directory that it was given."""
    _command(tmp_path / "criu", '#!/bin/sh\n[ "$1" = check ] || printf 12345 > "$5/pages-1.img"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    criu.check()
    assert criu.image_bytes(1, tmp_path / "images") == 5


def _command(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
