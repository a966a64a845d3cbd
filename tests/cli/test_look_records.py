"""``recall records``: the fixed form of keys and values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.look_stores import AGENT, seed, seed_all
from tests.conftest import Run


@pytest.fixture
def directory(environment: dict[str, str]) -> Path:
    return Path(environment["RECALL_DIR"])


def test_the_example_of_the_specification_to_the_letter(run_recall: Run, directory: Path) -> None:
    """Keys, padding, order, wrappers and bodies are those of the specification's example."""
    seed(directory)
    ended = run_recall("records", AGENT)
    shown = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", ended.out)
    first = (
        r"{\"goal\":\"Move billing to the v2 API\",\"plan\":[\"find call sites\",\"migrate them\","
        r"\"run the tests\"],"
    )
    newest = (
        first + r"\"progress\":\"1 of 12 files migrated\",\"last_milestone\":\"call sites found\","
        r"\"version\":2,\"turn_seq\":1,\"updated_at\":\"TIME\",\"milestone\":true}"
    )
    assert (ended.code, ended.err) == (0, "")
    assert shown.splitlines() == [
        f'billing-migrator:ws:head   {{"record":"working_state_head","epoch":"1","body":"{newest}"}}',
        (
            f'billing-migrator:ws:1      {{"record":"working_state","seq":"1","epoch":"1","body":"{first}'
            r'\"version\":1,\"updated_at\":\"TIME\"}"}'
        ),
        f'billing-migrator:ws:2      {{"record":"working_state","seq":"2","epoch":"1","body":"{newest}"}}',
        (
            r'billing-migrator:turn:1    {"record":"turn","seq":"1","epoch":"1","body":"{\"role\":\"assistant\",'
            r'\"content\":\"12 call sites found; migrating api/checkout.py first.\"}"}'
        ),
        (
            r'billing-migrator:ptr:wip   {"record":"pointer","name":"wip","epoch":"1","body":"{\"type\":\"git_ref\",'
            r'\"fields\":{\"repo\":\"github.com/acme/billing\",\"branch\":\"agent/wip\"}}"}'
        ),
    ]


def test_only_what_is_in_force_and_no_leases(run_recall: Run, directory: Path) -> None:
    """Each key is shown once, a removed pointer and the leases not at all, actions in their present state."""
    seed_all(directory)
    lines = run_recall("records", AGENT).out.splitlines()
    keys = [line.split("   ")[0].strip() for line in lines]
    assert keys == [
        f"{AGENT}:{key}"
        for key in (
            *("ws:head", "ws:1", "ws:2", "turn:1", "turn:2", "ptr:wip", "out:act-2-result", "out:report"),
            *("act:1", "act:2", "act:3", "step:/deploy-v2", "tool:deploy", "tool:lint", "tool:send_email"),
        )
    ]
    action = json.loads(lines[keys.index(f"{AGENT}:act:3")].split("   ", 1)[1])
    assert json.loads(action["body"])["status"] == "failed"


def test_leases_when_asked_for(run_recall: Run, directory: Path) -> None:
    """--kind lease shows the lease records, and nothing else."""
    seed_all(directory)
    lines = run_recall("records", AGENT, "--kind", "lease").out.splitlines()
    assert [line.split()[0] for line in lines] == [f"{AGENT}:lease:1", f"{AGENT}:lease:2"]


def test_values_stay_json_and_harmless(run_recall: Run, directory: Path) -> None:
    """Stored texts that act on a terminal come out as escapes, and reading the JSON gives them back."""
    seed_all(directory)
    out = run_recall("records", AGENT).out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)
    values = {line.split("   ")[0].strip(): json.loads(line.split("   ", 1)[1]) for line in out.splitlines()}
    content = json.loads(values[f"{AGENT}:out:report"]["body"])["content"]
    assert content == "line one\r\nline two\x1b[31m\u202e"


def test_keys_and_values_for_programs(run_recall: Run, directory: Path) -> None:
    """--jsonl gives each key with its value as an object."""
    seed(directory)
    rows = [json.loads(line) for line in run_recall("records", AGENT, "--jsonl").out.splitlines()]
    assert rows[0]["key"] == f"{AGENT}:ws:head"
    assert rows[0]["value"]["record"] == "working_state_head"
    assert [set(row) for row in rows] == [{"key", "value"}] * 5


def test_long_keys_keep_their_distance(run_recall: Run, directory: Path) -> None:
    """A key that is wider than the column is still followed by three spaces."""
    seed_all(directory)
    line = next(line for line in run_recall("records", AGENT).out.splitlines() if ":out:report" in line)
    assert line.startswith(f'{AGENT}:out:report   {{"record":"output"')
