"""What was measured, kept and put into texts: nothing is shown that no result has, and what is claimed was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.report import Result, Table, load
from tools.proof import filled

RESULT = Result(
    "some",
    "python -m bench.some",
    [Table("speed", ["what", "times", "ratio"], [["a|b", 1234, 0.5], ["c", 5, 12.0]], ["one note."])],
    {"killed": 1234, "ratio": 0.123, "large": 1234.5, "text": "none"},
    {"peer": "2"},
    {"processor": "p", "memory": "m"},
    "2026-11-30",
)


def test_a_table_for_a_terminal_has_its_numbers_to_the_right() -> None:
    """Columns as wide as their widest cell, thousands separated, the notes below."""
    shown = "what  times  ratio\na|b   1,234   0.50\nc         5  12.00\none note."
    assert RESULT.tables[0].shown() == shown


def test_a_result_is_kept_whole(tmp_path: Path) -> None:
    """What is read again is what was saved, with the versions of what measured it."""
    RESULT.save(tmp_path)
    again = load("some", tmp_path)
    assert (again.tables, again.figures, again.machine) == (RESULT.tables, RESULT.figures, RESULT.machine)
    assert {"Recall", "Python", "SQLite", "peer"} == set(again.versions)


def test_a_text_is_filled_again_and_again() -> None:
    """Tables as Markdown, figures in their sentences; to fill what is filled changes nothing."""
    text = "x <!-- of: some/killed -->?<!-- end --> y\n<!-- table: some/speed -->\nold\n<!-- end -->\n"
    once = filled(text, lambda name: RESULT)
    assert once.startswith("x <!-- of: some/killed -->1,234<!-- end --> y\n")
    assert "| what | times | ratio |\n| --- | ---: | ---: |\n| a\\|b | 1,234 | 0.50 |\n" in once
    assert "- one note.\n" in once and "old" not in once
    assert filled(once, lambda name: RESULT) == once


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        ("ratio", "0.12"),
        ("large", "1,234"),
        ("text", "none"),
        ("measured on", "2026-11-30 by `python -m bench.some` on p, m; peer 2"),
    ],
)
def test_a_figure_in_a_sentence(figure: str, shown: str) -> None:
    """Small ones with two digits, large ones with none; or what it was measured on."""
    text = f"<!-- of: some/{figure} -->?<!-- end -->"
    assert filled(text, lambda name: RESULT) == text.replace("?", shown)


@pytest.mark.parametrize("asked", ["<!-- of: some/other -->?<!-- end -->", "<!-- table: some/other -->\n<!-- end -->"])
def test_what_was_not_measured_is_not_shown(asked: str) -> None:
    """A text that asks for it cannot be made."""
    with pytest.raises(KeyError, match="some has no"):
        filled(asked, lambda name: RESULT)


def test_what_is_claimed_was_measured() -> None:
    """No effect of a durable tool twice or lost, every run finished, nothing acknowledged lost, no invariant broken."""
    kills, files, contention, soak = (load(name) for name in ("kills", "files", "contention", "soak"))
    assert [kills.figures[f"durable {count}"] for count in ("duplicates", "losses")] == [0, 0]
    assert [value for name, value in kills.figures.items() if name.endswith("tools, resolver missed")] == [0, 0]
    assert int(kills.figures["durable trials"]) > 2500
    assert [files.figures[f"{face} finished"] for face in ("Python", "shell")] == [20, 20]
    assert {value for name, value in contention.figures.items() if re.match("(turns|steps) .* lost", name)} == {0}
    assert soak.figures["violations"] == 0
