"""The README shows what really happens: all its blocks are run and compared."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from tools import readme

_SECTIONS = [
    (document.name, section)
    for document in readme.DOCUMENTS
    for section in dict.fromkeys(block.section for block in readme.blocks(document.read_text(encoding="utf-8")))
]


def _blocks(name: str) -> list[readme.Block]:
    (document,) = (each for each in readme.DOCUMENTS if each.name == name)
    return readme.blocks(document.read_text(encoding="utf-8"))


def _session(section: str, its: list[readme.Block]) -> str:
    """A document with these blocks in one section."""
    return "\n".join(f"## {section}\n```{each.language}\n" + "\n".join(each.lines) + "\n```" for each in its)


@pytest.mark.parametrize(("document", "section"), _SECTIONS)
def test_a_document_shows_what_happens(document: str, section: str, tmp_path: Path) -> None:
    """Every block of a section is run in order, and the outputs are those of the document."""
    text = _session(section, [each for each in _blocks(document) if each.section == section])
    ((name, exchanges),) = readme.run(text, readme.prepared(tmp_path, text), tmp_path)
    assert exchanges
    found = readme.differences(name, exchanges)
    assert not found, "make it true, or: python tools/readme.py --write\n\n" + "\n\n".join(found)


def test_the_readme_may_be_followed_in_one_directory(tmp_path: Path) -> None:
    """Who types the whole tour and then the Python programs in one place sees the same."""
    its = [each for each in _blocks("README.md") if each.section != "Set up"]
    text = _session("all", its)
    ((name, exchanges),) = readme.run(text, readme.prepared(tmp_path, text), tmp_path)
    assert readme.differences(name, exchanges) == []


def test_the_readme_has_blocks_for_shell_and_for_python() -> None:
    """The tour is there: a README whose blocks the test does not find would pass it."""
    languages = [block.language for block in _blocks("README.md")]
    assert languages.count("console") >= 5
    assert languages.count("python") >= 1


def _told(text: str, tmp_path: Path) -> list[str]:
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    return [
        problem
        for section, exchanges in readme.run(text, readme.environment(), scratch)
        for problem in readme.differences(section, exchanges)
    ]


def test_a_wrong_output_is_found(tmp_path: Path) -> None:
    """One wrong word in an output is a difference."""
    assert _told("## a\n```console\n$ echo one two\none two\n$ echo one two\none too\n```\n", tmp_path) != []


def test_a_silent_failure_is_found(tmp_path: Path) -> None:
    """A command that fails is a difference unless the README goes on to look at its status."""
    assert _told("## a\n```console\n$ (exit 3)\n```\n", tmp_path) != []
    assert _told("## b\n```console\n$ (exit 3)\n$ echo $?\n3\n```\n", tmp_path) == []


def test_what_differs_from_run_to_run_matches_by_its_place(tmp_path: Path) -> None:
    """A key may be another one, but the same key must be the same again."""
    a, b, c = "a" * 32, "b" * 32, "c" * 32
    same = f"## a\n```console\n$ echo {a}; echo {b}; echo {a}\n{b}\n{c}\n{b}\n```\n"
    other = f"## b\n```console\n$ echo {a}; echo {b}; echo {a}\n{b}\n{c}\n{c}\n```\n"
    assert _told(same, tmp_path) == []
    assert _told(other, tmp_path) != []


def test_a_block_that_would_not_be_run_is_refused(tmp_path: Path) -> None:
    """A block in a language without a meaning here is an error, not an unrun example."""
    with pytest.raises(readme.Unrunnable):
        _told("## a\n```bash\necho unrun\n```\n", tmp_path)


_DOCUMENTS = [readme.README, *sorted((readme.ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_points_to_exists(document: Path) -> None:
    """Links between the documents lead somewhere, and the source files that they name are there."""
    text = document.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", text) if link]
    assert [link for link in links if not (document.parent / link).exists()] == []
    sources = [f"/{path.relative_to(readme.ROOT)}" for top in ("store", "recall_cli") for path in _python(top)]
    named = re.findall(r"`([\w/]+\.py)`", text)
    assert [name for name in named if not any(source.endswith(f"/{name}") for source in sources)] == []


def _python(top: str) -> list[Path]:
    return sorted((readme.ROOT / top).rglob("*.py"))
