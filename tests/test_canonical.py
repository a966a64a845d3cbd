"""The log's fixed form: lines, keys, the chain and blobs. These bytes may never change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.canonical import (
    INLINE_LIMIT,
    LINE_LIMIT,
    blob_name,
    decode,
    encode_body,
    encode_line,
    first_hash,
    key_of,
    next_hash,
    spill,
)
from store.errors import InvalidInput

LINEAGE = "00112233445566778899aabbccddeeff"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_a_line_is_exactly_these_bytes() -> None:
    """Sorted keys, no spaces, UTF-8 unescaped, the body as the text that it is."""
    line = encode_line(
        agent="billing-migrator",
        at="2026-11-03T18:54:43.000000Z",
        body='{"role":"user","content":"größe \\"x\\"\\n"}',
        epoch=1,
        key="turn:1",
        kind="turn",
        lsn=2,
    )
    assert line.decode() == (
        '{"agent":"billing-migrator","at":"2026-11-03T18:54:43.000000Z",'
        '"body":"{\\"role\\":\\"user\\",\\"content\\":\\"größe \\\\\\"x\\\\\\"\\\\n\\"}",'
        '"epoch":1,"key":"turn:1","kind":"turn","lsn":2}'
    )


def test_the_chain_is_exactly_these_hashes() -> None:
    """h_0 is over lineage and agent, h_n over a domain, h_{n-1} and the line: fixed for ever."""
    start = first_hash(LINEAGE, "billing-migrator")
    assert start == hashlib.sha256(bytes.fromhex(LINEAGE) + b"billing-migrator").digest()
    assert start.hex() == "4adeb90ca0e3df593a06a2486821a3dcb30cc19957cc96a4fea6f6848509a150"
    link = next_hash(start, b"{}")
    assert link == hashlib.sha256(b"recall/1\x00" + start + b"{}").digest()
    assert link.hex() == "19a37472d583e04f49808d7fbd42e50cad5b762f6ceea75defeb0d42c706dbac"


@given(agent=TEXT, at=TEXT, body=TEXT, key=TEXT, kind=TEXT, epoch=st.integers(0), lsn=st.integers(0))
def test_every_line_is_what_json_makes_of_it(
    agent: str, at: str, body: str, key: str, kind: str, epoch: int, lsn: int
) -> None:
    """Any reader of JSON gets the fields back, and json.dumps with sorted keys gives the same bytes."""
    fields: dict[str, Any] = {
        "agent": agent, "at": at, "body": body, "epoch": epoch, "key": key, "kind": kind, "lsn": lsn,
    }  # fmt: skip
    line = encode_line(**fields)
    assert json.loads(line) == fields
    assert line == json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert b"\n" not in line


@pytest.mark.parametrize(
    ("kind", "seq", "name", "key"),
    [
        ("working_state", 3, "", "ws:3"),
        ("turn", 1, "", "turn:1"),
        ("pointer", 0, "wip", "ptr:wip"),
        ("output", 0, "out-1-1", "out:out-1-1"),
        ("action", 7, "", "act:7"),
        ("lease", 2, "", "lease:2"),
        ("from-the-future", 9, "", "from-the-future:9"),
    ],
)
def test_keys_have_short_names(kind: str, seq: int, name: str, key: str) -> None:
    """Known kinds are abbreviated as in the design; a newer kind uses its own name."""
    assert key_of(kind, seq, name) == key


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
FIELD = st.text("abcdefgh", min_size=1, max_size=6)


def unspilled(text: str, blobs: dict[str, bytes]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(text)
    for name, (blob, size, form) in body.pop("blobs", {}).items():
        data = blobs[blob]
        assert len(data) == size
        body[name] = data.decode() if form == "text" else json.loads(data)
    return body


@given(body=st.dictionaries(FIELD, JSON, max_size=5), grow=st.integers(0, 4), char=st.sampled_from('x"\\\né€👍\x01'))
def test_a_body_fits_its_line_and_comes_back(body: dict[str, Any], grow: int, char: str) -> None:
    """However large its fields, the stored body is within the limit, and with its blobs it is the same body."""
    body = {**body, **{f"large{number}": char * (5000 * number) for number in range(grow)}}
    text, blobs = spill(body, 3)
    assert len(json.dumps(text, ensure_ascii=False).encode()) <= INLINE_LIMIT
    assert unspilled(text, blobs) == body
    for name, data in blobs.items():
        assert name == blob_name(3, data) == "3-" + hashlib.sha256(data).hexdigest()
    line = encode_line(agent="a" * 128, at="x" * 27, body=text, epoch=2**53, key="k" * 140, kind="action", lsn=2**53)
    assert len(line) <= LINE_LIMIT


def test_a_small_body_stays_as_it_is() -> None:
    """The order of its fields is the caller's, and nothing is moved."""
    assert spill({"b": 1, "a": "x"}, 1) == ('{"b":1,"a":"x"}', {})
    assert encode_body({"b": 1, "a": "ä"}) == '{"b":1,"a":"ä"}'


def test_the_largest_field_is_moved_first() -> None:
    """A small field beside a large one stays readable in the line."""
    text, blobs = spill({"tool": "t", "content": "x" * 30_000}, 1)
    assert json.loads(text)["tool"] == "t"
    assert len(blobs) == 1


@pytest.mark.parametrize("char", ["\x01", '"', "\\", "\n", "é", "a"])
@pytest.mark.parametrize("size", [1, 1500, 3000, 4096, 5000, 60_000])
def test_a_small_field_stays_in_the_line_whatever_its_quoting_makes_of_it(char: str, size: int) -> None:
    """A summary of the most bytes allowed is in the line, even where it takes more room there than the content."""
    body = {"tool": "t" * 128, "summary": char * (4096 // len(char.encode())), "tokens": 9, "content": "x" * size}
    text, blobs = spill(body, 2**53)
    assert json.loads(text)["summary"] == body["summary"]
    assert unspilled(text, blobs) == body
    line = encode_line(agent="a" * 128, at="x" * 27, body=text, epoch=2**53, key="k" * 140, kind="output", lsn=2**53)
    assert len(line) <= LINE_LIMIT


def test_many_small_fields_that_no_line_can_hold_are_moved_too() -> None:
    """Each fits, all of them do not: the body still fits its line and comes back."""
    body = {f"f{number}": "\x01" * 4000 for number in range(9)}
    text, blobs = spill(body, 1)
    line = encode_line(agent="a" * 128, at="x" * 27, body=text, epoch=2**53, key="k" * 140, kind="turn", lsn=2**53)
    assert len(line) <= LINE_LIMIT
    assert unspilled(text, blobs) == body


def test_nan_and_infinity_are_no_bodies() -> None:
    """They are refused before a line is made of them."""
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            spill({"a": wrong}, 1)


def test_a_value_over_the_blob_limit_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is to use an object store and a pointer."""
    monkeypatch.setattr("store.canonical.BLOB_LIMIT", 50_000)
    with pytest.raises(InvalidInput) as refused:
        spill({"content": "x" * 50_001}, 1)
    assert "pointer" in refused.value.hint


@given(
    st.one_of(
        st.text(),
        st.builds(
            lambda before, value, after: before + json.dumps(value) + after,
            st.text(" \n\ufeffx", max_size=2),
            st.recursive(
                st.none() | st.integers() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
            ),
            st.text(" \n,}x", max_size=2),
        ),
    )
)
def test_decoding_is_that_of_json(text: str) -> None:
    """The same value, or the same refusal, whatever stands around it."""

    def told(decoder: Callable[[str], Any]) -> str:
        try:
            return repr(decoder(text))
        except ValueError as problem:
            return str(problem)

    assert told(decode) == told(json.loads)
