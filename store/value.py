"""Values: frozen dataclasses whose methods are shared instead of generated.

``@dataclass(frozen=True)`` writes and compiles six methods for each class, at
every start: about 0.7 ms each, which for the thirty values that a short
command loads was a quarter of its time. ``@value`` gives the same behaviour
(and ``fields`` and ``replace`` of ``dataclasses`` work) from methods that are
written once, here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of a class with annotated fields."""
    own = set(vars(cls))  # an __init__ of its own stays
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    made.__value_fields__ = tuple(each.name for each in fields(made))
    made.__value_defaults__ = {each.name: each.default for each in fields(made) if each.default is not MISSING}
    made.__value_factories__ = {
        each.name: each.default_factory for each in fields(made) if each.default_factory is not MISSING
    }
    for name in ("__init__", "__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__"):
        if name not in own:
            setattr(made, name, vars(_Shared)[name])
    return cls


class _Shared:
    """The methods of every value."""

    __value_fields__: ClassVar[tuple[str, ...]]
    __value_defaults__: ClassVar[dict[str, Any]]
    __value_factories__: ClassVar[dict[str, Callable[[], Any]]]

    def __init__(self, *given: Any, **named: Any) -> None:
        names, values = self.__value_fields__, self.__dict__
        if not named and len(given) == len(names):  # as the write path makes them
            values.update(zip(names, given))  # noqa: B905 (the lengths are equal)
            return
        values.update(self.__value_defaults__)
        values.update(zip(names, given))  # noqa: B905 (too many are refused below)
        if named:
            values.update(named)
        for name, factory in self.__value_factories__.items():
            if name not in values:
                values[name] = factory()
        fit = len(values) == len(names) and len(given) <= len(names)
        if not fit or (named and not set(names[len(given) :]).issuperset(named)):
            raise _misfit(self, given, named)

    def __eq__(self, other: object) -> Any:
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__value_fields__))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__value_fields__)
        return f"{type(self).__qualname__}({shown})"

    def __setattr__(self, name: str, each: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


def _misfit(made: Any, given: tuple[Any, ...], named: dict[str, Any]) -> TypeError:
    """What is wrong with the arguments of a value."""
    kind, names = type(made).__name__, made.__value_fields__
    if len(given) > len(names):
        return TypeError(f"{kind} takes {len(names)} values, not {len(given)}")
    for name in named:
        if name not in names[len(given) :]:
            return TypeError(f"{kind}: {name} is " + ("given twice" if name in names else "not a field"))
    return TypeError(f"{kind} needs {', '.join(name for name in names if name not in vars(made))}")
