"""What is said and read in a session of the resume test: texts as large as real ones, made from a seed."""

from __future__ import annotations

import random

_VERBS = "charge refund settle capture void invoice reconcile export retry schedule".split()
_NOUNS = "order account ledger payment customer subscription batch receipt dispute balance".split()


class Talk:
    """Texts about one file; the same ones for the same seed and number."""

    def __init__(self, seed: int, number: int) -> None:
        self._chance = random.Random(f"{seed} {number}")
        self.path = f"api/f{number:02}.txt"
        self.source = self._source(self._chance.randint(2000, 6000))

    def _name(self) -> str:
        return f"{self._chance.choice(_VERBS)}_{self._chance.choice(_NOUNS)}"

    def _source(self, size: int) -> str:
        """A file of about so many bytes, in which some lines are calls to be migrated."""
        lines: list[str] = []
        while sum(map(len, lines)) < size:
            name, other = self._name(), self._name()
            lines += [
                f"def {name}(request, session):",
                f'    """Used by {other}; called at most {self._chance.randint(2, 90)} times a minute."""',
                f"    row = session.get({self._chance.choice(_NOUNS)!r}, request.{self._chance.choice(_NOUNS)}_id)",
                f"    return {other}(row, retries={self._chance.randint(1, 9)})",
                f"calls: {name}(request, key={self._chance.getrandbits(48):012x})",
                "",
            ]
        return "\n".join(lines) + "\n"

    def thought(self, about: str) -> str:
        """What the model says before it does something."""
        return (
            f"{about} {self.path}: {self._name()} and {self._name()} are called from {self._name()}, which passes the "
            f"key on unchanged, so the v2 form can take it as it is. I keep the order of the arguments, leave "
            f"{self._name()} alone since nothing outside the module uses it, and look at the tests afterwards."
        )

    def diff(self) -> str:
        """What the edit tool answers."""
        found = [line for line in self.source.splitlines() if line.startswith("calls: ")]
        return "\n".join(f"-{line}\n+calls: v2({line[7:]})" for line in found)

    def tests(self, lines: int) -> str:
        """What the tests print."""
        return "\n".join(
            f"tests/test_{self._name()}.py::test_{self._name()} PASSED [{line * 100 // lines:>3}%]"
            f" {self._chance.random():.3f}s"
            for line in range(lines)
        )
