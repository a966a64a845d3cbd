"""The engine's values as the objects of the written JSON contract (docs/json.md)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def row(value: Any) -> dict[str, Any]:
    """A record's fields under their JSON names, all of them, empty ones too."""
    return {_name(each.name): _plain(getattr(value, each.name)) for each in fields(value)}


def _name(name: str) -> str:
    return "class" if name == "class_" else name


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return row(value) if hasattr(value, "__dataclass_fields__") else value
