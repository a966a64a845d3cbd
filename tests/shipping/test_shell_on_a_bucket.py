"""``recall exec`` and ``recall run`` on a store that ships: what they cost, and what a kill leaves for another machine.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from store.access import break_lease
from tests.conftest import COMMAND, Run
from tests.shipping import faults
from tests.shipping.commands import Machines, variables
from tests.shipping.machines import attach
from tests.shipping.proxy import Fault, Request
from tests.shipping.real import World

pytestmark = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)

BOT = "bot"


@pytest.fixture
def machines(world: World, run_recall: Run) -> Machines:
    """Two machines whose commands go through the proxy."""
    machines = Machines(run_recall, world.directory, world.location)
    for name in ("a", "b"):
        attach(machines.directory(name), world.location)
    return machines


@pytest.fixture
def started(environment: dict[str, str], machines: Machines) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts ``recall`` on machine a in a process group of its own; none outlives the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        env = {**environment, **variables(machines.directory("a"))}
        env["PATH"] = f"{COMMAND.parent}:{env['PATH']}"
        argv = [str(COMMAND), *words]
        out = subprocess.PIPE
        processes.append(
            subprocess.Popen(argv, env=env, cwd=machines.base, stdout=out, stderr=out, start_new_session=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def on_path(machines: Machines) -> dict[str, str]:
    return {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}


def requests(world: World, kind: str) -> int:
    return sum(each.request.key.endswith("head.json") for each in world.proxy.of(kind))


def test_a_step_costs_what_its_class_costs(world: World, machines: Machines) -> None:
    """Rule 20: inside exec a pure step costs no conditional PUT, an idempotent one 1, an external one 2."""
    costs = {}
    for class_ in ("", "pure", "idempotent", "external"):
        before = requests(world, "put")
        step = ("recall", "run", "--class", class_, "--step", class_, "--") if class_ else ()
        machines("a", "exec", BOT, "--", *step, "true", env=on_path(machines))
        costs[class_] = requests(world, "put") - before
    assert costs == {"": 2, "pure": 2, "idempotent": 3, "external": 4}
    world.check(BOT)


def test_a_step_alone_is_one_look_and_three_writes(world: World, machines: Machines) -> None:
    """Rule 20: recall run without exec costs 1 GET and 3 PUTs: lease, barrier, and the lease back with the end."""
    machines("a", "run", "-a", BOT, "--class", "external", "--step", "x", "--", "true")
    assert (requests(world, "get"), requests(world, "put")) == (1, 3)
    machines("a", "run", "-a", BOT, "--class", "external", "--step", "y", "--", "true")
    assert (requests(world, "get"), requests(world, "put")) == (2, 6)
    assert world.head(BOT).state == "released"
    world.check(BOT)


def break_from(machines: Machines, name: str) -> None:
    """An operator who knows that the holder's machine is gone, at another one."""
    machines(name, "sync", "pull", BOT)
    machines(name, "lease", "break", BOT, "--reason", "its machine is gone", "--yes")


def begins_mail(request: Request) -> bool:
    return b"act:1" in request.body


@pytest.mark.parametrize("arrived", [True, False], ids=["after its barrier", "before its barrier"])
def test_13_a_runner_killed_at_its_barrier_and_its_machine_lost(
    world: World, machines: Machines, started: Callable[..., subprocess.Popen[bytes]], arrived: bool
) -> None:
    """Rows 13 and 14: killed between the barrier's PUT and the command: elsewhere it waits for a person, or runs."""
    effects = machines.base / "effects"
    mail = ("--class", "external", "--step", "mail", "--", "sh", "-c", f"echo sent >> {effects}")
    gate: Fault = faults.Pause(answered=True) if arrived else faults.Hang()
    world.proxy.inject(gate, "put", key="head.json", when=begins_mail)
    script = started("exec", BOT, "--run", "tonight", "--", "recall", "run", *mail)
    if isinstance(gate, faults.Pause):
        gate.wait_for_waiting()
    else:
        gate.wait()
    os.killpg(script.pid, signal.SIGKILL)
    script.wait(30)
    world.proxy.heal()
    assert not effects.exists()
    shutil.rmtree(machines.directory("a"))

    machines("b", "resume", BOT, code=4)
    break_from(machines, "b")
    again = ("exec", BOT, "--run", "tonight", "--", "recall", "run", *mail)
    if arrived:
        refused = machines("b", *again, code=8, env=on_path(machines))
        assert "recall actions resolve" in refused.err and not effects.exists()
        machines("b", "actions", "resolve", "-a", BOT, "1", "abandoned", "--reason", "the outbox is empty")
    machines("b", *again, env=on_path(machines))
    assert effects.read_text() == "sent\n"
    world.check(BOT)


def test_5_exec_ends_its_command_when_the_bucket_says_that_the_lease_is_lost(
    world: World, machines: Machines, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Row 5: a renewal finds the successor; the command is ended, exec exits with 5, and nothing more is written."""
    ready = machines.base / "ready"
    script = started("exec", BOT, "--ttl", "1s", "--", "sh", "-c", f"touch {ready}; exec sleep 60")
    end = time.monotonic() + 30
    while not ready.exists() and time.monotonic() < end:
        time.sleep(0.02)
    store = world.machine("b", bucket=world.direct)
    break_lease(store, BOT, by="tester", why="it is stuck")
    _, err = script.communicate(timeout=30)
    assert script.returncode == 5, err.decode()
    assert b"lease was lost" in err and b"Traceback" not in err
    assert world.head(BOT).epoch == 2 and world.head(BOT).state == "released"
    world.check(BOT)


def test_what_cannot_be_had_ends_with_its_exit_code(world: World, machines: Machines) -> None:
    """Rows 4, 16 and 22: refused is 7 and the command does not run, fenced is 5, a head that is gone is 9."""
    effects = machines.base / "effects"
    step = ("-a", BOT, "--class", "external", "--", "sh", "-c", f"echo ran >> {effects}")
    denied = world.proxy.inject(faults.Answer(403, "AccessDenied"), "put", key="head.json", skip=1, times=None)
    refused = machines("a", "run", *step, code=7)
    assert denied.happened >= 1 and "access denied" in refused.err
    world.proxy.heal()
    assert not effects.exists()

    taken = machines.json("a", "resume", BOT, "--export", "--holder-pid", str(os.getpid()))
    session = {"RECALL_AGENT": BOT, "RECALL_LEASE": taken["lease"]}
    machines("a", "turns", "add", "--role", "user", "never shipped", env=session)
    break_from(machines, "b")
    lost = machines("a", "run", *step, env=session, code=5)
    assert "lease was lost" in lost.err and not effects.exists()
    with world.no_puts():
        machines("a", "turns", "add", "--role", "user", "late", env=session, code=5)

    machines.delete(f"agents/{BOT}/head.json")
    for _ in range(2):
        gone = machines("b", "turns", "add", "-a", BOT, "--role", "user", "into nothing", code=9)
        assert "head missing" in gone.err and "recall remote repair" in gone.err
    assert world.direct.get(f"agents/{BOT}/head.json") is None and not effects.exists()
