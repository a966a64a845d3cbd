"""Values behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from store.value import MANY, names_of, value
from store.value import replace as replaced


@value
class Point:
    """Two numbers, a name and a list."""

    x: int
    y: int = 0
    name: str = ""
    tags: list[str] = field(default_factory=list)

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclass(frozen=True)
class Reference:
    """The same, as the standard library makes it."""

    x: int
    y: int = 0
    name: str = ""
    tags: list[str] = field(default_factory=list)


OWN = {"__annotations__": Point.__annotations__, "y": 0, "name": "", "tags": field(default_factory=list)}
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 2), {"name": "a"}),
    ((), {"x": 1, "tags": ["t"]}),
    ((1, 2, "n", ["t"]), {}),
    ((), {}),
    ((1, 2, "n", [], 5), {}),
    ((1,), {"x": 2}),
    ((1,), {"z": 2}),
]


@pytest.mark.parametrize("before", [0, MANY])
@pytest.mark.parametrize(("given", "named"), CALLS)
def test_made_as_a_dataclass_is(given: tuple[Any, ...], named: dict[str, Any], before: int) -> None:
    """The same arguments give the same fields, the same repr, or a TypeError: the first time, and after many."""
    kind: Any = value(type("Point", Point.__bases__, {**OWN, "__qualname__": "Point"}))
    for number in range(before):
        assert kind(number).x == number
    assert (kind.__init__ is Point.__init__) == (before == 0)
    try:
        expected = Reference(*given, **named)
    except TypeError:
        with pytest.raises(TypeError):
            kind(*given, **named)
        return
    made = kind(*given, **named)
    assert vars(made) == vars(expected)
    assert repr(made) == repr(expected).replace("Reference", "Point")


def test_compared_copied_and_replaced() -> None:
    """Equal by fields and type, hashable where the fields are; copied, pickled, replaced; a factory makes its own."""
    one = Point(1, 2, tags=["t"])
    assert one == Point(1, 2, "", ["t"])
    assert one != Point(1, 3, "", ["t"])
    assert one != Reference(1, 2, "", ["t"])  # type: ignore[comparison-overlap]
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert replace(one, y=5) == replaced(one, y=5) == Point(1, 5, "", ["t"])
    with pytest.raises(TypeError):
        replaced(one, z=5)
    assert names_of(one) == tuple(each.name for each in fields(Reference))
    assert [each.name for each in fields(one)] == ["x", "y", "name", "tags"]
    assert is_dataclass(one)
    assert one.sum == 3
    assert Point(1).tags is not Point(1).tags
    frozen = replace(one, tags=())  # type: ignore[arg-type]
    assert {frozen: "found"}[Point(1, 2, "", ())] == "found"  # type: ignore[arg-type]


def test_nothing_of_a_value_changes() -> None:
    """Assigning and deleting raise, and leave it as it was."""
    one = Point(1)
    with pytest.raises(FrozenInstanceError):
        one.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.x
    assert one.x == 1
