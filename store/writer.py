"""Appending for one actor: fenced, expecting, retried; what all operations of an agent build on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from store.backend import Backend
from store.clock import rfc3339_seconds
from store.errors import Stale
from store.keeper import Keeper
from store.lease import Fence
from store.records import OUTPUT, Draft, Expect, Record
from store.text import check_agent, cut
from store.values import Output, tokens_of
from store.views import View

Drafts = tuple[list[Draft], list[Expect]]

OUTPUT_THRESHOLD = 2000  # tokens; a turn, arguments or a result over it is kept as an output
SUMMARY_BYTES = 200
_TRIES = 200  # of an append whose expectation another one broke; of N contenders the last loses N - 1 times


class Writer:
    """Writes to one agent's log with one keeper's fence.

    Attributes:
        id: the agent's.
        view: everything that can be read of it.
    """

    def __init__(self, backend: Backend, agent: str, keeper: Keeper, *, output_threshold: int) -> None:
        self.id = check_agent(agent)
        self.view = View(backend, self.id)
        self._backend = backend
        self._keeper = keeper
        self._threshold = output_threshold

    def _append(self, attempt: Callable[[], tuple[Sequence[Draft], Sequence[Expect]]]) -> list[Record]:
        """Append what ``attempt`` makes of the present state, and again if that changed meanwhile.

        An attempt that notices the change by itself raises Stale.
        """

        def write(fence: Fence, renew: bool) -> list[Record]:
            left = _TRIES
            while True:
                try:
                    drafts, expected = attempt()
                    if not drafts:
                        return []
                    return self._backend.append(fence, drafts, expected, renew=renew)
                except Stale:
                    left -= 1
                    if not left:
                        raise

        return self._keeper.write(write)

    def _place_text(self, text: str, base: str, tool: str) -> tuple[str, str, Drafts]:
        """Where an action's long text goes: (it, "") in the action, or ("", its ref) and the output that keeps it.

        It never takes the place of an output that is there: an earlier state of the action shows that one.
        """
        if not self._is_large(text):
            return text, "", ([], [])
        ref, free = self._free_ref(lambda number: base if number == 1 else f"{base}-{number}")
        output = Output(ref, text, tool=tool, summary=cut(text, SUMMARY_BYTES))
        return "", ref, ([Draft(OUTPUT, output.body(), name=ref)], [free])

    def _free_ref(self, numbered: Callable[[int], str]) -> tuple[str, Expect]:
        """A ref that no output has, and what that rests on: the first free one, where the numbers have no gap.

        Galloping, then halving: few looks, however many there are.
        """

        def taken(number: int) -> bool:
            return self._backend.newest(self.id, OUTPUT, name=numbered(number)) is not None

        low, high = 0, 1
        while taken(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if taken(middle) else (low, middle)
        return numbered(high), Expect(OUTPUT, 0, name=numbered(high))

    def _is_large(self, text: str) -> bool:
        return self._threshold >= 0 and tokens_of(text) > self._threshold

    def _now(self) -> str:
        return rfc3339_seconds(self._backend.clock.now().wall_us)
