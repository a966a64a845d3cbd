"""Export and import: the same log elsewhere, or nothing at all."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.audit import Seen
from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import AgentExists, BadImport, Corrupt, NotFound
from store.records import NEXT, TURN, Draft
from store.restore import restore
from store.transfer import Transferred, export
from tests.keeping import checked, fill, problems, request, set_aside, tampering


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two agents, one of them with two asides."""
    directory = tmp_path_factory.mktemp("filled") / "store"
    fill(directory)
    fill(directory, "Other.agent-2", turns=1)
    set_aside(directory, "billing", 6, "diverged")
    set_aside(directory, "billing", 4, "diverged again")
    return directory


@pytest.fixture
def directory(tmp_path: Path, filled: Path) -> Path:
    shutil.copytree(filled, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def exported(filled: Path) -> bytes:
    return export_of(filled)


def export_of(directory: Path, *agents: str) -> bytes:
    backend = SqliteBackend(directory, read_only=True)
    try:
        return b"".join(export(backend, agents))
    finally:
        backend.close()


def import_into(directory: Path, data: bytes) -> list[Transferred]:
    backend = SqliteBackend(directory)
    try:
        return restore(backend, io.BytesIO(data))
    finally:
        backend.close()


def agents_of(data: bytes) -> list[bytes]:
    """An export's lines without its header and its end, which name the store and the time."""
    return data.splitlines()[1:-1]


def state_of(directory: Path, agent: str) -> list[Any]:
    backend = SqliteBackend(directory, read_only=True)
    try:
        branches = backend.branches(agent)
        logs = [list(backend.log(agent, branch=each.number)) for each in branches]
        return [branches, logs, list(backend.projected(agent)), list(backend.heads_stored(agent))]
    finally:
        backend.close()


def test_an_import_has_the_same_records_hashes_branches_and_projection(directory: Path, tmp_path: Path) -> None:
    """Export, import elsewhere and export again give the same bytes, and the new store verifies."""
    data = export_of(directory)
    done = import_into(tmp_path / "copy", data)
    assert [(each.agent, each.hash) for each in done] == [
        (agent, checked(directory, agent).hash) for agent in ("Other.agent-2", "billing")
    ]
    assert agents_of(export_of(tmp_path / "copy")) == agents_of(data)
    assert problems(tmp_path / "copy") == []
    for agent in ("billing", "Other.agent-2"):
        assert state_of(tmp_path / "copy", agent) == state_of(directory, agent)


def test_an_imported_agent_goes_on_in_a_lineage_of_its_own(directory: Path, tmp_path: Path) -> None:
    """The first acquisition names the old lineage, rises above its epoch, and both verify; so does a second copy."""
    copy, second = tmp_path / "copy", tmp_path / "second"
    import_into(copy, export_of(directory))
    before = state_of(copy, "billing")[1][-1]
    with Client(local_dir=copy) as client, client.resume("billing") as agent:
        assert agent.epoch == before[-1].epoch + 1
        assert [each.seq for each in agent.pending_actions()] == []
        agent.record_turn("user", "and on")
    assert problems(copy) == []
    _, logs, *_ = state_of(copy, "billing")
    assert logs[-1][: len(before)] == before
    first = json.loads(logs[-1][len(before)].body)
    assert first["from"] == {
        "lineage": state_of(directory, "billing")[0][-1].lineage,
        "lsn": before[-1].lsn,
        "hash": before[-1].hash.hex(),
    }
    assert state_of(copy, "billing")[0][-1].lineage != first["from"]["lineage"]
    import_into(second, export_of(copy))
    assert agents_of(export_of(second)) == agents_of(export_of(copy))
    assert problems(second) == []


def test_what_an_imported_lineage_goes_on_from_cannot_vanish(directory: Path, tmp_path: Path) -> None:
    """Losing the tail of the imported part is found, since the new lineage cites it."""
    import_into(tmp_path / "copy", export_of(directory, "Other.agent-2"))
    with Client(local_dir=tmp_path / "copy") as client, client.resume("Other.agent-2"):
        pass
    with tampering(tmp_path / "copy") as connection:
        connection.execute(
            "DELETE FROM records WHERE branch = 1 AND lsn = (SELECT start FROM branches WHERE branch = 2)"
        )
    assert any("which is not there" in each for each in problems(tmp_path / "copy"))


def test_pending_actions_and_outputs_survive(directory: Path, tmp_path: Path) -> None:
    """An agent's open action and its large outputs are there after an import."""
    import_into(tmp_path / "copy", export_of(directory, "Other.agent-2"))
    with Client(local_dir=tmp_path / "copy") as client, client.resume("Other.agent-2") as agent:
        assert [(each.tool, each.status) for each in agent.pending_actions()] == [("send_email", "unknown")]
        assert agent.fetch_output("big").content == "x" * 50_000


def test_an_import_never_merges(directory: Path) -> None:
    """An agent that the store knows is refused, and the other agents of the file stay out with it."""
    data = export_of(directory)
    before = export_of(directory)
    with pytest.raises(AgentExists):
        import_into(directory, data)
    assert agents_of(export_of(directory)) == agents_of(before)


def test_one_known_agent_keeps_the_others_out(directory: Path, tmp_path: Path) -> None:
    """An import is one transaction over all its agents."""
    copy = tmp_path / "copy"
    import_into(copy, export_of(directory, "billing"))
    with pytest.raises(AgentExists, match="billing"):
        import_into(copy, export_of(directory))
    assert [json.loads(line)["agent"] for line in export_of(copy).splitlines() if b'"type":"agent"' in line] == [
        "billing"
    ]


def test_a_token_of_the_exporting_store_does_not_open_the_copy(directory: Path, tmp_path: Path) -> None:
    """The holder of the original cannot write to the copy: nobody holds it."""
    backend = SqliteBackend(directory)
    fence = backend.acquire(request("billing")).lease.fence
    backend.close()
    import_into(tmp_path / "copy", export_of(directory, "billing"))
    copy = SqliteBackend(tmp_path / "copy")
    try:
        with pytest.raises(Exception, match="epoch"):
            copy.append(fence, [Draft(TURN, {"role": "user"}, seq=NEXT)])
    finally:
        copy.close()


def test_unknown_kinds_and_unreadable_bodies_are_carried(tmp_path: Path) -> None:
    """What this version cannot read is exported and imported as it is."""
    backend = SqliteBackend(tmp_path / "store")
    fence = backend.acquire(request("a")).lease.fence
    backend.append(
        fence, [Draft("dream", {"x": 1}, seq=NEXT), Draft("omen", {}, name="raven"), Draft(TURN, {"role": 7}, seq=1)]
    )
    backend.close()
    data = export_of(tmp_path / "store")
    import_into(tmp_path / "copy", data)
    assert agents_of(export_of(tmp_path / "copy")) == agents_of(data)


def test_an_export_is_of_one_moment(directory: Path) -> None:
    """Records that come while an agent is exported are not in it, and it is whole."""
    backend = SqliteBackend(directory, read_only=True)
    head = checked(directory, "Other.agent-2").lsn

    def watch(records: Iterable[Seen], total: int) -> Iterator[Seen]:
        for at, each in enumerate(records):
            if at == 2:
                with Client(local_dir=directory) as client, client.resume("Other.agent-2") as agent:
                    agent.record_turn("user", "late")
            yield each

    try:
        data = b"".join(export(backend, ["Other.agent-2"], watch=watch))
    finally:
        backend.close()
    end = json.loads(data.splitlines()[-2])
    assert (end["type"], end["lsn"], end["records"]) == ("agent_end", head, head)
    assert checked(directory, "Other.agent-2").lsn > head


def test_an_export_of_an_unknown_agent_is_refused(directory: Path) -> None:
    """A name that the store does not know is not an empty export."""
    with pytest.raises(NotFound):
        export_of(directory, "nobody")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET line = replace(line, 'turn 1', 'turn 9')",
        "DELETE FROM records WHERE lsn = 5",
        "DELETE FROM blobs",
    ],
)
def test_a_damaged_log_is_not_exported_as_if_it_were_sound(directory: Path, statement: str) -> None:
    """What an import would refuse is refused at export, where the original still is."""
    with tampering(directory) as connection:
        connection.execute(statement)
    with pytest.raises(Corrupt, match="agent billing"):
        export_of(directory, "billing")


def test_lines_are_harmless_on_a_terminal(exported: bytes) -> None:
    """No control or direction-changing character is in an export as itself."""
    text = exported.decode()
    assert all(each == "\n" or each.isprintable() for each in text)


# -- files that are not what was exported -------------------------------------------------


def resum(data: bytes) -> bytes:
    """The export with a true checksum, as somebody would make it who changes one on purpose."""
    *lines, end = data.splitlines(keepends=True)
    fields = json.loads(end)
    fields["sha256"] = hashlib.sha256(b"".join(lines)).hexdigest()
    return b"".join(lines) + json.dumps(fields).encode() + b"\n"


def change(kind: str, **fields: Any) -> Callable[[bytes], bytes]:
    """Replaces fields in the first line of a type, with a true checksum."""

    def changed(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        at = next(at for at, line in enumerate(lines) if json.loads(line)["type"] == kind)
        lines[at] = json.dumps({**json.loads(lines[at]), **fields}).encode() + b"\n"
        return resum(b"".join(lines))

    return changed


def drop(kind: str) -> Callable[[bytes], bytes]:
    def dropped(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        at = max(at for at, line in enumerate(lines) if json.loads(line)["type"] == kind)
        return resum(b"".join(lines[:at] + lines[at + 1 :])) if kind != "end" else b"".join(lines[:at])

    return dropped


def double(kind: str) -> Callable[[bytes], bytes]:
    def doubled(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        at = max(at for at, line in enumerate(lines) if json.loads(line)["type"] == kind)
        data = b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]])
        return data if kind == "end" else resum(data)

    return doubled


def swapped(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if b'"seq":2' in line)
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    return resum(b"".join(lines))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: b"", "the file is empty"),
        (lambda data: data[: len(data) // 2], "cut in the middle"),
        (lambda data: data[:-1], "cut in the middle"),
        (lambda data: b"".join(data.splitlines(keepends=True)[:9]), "is not complete"),
        (drop("end"), "its end line is missing"),
        (lambda data: data.replace(b"\n", b"\r\n"), "CR LF"),
        (lambda data: b"\xef\xbb\xbf" + data, "byte order mark"),
        (lambda data: data.decode().encode("utf-16"), "byte order mark"),
        (lambda data: b"\x1f\x8b\x08\x00" + data, "not an export of recall"),
        (lambda data: b"hello\n", "not an export of recall"),
        (lambda data: b"{}\n", "not an export of recall"),
        (lambda data: b"[" * 200_000 + b"\n", "not an export of recall"),
        (lambda data: data.replace(b"recall.export/1", b"recall.export/2"), "is not known to this recall"),
        (lambda data: data.replace(b'"reason":"first"', b'"reason":"worst"', 1), "checksum does not match"),
        (lambda data: data.replace(b"turn 0", b"turn 9", 1), "its hash does not follow"),
        (lambda data: data.replace(b"eHh4", b"eHh5", 1), "another content than its name says"),
        (swapped, "missing before it"),
        (drop("record"), "is not complete"),
        (drop("blob"), "is missing or of another size"),
        (drop("agent_end"), "must come here, not 'end'"),
        (drop("agent"), "an agent or end line must come here"),
        (double("record"), "is not above the one before it|does not belong here"),
        (double("agent"), "must come here, not 'agent'"),
        (double("agent_end"), "an agent or end line must come here"),
        (double("end"), "something follows the end line"),
        (change("agent", epoch=10**30), "epoch is missing or not a whole number"),
        (change("agent", epoch=0), "below 1"),
        (change("agent", epoch=1), "above the lease's, 1"),
        (change("agent", epoch=True), "epoch is missing"),
        (change("agent", agent="../x"), "is not an agent id"),
        (change("agent", agent="stranger"), "branch 1: it does not start where its lineage does"),
        (change("agent", branch=9), "is not among its branches"),
        (change("agent", branches=[]), "branches is missing"),
        (change("agent", lineage="\ud800"), "lone surrogate"),
        (change("record", seq=10**30), "seq is missing or not a whole number"),
        (change("record", seq=77), "its key is not made of"),
        (change("record", hash="xyz"), "hash is not hexadecimal"),
        (change("record", line="{"), "not a JSON object with a body"),
        (change("record", line="[" * 100_000), "not a JSON object with a body"),
        (change("record", branch=2), "does not belong here"),
        (change("blob", data="%%%"), "is not base64"),
        (change("blob", name="x"), "another content than its name says"),
        (change("agent_end", records=1), "does not match what came before it"),
        (change("end", agents=5), "it says 5 agents, but the file has 2"),
        (lambda data: data.splitlines(keepends=True)[0] + b"[" * 200_000 + b"\n", "not a JSON object"),
        (
            lambda data: data.splitlines(keepends=True)[0] + b'{"n":' + b"9" * 9_000 + b"}\n",
            "line must come here|not a JSON",
        ),
        (lambda data: data.splitlines(keepends=True)[0] + b" " * 5_000_000 + b"\n", "it is too long"),
    ],
)
def test_a_file_that_was_changed_imports_nothing(
    exported: bytes, tmp_path: Path, spoil: Callable[[bytes], bytes], reason: str
) -> None:
    """Whatever happened to the file, the refusal is one line that names the place, and the store stays as it was."""
    with pytest.raises(BadImport, match=reason) as caught:
        import_into(tmp_path / "copy", spoil(exported))
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("line ")
    assert [json.loads(each)["type"] for each in export_of(tmp_path / "copy").splitlines()] == ["header", "end"]


@pytest.mark.parametrize("at", range(7))
def test_any_single_changed_byte_is_found(exported: bytes, tmp_path: Path, at: int) -> None:
    """Bytes changed all over the file, one at a time, each keep it out."""
    for place in range(at * 997 % len(exported), len(exported), len(exported) // 6):
        spoiled = bytearray(exported)
        spoiled[place] ^= 0x01
        with pytest.raises(BadImport):
            import_into(tmp_path / "copy", bytes(spoiled))
