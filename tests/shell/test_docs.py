"""What docs/ shows of run and exec really happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engine import ROOT
from tests.shell.conftest import Shell
from tools import readme


@pytest.mark.skipif(not (ROOT / "docs" / "readme-shell.md").exists(), reason="it has become part of the README")
def test_the_section_of_the_readme_shows_what_happens(tmp_path: Path) -> None:
    """Each command of the section is typed into bash, and the outputs are those of the section."""
    text = (ROOT / "docs" / "readme-shell.md").read_text()
    told = [
        problem
        for section, exchanges in readme.run(text, readme.environment(), tmp_path)
        for problem in readme.differences(section, exchanges)
    ]
    assert told == []


def test_every_option_that_the_page_names_exists(shell: Shell) -> None:
    """docs/shell.md names no option that recall does not have."""
    known = "".join(
        shell.recall(*words, "--help").out
        for words in (["run"], ["exec"], ["resume"], ["release"], ["actions", "list"], ["actions", "resolve"])
    )
    text = (ROOT / "docs" / "shell.md").read_text()
    named = set(re.findall(r"`(--[a-z][a-z-]+)|(?<=\s)(--[a-z][a-z-]+)", text))
    options = {one or other for one, other in named}
    assert len(options) > 15
    assert {each for each in options if each not in known} == set()


def test_the_outcome_files_fields_are_those_of_the_page(shell: Shell) -> None:
    """The two documents of the page have the fields that --outcome-file writes."""
    examples = re.findall(r"^\{.*\}$", (ROOT / "docs" / "shell.md").read_text(), re.MULTILINE)
    step = ("run", "--outcome-file", "outcome", "--class", "pure", "--step", "pay", "--")
    shell.recall(*step, "true")
    ran = shell.outcome()
    shell.recall(*step, "false")
    refused = shell.outcome()
    for shown, said in zip(examples, (ran, refused), strict=True):
        assert re.findall(r'"(\w+)":', shown) == list(said)
