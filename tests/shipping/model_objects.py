"""Two smaller models beside the protocol's: the objects that a head names, and what a prune must keep.

*Objects* (rule 9): two writers that upload an object, then send the head that
names it; PUTs that land late; a collector whose deletes arrive late too.
*Prune* (rule 19): steps that run once, and a log whose beginning is cut off.
Both are small enough to state the rules in; nothing in them is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from tests.shipping.exhaustive import Found, Step, Violation, search

OBJECT_MUTANTS = {
    "there means that it stays": "9",
    "collected whatever its epoch": "9",
    "deleted after a 412": "9",
    "deleted after an unclear answer": "9",
}
PRUNE_MUTANTS = {
    "a prune forgets the outcomes of steps": "19",
    "a prune forgets the open actions": "19",
}

Name = tuple[int, str]  # the epoch under which it was uploaded, and its content


class Head(NamedTuple):
    """A head: its revision, its epoch, and the objects that its log is in."""

    rev: int
    epoch: int
    names: frozenset[Name]


class Writer(NamedTuple):
    """One process: what it has read, and what it has uploaded or found there, to be named by its next head."""

    read: Head
    ready: Name | None
    sent: bool


class Objects(NamedTuple):
    head: Head
    there: frozenset[Name]
    flight: frozenset[tuple[int, Head]]  # the revision that each PUT expects
    deletes: frozenset[Name]  # sent, and arriving at any later time
    writers: tuple[Writer, ...]
    puts: int


class ObjectModel:
    """Two writers with the same content to store, as a copied directory has, and a collector."""

    def __init__(self, mutant: str = "", puts: int = 4) -> None:
        assert mutant in ("", *OBJECT_MUTANTS), mutant
        self.mutant, self.puts = mutant, puts

    def start(self) -> Objects:
        head = Head(0, 1, frozenset())
        return Objects(head, frozenset(), frozenset(), frozenset(), (Writer(head, None, False),) * 2, 0)

    def steps(self, s: Objects) -> Iterator[Step[Objects]]:
        for number, writer in enumerate(s.writers):
            yield from self._steps_of(s, number, writer)
        for put in s.flight:
            yield f"the PUT of revision {put[1].rev} arrives", partial(self._arrives, s, put)
        for name in s.there:
            below = name[0] < s.head.epoch or self.mutant == "collected whatever its epoch"
            if name not in s.head.names and below and name not in s.deletes:
                yield f"the collector deletes {name}", partial(s._replace, deletes=s.deletes | {name})
        for name in s.deletes:
            yield f"the delete of {name} arrives", partial(self._deleted, s, name)

    def _steps_of(self, s: Objects, number: int, w: Writer) -> Iterator[Step[Objects]]:
        me = f"writer {number}"
        if not w.sent:
            yield f"{me} reads the head", partial(self._with, s, number, Writer(s.head, None, False))
            name = (w.read.epoch, "x")
            if self.mutant == "there means that it stays":
                name = min((name, *s.there))
            if w.ready is None and name not in w.read.names:
                there = self._with(s._replace(there=s.there | {name}), number, w._replace(ready=name))
                yield f"{me} uploads, or finds it there", partial(_same, there)
            if s.puts < self.puts:
                names = w.read.names | ({w.ready} if w.ready else frozenset())
                for what, epoch in (("sends a head", w.read.epoch), ("takes over", w.read.epoch + 1)):
                    if epoch <= 2 and (w.ready or epoch > w.read.epoch):
                        new = (w.read.rev, Head(w.read.rev + 1, epoch, frozenset(names)))
                        sent = self._with(
                            s._replace(flight=s.flight | {new}, puts=s.puts + 1), number, w._replace(sent=True)
                        )
                        yield f"{me} {what}", partial(_same, sent)
            return
        refused = s.head.rev != w.read.rev
        yield f"{me} has no answer", partial(self._gives_up, s, number, "deleted after an unclear answer")
        if refused:
            yield f"{me} is answered 412", partial(self._gives_up, s, number, "deleted after a 412")

    def _gives_up(self, s: Objects, number: int, mutant: str) -> Objects:
        """It reads again; what it has uploaded stays where it is."""
        writer = s.writers[number]
        if self.mutant == mutant and writer.ready:
            s = s._replace(deletes=s.deletes | {writer.ready})
        return self._with(s, number, Writer(s.head, None, False))

    def _arrives(self, s: Objects, put: tuple[int, Head]) -> Objects:
        s = s._replace(flight=s.flight - {put})
        return _sound(s._replace(head=put[1])) if put[0] == s.head.rev else s

    @staticmethod
    def _deleted(s: Objects, name: Name) -> Objects:
        return _sound(s._replace(there=s.there - {name}, deletes=s.deletes - {name}))

    @staticmethod
    def _with(s: Objects, number: int, writer: Writer) -> Objects:
        return s._replace(writers=(*s.writers[:number], writer, *s.writers[number + 1 :]))


def _same(s: Objects) -> Objects:
    return s


def _sound(s: Objects) -> Objects:
    if not s.head.names <= s.there:
        raise Violation("the head names an object that is not there")
    return s


class Log(NamedTuple):
    """A log: (step, what became of it) from the base on, and how often each step's command ran."""

    records: tuple[tuple[str, str], ...]
    ran: tuple[int, int]
    prunes: int


class PruneModel:
    """Two named external steps, started, ended or cut off, tried again, and pruned at any time."""

    def __init__(self, mutant: str = "") -> None:
        assert mutant in ("", *PRUNE_MUTANTS), mutant
        self.mutant = mutant

    def start(self) -> Log:
        return Log((), (0, 0), 0)

    def steps(self, s: Log) -> Iterator[Step[Log]]:
        newest = dict(s.records)
        for number, step in enumerate("ab"):
            if step not in newest:
                yield f"step {step} begins", partial(self._runs, s, number, step)
            elif newest[step] == "started":
                yield f"step {step} ends", partial(_appended, s, step, "done")
                # Cut off: its open action is there, and the next process asks before it runs it again.
        if s.prunes < 2:
            yield "a prune", partial(self._pruned, s, newest)

    @staticmethod
    def _runs(s: Log, number: int, step: str) -> Log:
        ran = tuple(each + (number == one) for one, each in enumerate(s.ran))
        if max(ran) > 1:
            raise Violation(f"step {step} runs again")
        return _appended(s._replace(ran=(ran[0], ran[1])), step, "started")

    def _pruned(self, s: Log, newest: dict[str, str]) -> Log:
        """What stands before the new base goes, and first all that still decides something is appended again."""
        forgotten = {
            "a prune forgets the outcomes of steps": "done",
            "a prune forgets the open actions": "started",
        }.get(self.mutant)
        kept = tuple((step, status) for step, status in newest.items() if status != forgotten)
        return Log(kept, s.ran, s.prunes + 1)


def _appended(s: Log, step: str, status: str) -> Log:
    return s._replace(records=(*s.records, (step, status)))


def check_objects(mutant: str = "") -> Found[Objects]:
    """Search the model of objects, whole or with a rule taken out."""
    model = ObjectModel(mutant)
    return search(model.start(), model.steps)


def check_prune(mutant: str = "") -> Found[Log]:
    """Search the model of a prune, whole or with a rule taken out."""
    model = PruneModel(mutant)
    return search(model.start(), model.steps)
