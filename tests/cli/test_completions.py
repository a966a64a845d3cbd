"""Completion scripts in real bash, zsh and fish: commands, options and the words that an option takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from recall_cli.completions import SHELLS, script
from recall_cli.tree import Node, Param, tree
from tests.conftest import Run
from tests.needs import need


def _option(*names: str, takes: str = "", choices: tuple[str, ...] = ()) -> Param:
    return Param(names, " ".join(names), "It's [a] help: text.", takes, choices, False)


def _node(*path: str, params: tuple[Param, ...] = (), children: tuple[Node, ...] = ()) -> Node:
    return Node(path, f"The {path[-1] if path else 'root'}'s summary", "", "", params, children, ())


TREE = _node(
    params=(_option("--dir", takes="file"), _option("--json")),
    children=(
        _node(
            "actions",
            params=(_option("--json"),),
            children=(
                _node("actions", "list", params=(_option("--class", takes="choice", choices=("pure", "external")),)),
                _node("actions", "resolve", params=(_option("-a", "--agent", takes="agent"), _option("--force"))),
            ),
        ),
        _node("import", params=(Param((), "FILE", "A file.", "file", (), False),)),
        _node("turns", children=(_node("turns", "list"),)),
    ),
)

CASES = [
    ("recall ac", {"actions"}),
    ("recall --js", {"--json"}),
    ("recall actions ", {"list", "resolve"}),
    ("recall --dir turns actions re", {"resolve"}),
    ("recall actions --json re", {"resolve"}),
    ("recall actions list --cl", {"--class"}),
    ("recall actions list --class ", {"pure", "external"}),
    ("recall actions resolve --agent list --fo", {"--force"}),
    ("recall import some", {"some file"}),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_are_valid(shell: str, tmp_path: Path) -> None:
    """Each shell parses its script, for the real tree and for one with everything in it."""
    for root in (tree(), TREE):
        (tmp_path / "script").write_text(script(shell, root))
        done = subprocess.run([need(shell), "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(line: str, expected: set[str], tmp_path: Path) -> None:
    """bash offers what belongs to the command that the words before the cursor name."""
    (tmp_path / "some file").touch()
    words = line.split(" ")
    typed = f"COMP_LINE={line!r}; COMP_POINT={len(line)}; COMP_WORDS=({' '.join(map(repr, words))})"
    ask = f"{typed}; COMP_CWORD={len(words) - 1}; _recall"
    source = script("bash", TREE) + f'\n{ask}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    done = subprocess.run(
        [need("bash"), "--norc", "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.splitlines()) == expected
    assert done.stderr == ""


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish_completes(line: str, expected: set[str], tmp_path: Path, environment: dict[str, str]) -> None:
    """fish offers what belongs to the command that the words before the cursor name."""
    (tmp_path / "some file").touch()
    (tmp_path / "recall.fish").write_text(script("fish", TREE))
    done = subprocess.run(
        [need("fish"), "--no-config", "-c", f"source recall.fish; complete -C {line!r}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    offered = {each.split("\t")[0].replace("\\ ", " ") for each in done.stdout.splitlines()}
    assert offered == expected
    assert done.stderr == ""


def test_zsh_completes(run_on_terminal: Run, tmp_path: Path) -> None:
    """zsh completes commands, verbs, options and the values of options, after global flags too."""
    (tmp_path / "_recall").write_text(script("zsh", TREE))
    (tmp_path / ".zshrc").write_text(
        f"fpath=({tmp_path} $fpath)\nautoload -U compinit; compinit -u -D\n"
        "recall() { print -r -- 'RAN' \"$@\"; }\nPS1=READY\n"
    )
    dialogue = [
        ("READY", "recall ac\tre\t--fo\t\n"),
        ("READY", "recall --dir turns act\tli\t--cl\tex\t\n"),
        ("READY", "exit\n"),
    ]
    ended = run_on_terminal("-i", program=(need("zsh"),), dialogue=dialogue, env={"ZDOTDIR": str(tmp_path)})
    ran = [line for line in ended.out.splitlines() if line.startswith("RAN")]
    assert ran == ["RAN actions resolve --force", "RAN --dir turns actions list --class=external"]
