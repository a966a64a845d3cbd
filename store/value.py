"""Values: frozen dataclasses whose methods are shared instead of generated.

``@dataclass(frozen=True)`` writes and compiles six methods for each class, at
every start: about 0.7 ms each, which for the thirty values that a short
command loads was a quarter of its time. ``@value`` gives the same behaviour
(``fields`` and ``replace`` of ``dataclasses`` work too) from methods that are
written once, here. Only a class that makes many values, as the write path
does, gets an ``__init__`` of its own, three times as fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


T = TypeVar("T")
MANY = 50


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of a class with annotated fields."""
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    made.__value_fields__ = tuple(each.name for each in fields(made))
    made.__value_defaults__ = {each.name: each.default for each in fields(made) if each.default is not MISSING}
    made.__value_factories__ = {
        each.name: each.default_factory for each in fields(made) if each.default_factory is not MISSING
    }
    made.__value_many__ = itertools.count(1 - MANY)
    for name in ("__init__", "__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__"):
        setattr(made, name, vars(_Shared)[name])
    return cls


def names_of(made: Any) -> tuple[str, ...]:
    """The names of a value's fields, in their order: ``dataclasses.fields`` makes an object of each at every call."""
    names: tuple[str, ...] = made.__value_fields__
    return names


def replace(made: T, **changes: Any) -> T:
    """``dataclasses.replace`` of a value, which has nothing but its fields: at a fraction of the cost."""
    return type(made)(**{**vars(made), **changes})


class _Shared:
    """The methods of every value."""

    __value_fields__: ClassVar[tuple[str, ...]]
    __value_defaults__: ClassVar[dict[str, Any]]
    __value_factories__: ClassVar[dict[str, Callable[[], Any]]]
    __value_many__: ClassVar[Iterator[int]]  # it comes to 0 when the class has made many

    def __init__(self, *given: Any, **named: Any) -> None:
        if next(self.__value_many__) == 0:
            made: Any = type(self)
            made.__init__ = _compiled_init(made)
        names = self.__value_fields__
        if len(given) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} values, not {len(given)}")
        values = dict(zip(names, given, strict=False))
        for name, each in named.items():
            if name in values or name not in names:
                raise TypeError(
                    f"{type(self).__name__}: {name} is " + ("given twice" if name in values else "not a field")
                )
            values[name] = each
        if len(values) < len(names):
            values = {**self.__value_defaults__, **values}
            for name, factory in self.__value_factories__.items():
                if name not in values:
                    values[name] = factory()
            missing = [name for name in names if name not in values]
            if missing:
                raise TypeError(f"{type(self).__name__} needs {', '.join(missing)}")
        self.__dict__.update(values)

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


def _compiled_init(made: Any) -> Callable[..., None]:
    """The ``__init__`` that ``dataclass`` writes, but past the ``__setattr__`` that refuses."""
    scope: dict[str, Any] = {"missing": MISSING, "defaults": made.__value_defaults__}
    arguments, lines = ["self"], ["values = self.__dict__"]
    for name in made.__value_fields__:
        if name in made.__value_factories__:
            scope[f"make_{name}"] = made.__value_factories__[name]
            arguments.append(f"{name}=missing")
            lines.append(f"values[{name!r}] = make_{name}() if {name} is missing else {name}")
            continue
        arguments.append(f"{name}=defaults[{name!r}]" if name in made.__value_defaults__ else name)
        lines.append(f"values[{name!r}] = {name}")
    exec(f"def __init__({', '.join(arguments)}): {'; '.join(lines)}", scope)
    compiled: Callable[..., None] = scope["__init__"]
    return compiled
