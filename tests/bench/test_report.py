"""What was measured, kept and put into texts: nothing is shown that no result has, and what is claimed was measured."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.report import Result, Table, command, listed, load, one_of, positive, whole
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


def test_a_table_of_which_nothing_was_measured_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """One without rows that was measured is: that there is nothing is what came of it."""
    Result("some", "one", [Table("left out", ["a"]), Table("empty", ["b"], made={"x": "`one`"})]).show()
    assert capsys.readouterr().out == "\nempty\nb\nMade by `one`.\n"


def test_a_result_of_several_runs_says_so() -> None:
    """The last command did not make all of it."""
    of = Result("some", "one", [Table("t", ["a"], made={"x": "`one`", "y": "`two`"})], measured="today", machine={})
    assert "today by `one` and others, named below the tables, on " in filled(
        "<!-- of: some/measured on -->?<!-- end -->", lambda name: of
    )


@pytest.mark.parametrize("asked", ["<!-- of: some/other -->?<!-- end -->", "<!-- table: some/other -->\n<!-- end -->"])
def test_what_was_not_measured_is_not_shown(asked: str) -> None:
    """A text that asks for it cannot be made."""
    with pytest.raises(KeyError, match="some has no"):
        filled(asked, lambda name: RESULT)


def test_the_command_is_the_one_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its options but --save, quoted for a shell, and what has to be added to run it again."""
    monkeypatch.setattr(sys, "argv", ["/x/__main__.py", "--only", "a b", "--save", "--trials", "2"])
    assert command("--seed", "7").endswith(" --only 'a b' --trials 2 --seed 7")
    assert command().startswith("python -m ")


@pytest.mark.parametrize(
    ("type_", "text", "read"),
    [
        (whole(), "0", 0),
        (whole(1), "12", 12),
        (whole(1), "0", None),
        (whole(), "-1", None),
        (whole(), "1.5", None),
        (positive, "0.5", 0.5),
        (positive, "0", None),
        (positive, "nan", None),
        (positive, "inf", None),
        (positive, "soon", None),
        (listed(whole(1)), "1,4", [1, 4]),
        (listed(whole(1)), "1,,4", None),
        (listed(whole(1)), "4,4", None),
        (listed(one_of(["a", "b"])), "b,a", ["b", "a"]),
        (listed(one_of(["a", "b"])), "c", None),
    ],
)
def test_a_type_of_option(type_: Callable[[str], object], text: str, read: object) -> None:
    """What it reads, or that it refuses it."""
    if read is None:
        with pytest.raises(argparse.ArgumentTypeError):
            type_(text)
    else:
        assert type_(text) == read


def test_rows_that_were_made_in_several_ways_say_how() -> None:
    """In one way: one line, without names."""
    table = Table("t", ["a"], made={"x y": "`one`", "z": "`one`"})
    assert table.told() == ["Made by `one`."]
    table.made["w"] = "`two`"
    assert table.told() == ["Made by `one`: x y, z.", "Made by `two`: w."]


def test_what_is_claimed_was_measured() -> None:
    """No effect of a durable tool twice or lost, every run finished, nothing acknowledged lost, no invariant broken."""
    kills, files, contention, soak = (load(name) for name in ("kills", "files", "contention", "soak"))
    assert [kills.figures[f"durable {count}"] for count in ("duplicates", "losses")] == [0, 0]
    assert {value for name, value in kills.figures.items() if re.match("Recall .* failed", name)} == {0}
    for table in kills.tables:
        if "failed" in table.columns:
            failed = {row[table.columns.index("failed")] for row in table.rows if row[0] == "Recall"}
            assert failed == {0}, table.name
    assert int(kills.figures["durable trials"]) > 2500
    assert [files.figures[f"{face} finished"] for face in ("Python", "shell")] == [20, 20]
    assert {value for name, value in contention.figures.items() if re.match("(turns|steps) .* lost", name)} == {0}
    assert soak.figures["violations"] == 0
