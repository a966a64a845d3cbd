"""What a head names is there, and what a prune keeps is enough; each rule is needed for that."""

from __future__ import annotations

import pytest

from tests.shipping.model_objects import OBJECT_MUTANTS, PRUNE_MUTANTS, check_objects, check_prune


def test_what_a_head_names_is_always_there() -> None:
    """Two writers, four late PUTs, a takeover, a collector whose deletes arrive late: nothing that is named is gone."""
    found = check_objects()
    assert found.problem == "", found.trace
    assert found.states > 5_000


@pytest.mark.parametrize("mutant", OBJECT_MUTANTS)
def test_without_a_rule_on_objects_a_head_names_what_is_gone(mutant: str) -> None:
    """Reuse by name alone, collection of the present epoch, a delete after an unclear write: each loses data."""
    found = check_objects(mutant)
    print(f"{mutant} (rule {OBJECT_MUTANTS[mutant]}): {found.problem}, after {len(found.trace)} steps")  # noqa: T201
    assert found.problem == "the head names an object that is not there"


def test_a_step_runs_once_over_any_prune() -> None:
    """Outcomes and open actions are appended again before what stands below the new base goes."""
    found = check_prune()
    assert found.problem == "", found.trace
    assert found.states > 30


@pytest.mark.parametrize("mutant", PRUNE_MUTANTS)
def test_a_prune_that_forgets_makes_a_step_run_again(mutant: str) -> None:
    """A pruned outcome, and a pruned open action, are as if the step had never begun."""
    found = check_prune(mutant)
    print(f"{mutant} (rule {PRUNE_MUTANTS[mutant]}): {found.problem}, after {len(found.trace)} steps")  # noqa: T201
    assert "runs again" in found.problem
