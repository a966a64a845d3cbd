"""The shell can do all that Python can."""

from __future__ import annotations

import pytest

from recall_cli.tree import tree
from tools.python_reference import FROM_A_SHELL, operations


def test_every_operation_has_its_command() -> None:
    """The table of docs/python.md names each public operation of Client and Agent, and nothing else."""
    assert sorted(FROM_A_SHELL) == sorted(operations())


@pytest.mark.parametrize("line", sorted(set(FROM_A_SHELL.values())))
def test_the_command_is_there(line: str) -> None:
    """The command of the table exists, with the option that it names."""
    words = line.split()
    path = tuple(word for word in words if not word.startswith("--"))
    options = {word for word in words if word.startswith("--")}
    node = {each.path: each for each in tree().walk()}[path]
    assert options <= {name for option in node.options for name in option.names}
