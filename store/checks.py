"""What may be written: one check for each thing, with a message that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from store.actions import ActionEnd
from store.canonical import BLOB_LIMIT
from store.errors import InvalidInput
from store.records import CLASSES
from store.text import check_count, check_text, json_value, quoted
from store.values import POINTER_TYPES, ROLES, STATE_FIELDS, STATE_LISTS

STATE_LIMIT = 256 * 1024  # bytes of one working state: it is read at every resume
LIST_LIMIT = 1000  # items of one list in it
NAME_LIMIT = 128  # bytes of a name, a ref, a step
BRIEF_LIMIT = 4096
NOTE_LIMIT = 4096
ERROR_LIMIT = 64 * 1024
REASON_LIMIT = 4096
COMMAND_LIMIT = 64 * 1024
_OF_ACTION = re.compile(r"act-[0-9]+-")


def check_name(field: str, value: object, *, spaces: bool = False, limit: int = NAME_LIMIT) -> str:
    """A name: visible characters of any script, not starting with an option's dash or a dot.

    Names become parts of keys, refs on command lines and labels in briefings,
    so they hold nothing that could be taken for anything else there.
    """
    text = check_text(field, value, limit=limit, empty=False)
    plain = text.isprintable() and (spaces or " " not in text)
    if plain and (text[0].isalnum() or text[0] == "_") and text == text.strip():
        return text
    raise InvalidInput(
        field=field,
        reason=f"{quoted(text)} is not a name",
        hint="start with a letter or digit and use visible characters" + ("" if spaces else " without spaces"),
    )


def check_run(run: object) -> str:
    """A run's name, "" for none; without a slash, which parts it from a step's in their key."""
    if not run:
        return ""
    name = check_name("run", run)
    if "/" in name:
        raise InvalidInput(field="run", reason=f"{quoted(name)} must not hold a slash")
    return name


def check_class(value: object) -> str:
    """``pure``, ``idempotent`` or ``external``; there is no default to fall into."""
    if isinstance(value, str) and value in CLASSES:
        return value
    raise InvalidInput(
        field="class",
        reason=f"must be pure, idempotent or external, not {quoted(value)}",
        hint="running it again: pure changes nothing; idempotent is safe with the same key; external is neither",
    )


def check_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an update, each in its stored form; None clears.

    Raises:
        InvalidInput: an unknown field, or a value that is not of the field's type.
    """
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in STATE_FIELDS:
            raise InvalidInput(
                field=quoted(name), reason="is not a field of the working state", hint="use " + ", ".join(STATE_FIELDS)
            )
        if name == "step":
            checked[name] = check_count(name, 0 if value is None else value, least=0, most=2**53)
        elif name in STATE_LISTS:
            checked[name] = _texts(name, () if value is None else value)
        else:
            checked[name] = check_text(name, "" if value is None else value, limit=STATE_LIMIT)
    return checked


def check_change(values: Mapping[str, Any], add: object) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """What an update sets, and the items that it adds to lists.

    Raises:
        InvalidInput: as ``check_state``; or a field that is set and added to, or that is not a list.
    """
    if not isinstance(add, Mapping):
        raise InvalidInput(field="add", reason=f"must be lists by name, not {quoted(add)}")
    for name in add:
        if name not in STATE_LISTS:
            raise InvalidInput(field=quoted(name), reason="is not a list", hint="use " + ", ".join(STATE_LISTS))
        if name in values:
            raise InvalidInput(field=name, reason="is replaced and added to at once", hint="do one of the two")
    return check_state(values), check_state(add)


def _texts(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidInput(field=field, reason=f"must be a list of texts, not {type(value).__name__}")
    items = tuple(value)
    if len(items) > LIST_LIMIT:
        raise InvalidInput(field=field, reason=f"has {len(items):,} items, more than the {LIST_LIMIT:,} allowed")
    return tuple(check_text(f"{field}[{at}]", each, limit=STATE_LIMIT) for at, each in enumerate(items))


def check_turn(role: object, content: object, name: object, message_id: object, brief: object) -> dict[str, str]:
    """A turn's fields, by name."""
    if role not in ROLES:
        raise InvalidInput(field="role", reason=f"must be {', '.join(ROLES)}, not {quoted(role)}")
    return {
        "role": str(role),
        "content": check_text("content", content, limit=BLOB_LIMIT),
        "name": check_name("name", name) if name else "",
        "message_id": check_text("message_id", message_id, limit=256) if message_id else "",
        "brief": check_text("brief", brief, limit=BRIEF_LIMIT) if brief else "",
    }


def check_output(content: object, tool: object, summary: object, ref: object) -> tuple[str, str, str, str]:
    """An output's content, tool, summary and ref; the last three may be ""."""
    return (
        check_text("content", content, limit=BLOB_LIMIT),
        check_name("tool", tool, spaces=True) if tool else "",
        check_text("summary", summary or "", limit=NOTE_LIMIT),
        _check_ref(ref) if ref else "",
    )


def _check_ref(ref: object) -> str:
    """A ref that a caller may choose: an output of an action is evidence, and nobody's to replace."""
    name = check_name("ref", ref)
    if _OF_ACTION.match(name):
        reason = f"{quoted(name)} is of the form that actions keep their texts under"
        raise InvalidInput(field="ref", reason=reason, hint="choose one that does not start like act-7-")
    return name


def check_end(end: object) -> ActionEnd:
    """An action's outcome, its result as text; its status is checked where the action is known."""
    if not isinstance(end, ActionEnd):
        raise InvalidInput(field="end", reason=f"must be an ActionEnd, not {quoted(end)}")
    return ActionEnd(
        end.status,
        check_text("result", json_value("result", end.result), limit=BLOB_LIMIT),
        check_text("error", end.error, limit=ERROR_LIMIT),
        check_text("resolution", end.resolution, limit=REASON_LIMIT),
    )


def check_command(command: object) -> dict[str, Any]:
    """What is kept of a command's process, as it will be read back."""
    if command is None:
        return {}
    if not isinstance(command, Mapping):
        raise InvalidInput(field="command", reason=f"must be an object, not {quoted(command)}")
    text = check_text("command", json_value("command", dict(command)), limit=COMMAND_LIMIT)
    try:
        kept: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise InvalidInput(field="command", reason="is nested too deeply for JSON") from None
    return kept


def check_milestone(name: object, progress: object) -> dict[str, Any]:
    """The fields of the working state that a milestone sets."""
    given = {} if progress is None else check_state({"progress": progress})
    return {**given, "last_milestone": check_text("milestone", name, limit=NOTE_LIMIT, empty=False)}


def check_pointer(name: object, type_: object, fields: object, note: object) -> tuple[str, str, dict[str, str], str]:
    """A pointer's name, type, fields (its own first, in their order; empty ones left out) and note."""
    checked = check_name("name", name)
    if not isinstance(type_, str) or type_ not in POINTER_TYPES:
        raise InvalidInput(field="type", reason=f"must be {', '.join(POINTER_TYPES)}, not {quoted(type_)}")
    if not isinstance(fields, Mapping):
        raise InvalidInput(field="fields", reason=f"must be names and texts, not {type(fields).__name__}")
    own, needed = POINTER_TYPES[type_]
    given = {check_name("field", key): check_text(str(key), value, limit=STATE_LIMIT) for key, value in fields.items()}
    if not any(given.get(each) for each in needed):
        raise InvalidInput(field=type_, reason=f"needs {' or '.join(needed)}")
    order = [*own, *sorted(set(given) - set(own))]
    kept = {key: given[key] for key in order if given.get(key)}
    if sum(len(key) + len(value.encode()) for key, value in kept.items()) > STATE_LIMIT:
        raise InvalidInput(field="fields", reason=f"have more than the {STATE_LIMIT:,} bytes allowed")
    return checked, type_, kept, check_text("note", note or "", limit=NOTE_LIMIT)
