"""The protocol, searched exhaustively: every interleaving of a small configuration.

Two directories, of which one may become a copy of the other (a clone of its
running process included), three incarnations, PUTs that land at any later step
or never, one crash, takeover at any time. What decides is the code itself
(``store/shipping/protocol.py``) on real heads with tiny lines; what the code
does in SQLite between two decisions is restated here.

A *mutant* takes one rule out; ``test_model.py`` holds that each is found out.

    python -m tests.shipping.model           the default configuration and each mutant's trace
    python -m tests.shipping.model --full    a larger one
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

from store.clock import Instant
from store.lease import Fence
from store.shipping import protocol
from store.shipping.protocol import Again, Durable, Lost, Stamp, Trouble, Unshipped
from tests.shipping.chains import AGENT, NONE, Tables, encoded
from tests.shipping.exhaustive import Found, Step, Violation, search
from tests.shipping.states import (
    MUTANTS,
    NEEDS,
    TTL_MS,
    Actor,
    Config,
    Place,
    State,
    bits,
    incarnation,
    lineage,
    moved,
    placed,
    request,
)

THEN, NOW = Instant("boot", 0, 0), Instant("boot", 2 * TTL_MS, 2 * TTL_MS * 1000)


class Model:
    """The steps of one configuration, with at most one rule taken out."""

    def __init__(self, config: Config, mutant: str = "") -> None:
        assert mutant in ("", *MUTANTS), mutant
        self.config, self.mutant = config, mutant
        self.t = Tables()
        self._judged = cache(self._judge)
        self._pushed = cache(self._push_of)
        self._taken = cache(self._takeover_of)
        self._proven = cache(self._never_executed)

    def start(self) -> State:
        empty = self.t.root(lineage(0))
        places = (Place(0, empty, NONE, 0, NONE), Place(1, empty, NONE, 0, NONE))
        return State(NONE, (), 0, 0, (), places, (), False, False, NONE, 0, 0, 0)

    # -- what can happen ------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        """Every step from a state, each with its name."""
        may_put = s.sent < self.config.puts
        if s.began < self.config.incarnations and may_put:
            # The two directories are alike until one is used.
            for at in (0, 1) if s.sent or s.began else (0,):
                name = f"{s.began} in {'AB'[at]}"
                if not self._locked(s, at):
                    actor = Actor(at, s.began, 0, "want", NONE, 0)
                    began = s._replace(began=s.began + 1)
                    yield f"{name} takes over", partial(self._take, began, actor, again=False)
                    if self.mutant in _UNGRANTED and s.places[at].epoch:
                        yield f"{name} goes on", partial(self._ungranted, began, actor)
        for number, actor in enumerate(s.actors):
            if number and actor == s.actors[number - 1]:
                continue
            rest = s._replace(actors=s.actors[:number] + s.actors[number + 1 :])
            yield from self._steps_of(rest, actor, may_put)
        for put in s.flight:
            if put[0] == s.head:
                yield f"the PUT of {self._name(put[1])} lands", partial(self._landed, s, put)
        if self.config.copies and may_put and not s.copied and s.places[0].mark != NONE:
            yield "A is copied to B", partial(self._copy, s, ())
            for actor in s.actors:
                if actor.place == 0 and actor.phase in ("idle", "push"):
                    clone = Actor(1, actor.inc, actor.epoch, "idle", NONE, 0)
                    yield f"A is copied to B with {actor.inc}", partial(self._copy, s, (clone,))

    def _steps_of(self, s: State, a: Actor, may_put: bool) -> Iterator[Step[State]]:
        """The steps of one actor; it is not in ``s``."""
        name, place = f"{a.inc} in {'AB'[a.place]}", s.places[a.place]
        if a.phase in ("take", "push"):
            put = next((each for each in s.flight if each[1] == a.new), None)
            if put is not None and put[0] == s.head:
                yield f"{name}: its PUT is answered", partial(self._answered, s, a, put)
            yield f"{name}: its PUT is not answered, so it looks", partial(self._looks, s, a)
            if self.config.crashes and not s.crashed and may_put:
                yield f"{name} crashes", partial(s._replace, crashed=True)
            return
        locked = self._locked(s, a.place)
        if a.phase == "want":
            if may_put and not locked:
                yield f"{name} tries again", partial(self._take, s, a, again=False)
            return
        ours = (place.epoch, place.inc) == (a.epoch, a.inc)
        if ours and may_put and a.phase == "idle" and len(s.intents) < self.config.intents:
            yield f"{name} appends an intent", partial(self._append, s, a)
        if not may_put or locked:
            return
        if ours and a.phase == "idle":
            yield f"{name} sends a PUT", partial(self._push, s, a, released=False)
            yield f"{name} sends its release", partial(self._push, s, a, released=True)
        yield f"{name} takes its own lapsed lease again", partial(self._take, s, a, again=True)

    @staticmethod
    def _locked(s: State, at: int) -> bool:
        return any(each.place == at and each.phase in ("take", "push") for each in s.actors)

    def _name(self, head: int) -> str:
        return f"{self.t.heads[head].lease.inc[-1]} (up to lsn {self.t.heads[head].last})"

    # -- the lease ------------------------------------------------------------------------------

    def _take(self, s: State, a: Actor, *, again: bool) -> State:
        """A contender reads the head, brings its log up to it, and sends its takeover."""
        t, place = self.t, s.places[a.place]
        log = place.log
        if s.head != NONE:
            head = t.heads[s.head]
            if place.mark != NONE:
                self._no_trouble(protocol.regression(head, t.heads[place.mark]))
            if self._reason(s.head, a, place, again) is None:
                return s  # its own lease is lost: it ends
            theirs = t.log_of[s.head]
            if not t.starts(theirs, log):
                same = t.common(theirs, log)
                if place.mark != NONE and same < t.heads[place.mark].last:
                    raise Violation("a shipped record is not in the bucket's log: forked")
                log = theirs
                place = place._replace(log=log, epoch=head.epoch, inc=int(head.lease.inc, 16))
            if t.logs[log].last > head.last and not self._may_carry(s.head, log, place.id):
                log = theirs
        elif place.mark != NONE and self.mutant != "release deletes the head":
            raise Violation("the head is missing")
        if again and s.head != NONE and not t.starts(t.log_of[s.head], s.places[a.place].log):
            raise Violation("a lapsed lease was taken again although somebody else has acted")
        new = self._fresh(s, lambda wid: self._taken(s.head, log, a.inc, place.id, place.epoch, wid))
        return self._sent(placed(s, a.place, place._replace(log=log)), a._replace(phase="take", new=new))

    def _reason(self, head: int, a: Actor, place: Place, again: bool) -> str | None:
        """Why the real code lets it take over; that the holder's time is over may be believed at any time."""
        seen, hashes = self.t.heads[head], self.t.logs[place.log].hashes

        def known(lsn: int) -> bytes | None:
            if self.mutant == "a lapsed lease is taken again after a copy has acted":
                return seen.hash_at(lsn)
            return hashes[lsn] if lsn < len(hashes) else None

        asked = request(a.inc, Fence(AGENT, seen.lineage, a.epoch, incarnation(a.inc)) if again else None)
        return protocol.takeover_reason(
            seen, asked, store=str(place.id), highest=place.epoch, known=known, since=THEN, now=NOW
        )

    def _may_carry(self, head: int, log: int, store: int) -> bool:
        lines, seen = self.t.logs[log].lines, self.t.heads[head]
        epochs = frozenset(epoch for epoch, _, _ in lines[seen.last :])
        if self.mutant == "a tail is carried whatever its epoch":
            epochs = frozenset()
        return protocol.may_carry(seen, str(store), Unshipped(seen.last, self.t.logs[log].hashes[seen.last], epochs))

    def _takeover_of(self, head: int, log: int, inc: int, store: int, highest: int, wid: int) -> int:
        asked = request(inc)
        if head == NONE:
            before = protocol.blank("r", asked, lineage(store), (), store=str(store), epoch=highest)
        else:
            before = self.t.heads[head]
        before = protocol.extended(before, [encoded(each) for each in self.t.logs[log].lines[before.last :]])
        return self.t.put(
            protocol.taken(before, asked, Stamp(str(wid), NOW), store=str(store), highest=highest, ship="barrier")
        )

    def _granted(self, s: State, a: Actor) -> State:
        """Its takeover is known to have landed: one local transaction."""
        t, place, head = self.t, s.places[a.place], self.t.heads[a.new]
        log = t.log_of[a.new]
        if self.mutant == "what was appended during a takeover stays" and t.logs[place.log].last > head.last:
            log = place.log
        log = t.grown(log, (head.epoch, a.inc, NONE))
        place = place._replace(log=log, mark=a.new, epoch=head.epoch, inc=a.inc)
        return self._run(placed(s, a.place, place), a._replace(phase="idle", epoch=head.epoch, new=NONE), a.new)

    def _ungranted(self, s: State, a: Actor) -> State:
        """Mutants: it goes on with what its directory says, without asking the bucket."""
        place = s.places[a.place]
        epoch = place.epoch + (self.mutant == "an epoch is granted without the bucket")
        at = placed(s, a.place, place._replace(epoch=epoch, inc=a.inc))
        return moved(at, a._replace(phase="idle", epoch=epoch))

    # -- the log --------------------------------------------------------------------------------

    def _append(self, s: State, a: Actor) -> State:
        place, uid = s.places[a.place], len(s.intents)
        log = self.t.grown(place.log, (a.epoch, a.inc, uid))
        s = s._replace(intents=(*s.intents, (self.t.logs[log].last, a.epoch)))
        return moved(placed(s, a.place, place._replace(log=log)), a._replace(mine=a.mine | 1 << uid))

    def _push(self, s: State, a: Actor, *, released: bool) -> State:
        place = s.places[a.place]
        if self.t.heads[place.mark].fence.epoch != a.epoch and self.mutant not in _UNGRANTED:
            return s
        new = self._fresh(s, lambda wid: self._pushed(place.mark, place.log, a.epoch, a.inc, wid, released))
        return self._sent(s, a._replace(phase="push", new=new), expected=place.mark)

    def _push_of(self, mark: int, log: int, epoch: int, inc: int, wid: int, released: bool) -> int:
        head = self.t.heads[mark]
        head = protocol.extended(head, [encoded(each) for each in self.t.logs[log].lines[head.last :]])
        new = protocol.renewed(head, Stamp(str(wid), NOW), ship="barrier", state="released" if released else "live")
        if self.mutant in _UNGRANTED:
            new = replace(new, epoch=epoch, lease=replace(new.lease, inc=incarnation(inc)))
        return self.t.put(new)

    def _answered(self, s: State, a: Actor, put: tuple[int, int]) -> State:
        return self._known_landed(self._landed(s, put), a)

    def _known_landed(self, s: State, a: Actor) -> State:
        if a.phase == "take":
            return self._granted(s, a)
        if self.t.heads[a.new].state == "released":  # it starts no tool
            mark = NONE if s.head == NONE else a.new
            s = placed(s._replace(durable=self.t.log_of[a.new]), a.place, s.places[a.place]._replace(mark=mark))
            return moved(s, Actor(a.place, a.inc, a.epoch, "parked", NONE, 0))
        return self._run(placed(s, a.place, s.places[a.place]._replace(mark=a.new)), a._replace(phase="idle"), a.new)

    def _looks(self, s: State, a: Actor) -> State:
        """It reads the head, and decides as the code does."""
        place = s.places[a.place]
        if s.head == a.new:  # in the code: the wid is its own
            return self._known_landed(s, a)
        if a.phase == "take":
            return moved(s, a._replace(phase="want" if not a.epoch else "idle", new=NONE))
        if s.head == NONE and self.mutant == "release deletes the head":
            return s  # it ends
        verdict = self._judged(s.head, place.mark, a.epoch, a.inc, self.t.heads[a.new].last, place.log)
        if isinstance(verdict, Lost):
            if verdict.landed and self.mutant == "landed but fenced counts as durable":
                self._run(s, a, s.head)
            head = self.t.heads[s.head]
            row = (head.epoch, NONE if head.epoch == a.epoch else int(head.lease.inc, 16))
            return placed(s, a.place, place._replace(epoch=row[0], inc=row[1]))
        self._no_trouble(verdict)
        place = place._replace(mark=s.head)
        a = a._replace(phase="idle", new=NONE)
        if isinstance(verdict, Durable):
            return self._run(placed(s, a.place, place), a, s.head)
        if self.mutant == "a record that a GET did not show is dropped":
            place = place._replace(log=self.t.log_of[s.head])
        return moved(placed(s, a.place, place), a)

    def _judge(
        self, head: int, mark: int, epoch: int, inc: int, want: int, log: int
    ) -> Durable | Again | Lost | Trouble:
        heads, hashes = self.t.heads, self.t.logs[log].hashes
        read = heads[head] if head != NONE else None

        def known(lsn: int) -> bytes | None:
            if self.mutant == "a record is looked for by lsn, not by hash" and read is not None:
                return read.hash_at(lsn)
            return hashes[lsn] if lsn < len(hashes) else None

        fence = Fence(AGENT, heads[mark].lineage, epoch, incarnation(inc))
        return protocol.judge(read, fence, heads[mark], want=want, known=known)

    def _run(self, s: State, a: Actor, head: int) -> State:
        """The log up to this head is called durable: the tools that waited for it start.

        ``head`` is what the actor has just learnt of; a process that pauses right after is no longer the
        protocol's to protect (rule 7).
        """
        upto = self.t.heads[head].last
        waiting = a.mine
        if self.mutant != "a barrier waits for an lsn, not for its record":
            here = self.t.logs[s.places[a.place].log].lines  # without what was set aside meanwhile
            waiting &= sum(1 << uid for _, _, uid in here if uid != NONE)
        ready = sum(1 << each for each in bits(waiting) if s.intents[each][0] <= upto)
        now = self.t.heads[s.head]
        if ready:
            if (now.epoch, now.lease.inc) != (a.epoch, incarnation(a.inc)):
                raise Violation("a tool starts under a lease that is another's")
            if any(each not in self._uids(s.head) for each in bits(ready)):
                raise Violation("a tool starts and its intent is not in the head")
            if ready & s.declared:
                raise Violation("what was declared never executed is executed")
        log = self.t.log_of[head]
        s = s._replace(ran=s.ran | ready, durable=log)
        return moved(s, a._replace(mine=waiting & ~ready, new=NONE))

    # -- the bucket -----------------------------------------------------------------------------

    def _sent(self, s: State, a: Actor, expected: int | None = None) -> State:
        put = (s.head if expected is None else expected, a.new)
        return moved(self._flying(s._replace(sent=s.sent + 1), (*s.flight, put)), a)

    @staticmethod
    def _fresh(s: State, make: Callable[[int], int]) -> int:
        """A version like no other that is still of interest; small numbers do for random ids."""
        used = {s.head, *(new for _, new in s.flight), *(a.new for a in s.actors), *(p.mark for p in s.places)}
        return next(new for new in map(make, range(len(used) + 1)) if new not in used)

    def _flying(self, s: State, flight: tuple[tuple[int, int], ...]) -> State:
        """Without the PUTs that cannot land any more, since an ETag never comes back (rule 8)."""
        kept = (each for each in flight if each[0] == s.head or self.mutant == "release deletes the head")
        return s._replace(flight=tuple(sorted(kept)))

    def _landed(self, s: State, put: tuple[int, int]) -> State:
        """A PUT meets its condition: what must be true of every next version of a head."""
        t, new, old = self.t, self.t.heads[put[1]], s.head
        if new.epoch < s.top or (old == NONE and new.epoch == s.top):
            raise Violation("an epoch falls, or begins again")
        if old != NONE:
            before = t.heads[old]
            assert new.rev == before.rev + 1
            if new.epoch == before.epoch and (new.lease.inc, new.lease.dir) != (before.lease.inc, before.lease.dir):
                raise Violation("two incarnations have one epoch")
            if not t.starts(t.log_of[old], t.log_of[put[1]]):
                raise Violation("a head does not go on from the one before it")
        lines = t.logs[t.log_of[put[1]]].lines
        if any(one[0] > two[0] for one, two in pairwise(lines)) or (lines and lines[-1][0] > new.epoch):
            raise Violation("epochs fall along the log")
        if any(lines[each.last :] and lines[each.last][0] <= each.e for each in new.epochs):
            raise Violation("a record of an epoch is above where the head says that it ended")
        if s.durable != NONE and not t.starts(s.durable, t.log_of[put[1]]):
            raise Violation("what was called durable is not in a later head")
        if self._uids(put[1]) & frozenset(bits(s.declared)):
            raise Violation("what was declared never executed is in a later head")
        self._not_dropped(s, put[1])
        s = s._replace(head=put[1], top=new.epoch)
        if new.state == "released" and self.mutant == "release deletes the head":
            s = s._replace(head=NONE, places=tuple(each._replace(mark=NONE) for each in s.places))  # type: ignore[arg-type]
        flight = tuple(each for each in s.flight if each != put)
        return self._flying(s._replace(declared=s.declared | self._declared(s)), flight)

    def _not_dropped(self, s: State, head: int) -> None:
        """A record that lands under an epoch is still in the log of whoever has that epoch."""
        seen = self.t.heads[head]
        for each in s.actors if not s.copied else ():
            log = s.places[each.place].log
            same = (each.epoch, incarnation(each.inc)) == (seen.epoch, seen.lease.inc)
            if same and self.t.common(log, self.t.log_of[head]) < seen.last:
                raise Violation("a record that its own directory has dropped is in the head")

    def _uids(self, head: int) -> frozenset[int]:
        return frozenset(uid for _, _, uid in self.t.logs[self.t.log_of[head]].lines if uid != NONE)

    def _declared(self, s: State) -> int:
        """What anybody who reads this head may call never executed, by the real rule."""
        if s.head == NONE:
            return 0
        on_chain = all(
            each.mark == NONE or self.t.starts(self.t.log_of[each.mark], self.t.log_of[s.head]) for each in s.places
        )
        there, found = self._uids(s.head), 0
        for uid, (lsn, epoch) in enumerate(s.intents):
            if uid not in there and self._proven(s.head, lsn, epoch, on_chain):
                if s.ran >> uid & 1:
                    raise Violation("what was executed is declared never executed")
                found |= 1 << uid
        return found

    def _never_executed(self, head: int, lsn: int, epoch: int, on_chain: bool) -> bool:
        seen, intent = self.t.heads[head], {"status": "started", "ship": "barrier"}
        return protocol.never_executed(intent, seen, lsn=lsn, epoch=epoch, lineage=seen.lineage, on_chain=on_chain)

    # -- parts ----------------------------------------------------------------------------------

    def _copy(self, s: State, clones: tuple[Actor, ...]) -> State:
        """B becomes a copy of A; whatever ran in B is gone."""
        gone = tuple(each for each in s.actors if each.place == 0)
        s = s._replace(places=(s.places[0], s.places[0]), copied=True, actors=gone)
        for clone in clones:
            s = moved(s, clone)
        return s

    @staticmethod
    def _no_trouble(verdict: object) -> None:
        if isinstance(verdict, Trouble):
            raise Violation(f"trouble is reported where there is none: {verdict.kind}")


_UNGRANTED = ("a copied directory goes on under the same epoch", "an epoch is granted without the bucket")


def check(config: Config | None = None, mutant: str = "") -> Found[State]:
    """Search one configuration, whole or with a rule taken out."""
    model = Model(config or NEEDS.get(mutant) or Config(intents=1), mutant)
    return search(model.start(), model.steps)


def report(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: list[str]) -> int:
    full = Config(puts=4, intents=1) if "--full" in arguments else None
    for mutant in ("", *MUTANTS):
        began = time.perf_counter()
        found = check(full if not mutant else None, mutant)
        took = time.perf_counter() - began
        report(f"{mutant or 'the protocol'}: {found.states:,} states, {took:.1f} s")
        for number, label in enumerate(found.trace, 1):
            report(f"  {number}. {label}")
        report(f"  {found.problem or 'no violation'}")
        if bool(found.problem) != bool(mutant):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
