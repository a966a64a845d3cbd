"""Shell code that a shell evaluates: quoted so that no value can be anything but a value."""

from __future__ import annotations

from collections.abc import Mapping

from store.errors import InvalidInput

SHELLS = ("sh", "fish")  # sh: every POSIX shell, bash and zsh


def exports(shell: str, variables: Mapping[str, str]) -> list[str]:
    """One line for each variable.

    Raises:
        InvalidInput: a value that cannot be printed as UTF-8 text.
    """
    lines = []
    for name, value in variables.items():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            reason = "cannot be exported: its value is not UTF-8 text"
            raise InvalidInput(field=name, reason=reason, hint="name another directory") from None
        if shell == "fish":
            quoted = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
            lines.append(f"set -gx {name} {quoted}")
        else:
            quoted = "'" + value.replace("'", "'\\''") + "'"
            lines.append(f"export {name}={quoted}")
    return lines


def refusal(shell: str, code: int) -> str:
    """Code that does nothing but end with a status, so that ``eval "$(…)" || exit`` works."""
    return f"sh -c 'exit {int(code)}'\n" if shell == "fish" else f"(exit {int(code)})\n"
