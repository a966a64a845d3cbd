"""The log's fixed form: the canonical line, its key and the hash chain.

This cannot change once data exists; shipping sends these bytes as they are.

    h_0 = SHA256(lineage || agent)
    h_n = SHA256("recall/1" || NUL || h_{n-1} || line)

The line is UTF-8 JSON with sorted keys and no spaces, holding agent, at, body
(a string: its exact text), epoch, key, kind and lsn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from store.errors import InvalidInput

LINE_LIMIT = 32 * 1024  # bytes of one line
INLINE_LIMIT = 16 * 1024  # bytes of one body in its line; fields over it go to blobs
SMALL_LIMIT = 4 * 1024  # bytes; a field that has no more goes to a blob only where its line has no room at all
_ROOM = LINE_LIMIT - 2 * 1024  # of a line, beside agent, key and the other fields around the body
BLOB_LIMIT = 64 * 1024 * 1024  # bytes of one blob

_DOMAIN = b"recall/1\x00"

# The short names that keys are made of. A kind that is
# not here, from a newer version, uses its own name.
KEY_NAMES = {
    "working_state": "ws",
    "turn": "turn",
    "pointer": "ptr",
    "output": "out",
    "action": "act",
    "lease": "lease",
    "step": "step",
}


def key_of(kind: str, seq: int, name: str) -> str:
    """A record's key below its agent: ``turn:1``, ``ptr:wip``."""
    return f"{KEY_NAMES.get(kind, kind)}:{name or seq}"


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_quote = json.encoder.encode_basestring  # the C quoting that the encoder itself uses


def encode_body(body: dict[str, Any]) -> str:
    """A body's exact text; the order of its fields is the caller's."""
    try:  # most hold nothing but texts, for which making an encoder costs more than encoding
        return "{" + ",".join([f"{_quote(name)}:{_quote(each)}" for name, each in body.items()]) + "}"
    except TypeError:
        return _encode(body)


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in typeshed


def decode(text: str) -> Any:
    """What JSON says, as ``json.loads``, which looks for more around a text than a line or a body has.

    Raises:
        ValueError, RecursionError: it is not JSON.
    """
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def encode_line(*, agent: str, at: str, body: str, epoch: int, key: str, kind: str, lsn: int) -> bytes:
    """The canonical line. The f-string spells the sorted order; a test holds it to json.dumps."""
    return (
        f'{{"agent":{_quote(agent)},"at":{_quote(at)},"body":{_quote(body)},"epoch":{epoch},'
        f'"key":{_quote(key)},"kind":{_quote(kind)},"lsn":{lsn}}}'
    ).encode()


def first_hash(lineage: str, agent: str) -> bytes:
    """h_0 of a lineage (32 hexadecimal digits) and an agent."""
    return hashlib.sha256(bytes.fromhex(lineage) + agent.encode("ascii")).digest()


def next_hash(previous: bytes, line: bytes) -> bytes:
    """h_n of the hash before it and a line."""
    return hashlib.sha256(_DOMAIN + previous + line).digest()


def blob_name(epoch: int, data: bytes) -> str:
    """A blob's name: the epoch that wrote it and its content."""
    return f"{epoch}-{hashlib.sha256(data).hexdigest()}"


def spill(body: dict[str, Any], epoch: int) -> tuple[str, dict[str, bytes]]:
    """A body's text, its largest fields moved to blobs until it fits a line.

    Small ones stay as long as there is room, whatever their quoting makes of
    them, and ``content`` leaves first: listings read the others without the blobs.

    A moved field leaves its place; the body's ``blobs`` says
    ``{field: [name, bytes, "text" or "json"]}`` instead. What a body says there
    already (of a record that is written again) it goes on to say.

    Returns:
        the body's text and the blobs, by name.

    Raises:
        InvalidInput: a field is larger than a blob may be.
    """
    text = encode_body(body)
    if len(text) * 6 <= INLINE_LIMIT or _size_in_line(text) <= INLINE_LIMIT:
        return text, {}
    small, blobs = dict(body), dict[str, bytes]()
    moved: dict[str, list[Any]] = dict(small.pop("blobs", {}))
    sizes = {name: _size_in_line(_encode(value)) for name, value in small.items()}
    contents = {name: (each if isinstance(each, str) else _encode(each)).encode() for name, each in small.items()}
    stays = {name: len(data) <= SMALL_LIMIT for name, data in contents.items()}
    for name in sorted(sizes, key=lambda each: (stays[each], each != "content", -sizes[each], each)):
        if stays[name] and _size_in_line(text) <= _ROOM:
            break
        value, data = small.pop(name), contents[name]
        if len(data) > BLOB_LIMIT:
            raise InvalidInput(
                field=name,
                reason=f"has {len(data):,} bytes, more than the {BLOB_LIMIT:,} that one value may have",
                hint="put it into an object store and set a pointer to it (recall pointers set)",
            )
        blob = blob_name(epoch, data)
        blobs[blob] = data
        moved[name] = [blob, len(data), "text" if isinstance(value, str) else "json"]
        text = encode_body({**small, "blobs": moved})
        if _size_in_line(text) <= INLINE_LIMIT:
            break
    return text, blobs


def _size_in_line(body: str) -> int:
    return len(_quote(body).encode())
