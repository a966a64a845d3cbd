"""The protocol holds in every interleaving of a small configuration, and each of its rules is needed for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.shipping.chains import Tables, decoded, encoded
from tests.shipping.exhaustive import Step, search
from tests.shipping.model import Model, check
from tests.shipping.states import MUTANTS, Config, State


def test_every_interleaving_of_the_small_configuration_keeps_every_promise() -> None:
    """Two directories, three incarnations, three late PUTs, two intents, a crash, a copy: no step breaks a rule."""
    found = check()
    assert found.problem == "", "\n".join(found.trace)
    assert found.states > 40_000, "a search that reaches little proves little"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_the_rule_a_counterexample_is_found(
    mutant: str, record_property: Callable[[str, object], None]
) -> None:
    """A protocol that lacks one rule breaks a promise within a few steps."""
    found = check(mutant=mutant)
    assert found.problem, f"{found.states} states and no violation: the model cannot see what the rule is for"
    print(f"{mutant} (rule {MUTANTS[mutant]}): {found.problem}, after {len(found.trace)} steps")  # noqa: T201
    record_property("steps", len(found.trace))
    assert len(found.trace) <= 12


def test_the_search_reaches_what_it_is_there_for() -> None:
    """Takeover elsewhere, a late landing, a set-aside intent, a clone, a tool that ran: each is in the search."""
    seen: set[str] = set()
    model = Model(Config(puts=3, intents=1))

    def steps(state: State) -> Iterator[Step[State]]:
        waits = any(each.phase in ("take", "push") for each in state.actors)
        there = {
            "a tool ran": state.ran,
            "declared": state.declared,
            "a late PUT": not waits and any(each[0] == state.head for each in state.flight),
            "a clone": state.copied and len({a.inc for a in state.actors}) < len(state.actors),
            "a crash": state.crashed,
            "epoch 3": state.top == 3,
        }
        seen.update(name for name, one in there.items() if one)
        return model.steps(state)

    search(model.start(), steps)
    assert seen == {"a tool ran", "declared", "a late PUT", "a clone", "a crash", "epoch 3"}


def test_a_tiny_line_is_read_back_as_it_was_written() -> None:
    """The numbers that states are made of stand for real lines, chains and heads."""
    tables = Tables()
    log = tables.root("0" * 32)
    for line in ((1, 0, -1), (1, 0, 0), (2, 1, -1)):
        assert decoded(encoded(line)) == line
        log = tables.grown(log, line)
    assert tables.logs[log].last == 3
    assert tables.common(log, tables.grown(log, (2, 1, 1))) == 3
