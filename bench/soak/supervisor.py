"""The one who disturbs: it starts processes, carries out the plan, and has the history checked meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import ROOT
from bench.soak.ground import Ground, Machines, copied
from bench.soak.history import History, Life, Witness
from bench.soak.invariants import ALL, broken
from bench.soak.plan import AGENTS, SHELLS, Event, events, starts
from bench.soak.probes import looking_does_not_touch, one_bad_record_bricks_nothing
from bench.soak.worker import Task

_PATIENCE = 3.0  # seconds that an event waits for acknowledgements
_CHECK_EVERY = 3.0  # seconds; more where a check takes longer than a third of it


class Violation(Exception):
    """An invariant broke."""


@dataclass
class Process:
    """One that was started.

    Attributes:
        ttl: of its lease, in seconds.
        wakes: when it is continued, if it is stopped: at the latest.
        rival: who is to take its lease before that.
    """

    life: Life
    pid: int
    machine: int
    ttl: float
    wakes: float = 0.0
    rival: Life | None = None

    def signal(self, number: int) -> None:
        """To it, and to the commands that it runs if it is a shell's."""
        with suppress(ProcessLookupError):
            (os.killpg if self.life.kind == "shell" else os.kill)(self.pid, number)


@dataclass
class Supervisor:
    """One soak.

    Attributes:
        counts: what was done.
        done: the events so far, as they are shown.
        checks: how often an invariant was checked.
    """

    ground: Ground
    seed: int
    seconds: float
    say: Callable[[str], None] = lambda line: None
    counts: Counter[str] = field(default_factory=Counter)
    done: list[str] = field(default_factory=list)
    checks: int = 0

    def __post_init__(self) -> None:
        place = self.ground.place
        for name in ("acks", "outside"):
            (place / name).mkdir()
        self.history = History(self.ground.store)
        self.witness = Witness(self.history, place)
        self.agents = [f"agent-{number}" for number in range(AGENTS)]
        self._starts = [starts(self.seed, number) for number in range(AGENTS)]
        self._at = [number % self.ground.machines for number in range(AGENTS)]  # the machine of its next process
        self._running: list[Process] = []
        self._copies: dict[int, Path] = {}
        self._commands: list[subprocess.Popen[bytes]] = []
        self._until = self._next_check = 0.0
        self._recall = [sys.executable, "-m", "recall_cli"]
        self._environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        for agent in self.agents:
            self.history.log(agent)

    # -- the whole ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Violation."""
        for machine in range(self.ground.machines):
            self.ground.prepare(machine)
        self._mother = subprocess.Popen(
            [sys.executable, "-m", "bench.soak.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=self._environ,
        )
        try:
            self._until = time.monotonic() + self.seconds
            self._next_check = time.monotonic() + 1
            for event in events(self.seed, self.ground.store):
                self._wait(event.gap)
                if time.monotonic() > self._until:
                    break
                self.done.append(str(event))
                self.say(f"{self._until - time.monotonic():6.1f} s left, {self.witness.count:6} said:{self.done[-1]}")
                self._do(event)
            self._finish()
        finally:
            self._mother.kill()  # and all that it forked die with it
            self._mother.communicate()
            for each in self._running:
                each.signal(signal.SIGKILL)
            for machine in range(self.ground.machines):
                _end_all(self.ground.directory(machine))
            for command in self._commands:
                command.wait()

    def _wait(self, gap: int) -> None:
        """Until so many more acknowledgements came; not for ever, since everybody may be waiting."""
        want, late = self.witness.count + gap, time.monotonic() + _PATIENCE
        while time.monotonic() < min(late, self._until) and self.witness.count < want:
            self._tick()
            time.sleep(0.01)
        self._tick()

    def _tick(self) -> None:
        dead = [each for each in self._running if not _is_child(each.pid, self._mother.pid)]
        self.witness.poll([each.life.worker for each in dead])
        for each in dead:
            self._running.remove(each)
        now = time.monotonic()
        self._commands = [each for each in self._commands if each.poll() is None]
        for each in self._running:
            taken = each.rival is not None and any(each.rival.of("lease"))
            if each.wakes and (now >= each.wakes or taken):
                self._wake(each)
        if now < self._until:
            for number in range(AGENTS):
                if not self._of(number):
                    self._start(number, self._at[number])
        self.ground.tick()
        if now >= self._next_check:
            self.check()
            self._next_check = time.monotonic() + max(_CHECK_EVERY, 3 * (time.monotonic() - now))

    # -- processes -----------------------------------------------------------------------------------

    def _of(self, number: int) -> list[Process]:
        """An agent's, the one that was started first in front."""
        its = (each for each in self._running if each.life.agent == self.agents[number])
        return [each for each in its if each.life.kind != "person"]

    def _start(self, number: int, machine: int, *, kind: str = "", most: int | None = None) -> Process:
        given = next(self._starts[number])
        agent = self.agents[number]
        self.counts["processes"] += 1
        worker = f"w{self.counts['processes']}"
        life = Life(worker, agent, self.ground.name(machine), kind or ("shell" if number in SHELLS else "python"))
        task = Task(
            worker=worker,
            agent=agent,
            directory=str(self.ground.directory(machine)),
            acks=str(self.witness.born(life)),
            outside=str(self.witness.outside(agent)),
            kind=life.kind,
            seed=given.seed,
            ttl=given.ttl,
            wait=given.ttl + 8,
            budget=given.budget,
            resolver=number % 2 == 0,
            most=given.most if most is None else most,
            remote=self.ground.store == "bucket",
        )
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.write(json.dumps(vars(task)).encode() + b"\n")
        self._mother.stdin.flush()
        process = Process(life, int(self._mother.stdout.readline()), machine, given.ttl)
        self._running.append(process)
        return process

    def _kill(self, process: Process) -> None:
        process.signal(signal.SIGKILL)
        self.counts["SIGKILLs"] += 1
        while _is_child(process.pid, self._mother.pid):
            time.sleep(0.002)

    def _stop(self, process: Process, seconds: float, rival: Process | None) -> None:
        if process.wakes:
            return
        self.counts["stops"] += 1
        process.signal(signal.SIGSTOP)
        process.wakes = time.monotonic() + seconds
        process.rival = rival.life if rival else None

    def _wake(self, process: Process) -> None:
        self.witness.poll()
        held = [each["epoch"] for each in process.life.of("lease")]
        others = [each for each in self.history.lives.values() if each.agent == process.life.agent]
        later = [each["epoch"] for life in others if life is not process.life for each in life.of("lease")]
        released = any(process.life.of("released"))
        process.life.overtaken |= bool(held) and not released and max(later, default=0) > max(held)
        process.wakes, process.rival = 0.0, None
        process.signal(signal.SIGCONT)

    # -- events ----------------------------------------------------------------------------------------

    def _do(self, event: Event) -> None:
        here = self._at[event.agent]
        there = event.machine % self.ground.machines
        if event.kind == "restore" and there not in self._copies:
            return
        self.counts[event.kind] += 1
        its = self._of(event.agent)
        holder = its[0] if its else self._start(event.agent, here)
        match event.kind:
            case "kill":
                self._kill(holder)
            case "end":
                holder.signal(signal.SIGTERM)
            case "stop":
                self._stop(holder, 1.3 * holder.ttl + event.pick, None)
            case "stop and take over" | "stop and move":
                machine = here if event.kind == "stop and take over" else there
                self._at[event.agent] = machine
                # On a bucket a rival waits for the holder's ttl from when it first looks. One who was stopped
                # while he had the lock of the store keeps everybody waiting, so not for too long.
                self._stop(holder, holder.ttl + 3.0, self._start(event.agent, machine))
            case "contend":
                self._start(event.agent, here)
                self._wait(5)
                self._kill(holder)
            case "move":
                self._at[event.agent] = there
                self._kill(holder)
            case "break":
                self._run(here, "lease", "break", self.agents[event.agent], "--reason", "soak", "--yes")
            case "person":
                self._start(event.agent, here, kind="person")
            case "look":
                word = ("agents", "briefing", "log", "verify")[int(event.pick * 4)]
                self._run(here, *((word,) if word in ("agents", "verify") else (word, self.agents[event.agent])))
            case "fault":
                self.ground.disturb(event)
            case _:
                assert isinstance(self.ground, Machines)
                self._machine(self.ground, event.kind, there)

    def _machine(self, ground: Machines, kind: str, machine: int) -> None:
        its = [each for each in self._running if each.machine == machine]
        if kind == "copy":
            for each in its:
                each.signal(signal.SIGSTOP)
            copy = ground.place / f"copy-{len(self.done)}"
            copied(ground.directory(machine), copy)
            self._copies[machine] = copy
            for each in its:
                if not each.wakes:
                    each.signal(signal.SIGCONT)
            return
        for each in its:
            self._kill(each)
        _end_all(ground.directory(machine))
        self.witness.poll()
        for life in self.history.lives.values():
            life.lost |= life.place == ground.name(machine)
        ground.begin_again(machine, self._copies.get(machine) if kind == "restore" else None)

    def _run(self, machine: int, *words: str) -> None:
        """A ``recall`` command that nobody waits for."""
        command = [*self._recall, "--dir", str(self.ground.directory(machine)), *words]
        with (self.ground.place / "commands").open("ab") as said:
            null = subprocess.DEVNULL
            self._commands.append(subprocess.Popen(command, env=self._environ, stdin=null, stdout=said, stderr=said))

    def recall(self, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """A ``recall`` command, to its end."""
        command = [*self._recall, "--dir", str(directory), *words]
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False)

    def _expect(self, machine: int, *words: str) -> None:
        """It has to exit with 0. Raises Violation."""
        done = self.recall(self.ground.directory(machine), *words)
        if done.returncode:
            said = f"{done.stdout}{done.stderr}"
            raise Violation(f"machine {machine}: recall {' '.join(words)}: exit {done.returncode}\n{said}")

    # -- checks ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Look at everything that there is by now. Raises Violation."""
        # In this order: what was acknowledged and what happened is in the log that is read after it.
        self.witness.poll()
        self.witness.look_outside()
        for agent in self.agents:
            self.ground.read(agent, self.history.log(agent))
        found = broken(self.history)
        self.checks += len(ALL)
        if found:
            raise Violation("\n".join(found[:20]))

    # -- the end ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let everybody end, settle everything, and check all of it once more."""
        self.say("it is over: everybody ends, and what is open is settled")
        self.ground.heal()
        for each in list(self._running):
            if each.wakes:
                self._wake(each)
            each.signal(signal.SIGTERM)
        self._drain(30)
        for each in list(self._running):
            self._kill(each)
        self._drain(5)
        for _ in range(5):
            if not self._settle():
                break
        for machine in range(self.ground.machines):
            for words in self.ground.settling:
                self._expect(machine, *words)
        self.counts["set aside"] = self.ground.gather(self.history, self.agents)
        self.check()
        self.witness.look_outside()
        for agent in self.agents:
            self.history.log(agent).again = self.ground.read_again(agent)
        self.history.ended = True
        self.check()
        for machine in range(self.ground.machines):
            for words in self.ground.verifying:
                self._expect(machine, *words)
        there, copy = self.ground.directory(0), self.ground.place / "damaged"
        found = [*looking_does_not_touch(self.recall, there, self.agents)]
        found += one_bad_record_bricks_nothing(self.recall, there, self.agents, copy)
        if found:
            raise Violation("\n".join(found))
        self.checks += 2 + self.ground.machines * len(self.ground.verifying)

    def _settle(self) -> bool:
        """Let a process and then a person settle each agent's last calls; whether something is open still."""
        for kind in ("python", "person"):
            for number in range(AGENTS):
                self._start(number, number % self.ground.machines, kind=kind, most=0)
            self._drain(120)
        return any(self.ground.open_actions(agent) for agent in self.agents)

    def _drain(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (self._running or self._commands) and time.monotonic() < until:
            self._tick()
            time.sleep(0.01)


def _end_all(directory: Path) -> None:
    """SIGKILL for every process that was started on a machine: its directory is in their words or variables."""
    named = bytes(directory)
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if named in (each / "cmdline").read_bytes() + (each / "environ").read_bytes():
                os.kill(int(each.name), signal.SIGKILL)


def _is_child(pid: int, parent: int) -> bool:
    """Whether a process is there, and still the one that the other one forked."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    state, its_parent = stat.rpartition(")")[2].split()[:2]
    return state != "Z" and int(its_parent) == parent
