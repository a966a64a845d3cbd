"""A resolver command: asks the outside world whether an interrupted call happened.

It gets the action as JSON on stdin and in its environment. Exit 0: it
happened, and stdout is the result. Exit 1: it did not. Anything else, or no
answer in time: it cannot tell.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from store.actions import ActionEnd, to_mapping
from store.canonical import BLOB_LIMIT
from store.values import Action

DEFAULT_TIMEOUT = 60.0
_POLL = 0.05
_IN_ENVIRONMENT = 64 * 1024  # bytes; Linux refuses a single string of 128 KiB


def ask(
    command: str,
    agent: str,
    action: Action,
    *,
    args: str,
    timeout: float = DEFAULT_TIMEOUT,
    evidence: Sequence[Mapping[str, Any]] = (),
) -> ActionEnd | None:
    """What a resolver says of an action; None if it cannot tell.

    Args:
        command: a line for /bin/sh.
        args: the action's arguments, whole.
        timeout: seconds to give it.
        evidence: what records that were set aside say of it; it proves nothing by itself.
    """
    document = {**to_mapping(action), "agent_id": agent, "args": args, "evidence": list(evidence)}
    environ = {
        **os.environ,
        "RECALL_AGENT": agent,
        "RECALL_IDEMPOTENCY_KEY": action.key,
        "RECALL_ACTION_SEQ": str(action.seq),
        "RECALL_ACTION_TOOL": action.tool,
        "RECALL_ACTION_CLASS": action.class_,
        "RECALL_ACTION_STATUS": action.status,
        "RECALL_ACTION_STEP": action.step,
        "RECALL_ACTION_STARTED_AT": action.started_at,
    }
    if len(args.encode()) <= _IN_ENVIRONMENT:
        environ["RECALL_ACTION_ARGS"] = args
    with tempfile.TemporaryFile() as question:
        question.write(json.dumps(document).encode())
        question.seek(0)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=question,
                stdout=subprocess.PIPE,
                env=environ,
                start_new_session=True,
            )
        except (OSError, ValueError):
            return None
    try:
        told = _answer(process, time.monotonic() + timeout)
    except BaseException:
        _kill(process)  # in a session of its own, Ctrl-C did not reach it
        raise
    if told is None:
        return None
    if process.returncode == 0:
        return ActionEnd("done", result=_text(told), resolution="the resolver found that it happened")
    if process.returncode == 1:
        return ActionEnd("abandoned", resolution="the resolver found that it did not happen")
    return None


def _answer(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """What it printed, at most what can be stored; None if it did not end in time, and then it is killed.

    A child that it left behind with its stdout is not waited for.
    """
    assert process.stdout is not None
    told = bytearray()
    with process.stdout as stream:
        os.set_blocking(stream.fileno(), False)
        open_ = True
        while True:
            over = process.poll() is not None
            if open_ and select.select([stream], [], [], 0 if over else _POLL)[0]:
                chunk = os.read(stream.fileno(), 65536)
                open_ = bool(chunk)
                told += chunk[: max(0, BLOB_LIMIT - len(told))]
            elif over:
                return bytes(told)
            elif not open_:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL)
            if time.monotonic() >= deadline:
                break
    _kill(process)
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a resolver and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(data: bytes) -> str:
    """A resolver's result as text that may be stored."""
    return data[:BLOB_LIMIT].decode("utf-8", "replace").replace("\x00", "\ufffd")
