"""What docs/shell.md says of run and exec is so."""

from __future__ import annotations

import re

from tests.engine import ROOT
from tests.shell.conftest import Shell


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
