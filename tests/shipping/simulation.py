"""Whole machines on one bucket, with everything going wrong at random, from a seed.

Real SQLite directories, the real shipper and keeper; the clocks, the random
numbers and the bucket are the simulation's. Machines are copied, restored from
old copies and deleted; processes die in a call to the bucket; PUTs land late;
clocks jump. After every step the promises are checked over the whole history.

    python -m tests.shipping.simulation SEED...     replay, and say what happened
    python -m tests.shipping.simulation --for 60    as many seeds as fit in a minute
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from store.backends.sqlite import SqliteBackend
from store.errors import Fenced, LeaseHeld, LeaseLost, RecallError, Unavailable
from store.remote_errors import Forked
from store.verify import Problem, verify
from tests.shipping.history import Broken, History
from tests.shipping.simulated import Died, Digits, LossyBucket, Odds, Time
from tests.shipping.simulated_machines import AGENT, Machine, Worker

STEPS, MACHINES = 70, 3
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # what power would lose is not simulated here


class World:
    """The machines, their processes, and the bucket."""

    def __init__(self, seed: int, place: Path, say: Callable[[str], None], kind: type[LossyBucket]) -> None:
        self.random, self.time, self.say, self.place = Random(seed), Time(), say, place
        self.digits = Digits(self.random)
        self.history = History(AGENT)
        self.bucket = kind(self.random, self.time, self.history)
        # What checks reads everything, and nothing goes wrong for it.
        self.history.bucket = _Plain(self.bucket)
        self.machines: list[Machine] = []
        self.workers: list[Worker] = []
        self.copies: list[tuple[Path, Machine, set[bytes]]] = []
        self.happened: dict[str, int] = {}
        self._made = self._deep = 0
        self.bucket.meanwhile = self.meanwhile
        self.new_machine()
        self.new_machine()

    def pass_time(self, seconds: float) -> None:
        self.time.now += seconds

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    # -- machines -------------------------------------------------------------------------------

    def new_machine(self) -> Machine:
        machine = Machine(self, self._name(), self.place)
        machine.attach()
        self.machines.append(machine)
        return machine

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _name(self) -> str:
        return f"m{self._number()}"

    @staticmethod
    def _copied(path: Path, to: Path) -> None:
        # By another process: one that opens and closes a database file loses SQLite's locks on it.
        subprocess.run(["cp", "-R", path, to], check=True)

    def copy(self, machine: Machine) -> None:
        """A copy of a directory as another machine; now and then it takes the place of an old one."""
        path, lines = machine.path, set(machine.lines)
        if self.copies and self.random.random() < 0.4:
            path, _, lines = self.random.choice(self.copies)
        made = Machine(self, self._name(), self.place)
        self.count("a copy")
        self.say(f"{path.name} is copied as {made.name}")
        self._copied(path, made.path)
        made.lines = set(lines)
        running = [each for each in self.workers if each.machine.path == path and each.keeper.held]
        if len(self.machines) >= MACHINES:
            self.delete(self.random.choice(self.machines))
        self.machines.append(made)
        if running and self.random.random() < 0.5:  # a shell session, its token copied too
            self.workers.append(Worker(self, made, self._number(), adopt=self.random.choice(running).keeper.fence))

    def keep_copy(self, machine: Machine) -> None:
        """A backup, to be restored later."""
        path = self.place / f"copy-{machine.name}-{len(self.copies)}"
        self._copied(machine.path, path)
        self.copies.append((path, machine, set(machine.lines)))

    def delete(self, machine: Machine) -> None:
        self.count("a machine lost")
        self.say(f"{machine.name} is gone, with its disk")
        for worker in [each for each in self.workers if each.machine is machine]:
            self.kill(worker)
        self.machines.remove(machine)
        if machine.path not in [each for each, _, _ in self.copies]:
            shutil.rmtree(machine.path)

    def kill(self, worker: Worker) -> None:
        """What a process leaves behind is in the directory and in the bucket."""
        self.workers.remove(worker)
        worker.store.close()

    # -- steps ----------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing that happens."""
        self.time.now += self.random.choice((0.01, 0.1, 1, 5, 20))
        what = self.random.random()
        if what < 0.75 and self.workers:
            self.work(self.random.choice(self.workers))
        elif what < 0.87 or not self.workers:
            self.spawn(self.random.choice(self.machines))
        else:
            self.weather()

    def weather(self) -> None:
        machine = self.random.choice(self.machines)
        what = self.random.randrange(9)
        if what < 2:
            self.copy(machine)
        elif what == 2:
            self.keep_copy(machine)
        elif what == 3 and len(self.machines) > 1:
            self.delete(machine)
            self.new_machine()
        elif what == 4:
            machine.clock.wall += self.random.choice((-600, -90, 90, 600))
        elif what == 5:
            machine.clock.asleep += self.random.choice((30, 90))
        elif what == 6:
            self.time.now += 90
        elif what == 7 and self.workers:
            self.kill(self.random.choice(self.workers))
        else:
            self.bucket.land_one()

    def spawn(self, machine: Machine) -> None:
        """A new process tries to resume the agent; now and then a person breaks the lease for it."""
        worker = Worker(self, machine, self._number())
        self.workers.append(worker)
        if self.random.random() < 0.15:
            self.doing(worker, "break", worker.take_by_force)
        else:
            self.doing(worker, "acquire", worker.keeper.acquire)
        if worker in self.workers and not worker.keeper.held:
            if self.random.random() < 0.5:
                self.time.now += 70
                self.doing(worker, "acquire", worker.keeper.acquire)
            if worker in self.workers and not worker.keeper.held:
                self.kill(worker)

    def work(self, worker: Worker) -> None:
        """One operation of a process."""
        size = self.random.choice((10, 10, 300, 20_000))
        if worker.adopted and not worker.keeper.held:
            self.kill(worker)  # a shell session takes no lease by itself
            return
        if not worker.keeper.held:
            choices: list[tuple[str, int, Callable[[], object]]] = [
                ("acquire", 6, worker.keeper.acquire),
                ("pull", 2, lambda: worker.store.shipper.pull(AGENT)),
                ("collect", 1, worker.collect),
                ("turn", 1, lambda: worker.turn(size)),
            ]
        else:
            choices = [
                ("turn", 6, lambda: worker.turn(size)),
                ("begin", 6, worker.begin),
                ("secure", 3, worker.secure),
                ("end", 2, worker.end),
                ("renew", 3, worker.keeper.renew),
                ("release", 1, worker.keeper.release),
                ("maintain", 2, lambda: worker.store.shipper.maintain(worker.keeper.fence)),
                ("pull", 1, lambda: worker.store.shipper.pull(AGENT)),
                ("collect", 1, worker.collect),
                ("acquire", int(not worker.adopted), worker.keeper.acquire),
            ]
        name, _, operation = self.random.choices(choices, [weight for _, weight, _ in choices])[0]
        self.doing(worker, name, operation)

    def doing(self, worker: Worker, name: str, operation: Callable[[], object]) -> None:
        """Let a process do something; whatever it is told, it is one of the clear answers."""
        told = "done"
        try:
            operation()
        except Died:
            told = "was killed in it"
            self.kill(worker)
        except (LeaseHeld, Fenced, Unavailable) as problem:
            told = f"{type(problem).__name__}: {problem.message}"
            if isinstance(problem, LeaseLost) and worker.keeper._fence is not None:
                self.history.lost.add((worker.machine.name, worker.keeper._fence))
        except Forked as problem:
            raise Broken(f"trouble where there is none: {problem.message}") from problem
        self.count(f"{name}: {told.partition(':')[0]}")
        self.say(f"{self.time.now:8.2f} {worker}: {name}: {told}")

    def meanwhile(self, machine: str) -> None:
        """While one process waits for the bucket, others go on: on other machines, or writing beside it."""
        if self._deep or self.random.random() > 0.12 or not self.workers:
            return
        beside = [each for each in self.workers if each.machine.name == machine and each.keeper.held]
        worker = self.random.choice(beside if beside and self.random.random() < 0.5 else self.workers)
        self._deep += 1
        try:
            if worker.machine.name != machine:
                self.say("  meanwhile:")
                self.work(worker)
            elif worker.keeper.held:
                self.say("  meanwhile, beside it:")
                # Of its own lease an intent, as another thread of the process would: its barrier comes later.
                self.doing(worker, "append beside", worker.intend_beside)
        finally:
            self._deep -= 1

    # -- checks ---------------------------------------------------------------------------------

    def check_machines(self) -> None:
        """No directory has lost a record that it had."""
        for machine in self.machines:
            with SqliteBackend(machine.path, clock=machine.clock, read_only=True) as store:
                lines = {
                    each.line for branch in store.branches(AGENT) for each in store.log(AGENT, branch=branch.number)
                }
            if not machine.lines <= lines:
                raise Broken(f"{machine.name} has lost a record that it had")
            machine.lines = lines

    def finish(self) -> None:
        """An empty machine resumes from the bucket alone, and every directory is sound."""
        self.bucket.odds, self.bucket.meanwhile = Odds.none(), lambda machine: None
        while self.bucket.late:
            self.bucket.land_one()
        for worker in list(self.workers):
            self.kill(worker)
        last = self.new_machine()
        self.workers.append(Worker(self, last, 0))
        with_lease = self.workers[-1]
        for wait in (0, 70):
            self.time.now += wait
            self.doing(with_lease, "acquire", with_lease.keeper.acquire)
            if with_lease.keeper.held:
                break
        with_lease.begin()
        with_lease.keeper.release()
        for machine in self.machines:
            store = machine.open()
            store.shipper.pull(AGENT)
            lines = [each.line for each in store.log(AGENT)]
            if lines[: len(self.history.log)] != [line for line, _ in self.history.log]:
                raise Broken(f"{machine.name} has another log than the bucket")
            wrong = [each for each in verify(store) if isinstance(each, Problem)]
            if wrong:
                raise Broken(f"verify finds on {machine.name}: {wrong[0]}")
            store.close()
        self.kill(with_lease)


class _Plain:
    """Reads for those who check."""

    name = "the bucket"

    def __init__(self, bucket: LossyBucket) -> None:
        self._bucket = bucket

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the check calls {name}")

    def get(self, key: str) -> Any:
        from store.shipping.bucket import Object

        found = self._bucket.objects.get(key)
        return Object(found[0], found[1], None, None) if found else None


def run(
    seed: int,
    place: Path,
    say: Callable[[str], None] = lambda line: None,
    *,
    kind: type[LossyBucket] = LossyBucket,
) -> World:
    """One whole history, in a directory of its own.

    Raises:
        Broken: with the seed in it.
    """
    world = World(seed, place, say, kind)
    try:
        for number in range(STEPS):
            world.step()
            if number % 10 == 9:
                world.check_machines()
        world.finish()
    except (AssertionError, RecallError) as problem:
        say(f"seed {seed}: {type(problem).__name__}: {problem}")
        raise Broken(
            f"{type(problem).__name__}: {problem}\nreplay: python -m tests.shipping.simulation {seed}"
        ) from problem
    finally:
        for worker in world.workers:
            worker.store.close()
    return world


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--for"]:
        until, seed = time.monotonic() + float(arguments[1]), int(time.time())
        totals: dict[str, int] = {}
        first = seed
        while time.monotonic() < until:
            with tempfile.TemporaryDirectory(dir=MEMORY) as place:
                world = run(seed, Path(place))
            for name, number in (world.happened | world.bucket.faults).items():
                totals[name] = totals.get(name, 0) + number
            seed += 1
        _tell(f"{seed - first} seeds from {first}")
        for name in sorted(totals):
            _tell(f"{totals[name]:7} {name}")
        return 0
    for each in arguments:
        with tempfile.TemporaryDirectory(dir=MEMORY) as place:
            run(int(each), Path(place), _tell)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
