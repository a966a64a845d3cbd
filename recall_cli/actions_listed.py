"""``recall actions list``: the actions of one agent or all, of the log or set aside."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from recall_cli.actions_shown import ASIDE_COLUMNS, as_row, columns, for_people
from recall_cli.look import counted, every_lease
from recall_cli.options import Globals
from recall_cli.pending import Filter, every, pending
from recall_cli.session import reading, require


def shown_as_list(
    here: Globals,
    agent: str,
    wanted: Filter,
    most: int | None,
    *,
    only_open: bool,
    set_aside: bool,
    remote: bool,
) -> bool:
    """Print those that are wanted; whether there was one.

    Args:
        agent: "" for all.
        most: of so many.
        set_aside: those that no log goes through any more, instead of the log's.
        remote: with ``set_aside``: also what other machines left in the bucket.
    """
    count = 0

    with reading(here) as backend:
        if agent and not remote:
            require(backend, agent)
        now = backend.clock.now()
        if set_aside:
            from recall_cli.aside_actions import listed

            names = [agent] if agent else [each.agent for each in every_lease(backend)]
            shown = islice(listed(backend, names, wanted, remote=remote, only_open=only_open), most)
            aside_rows = counted(each if here.out.structured else each | for_people(each, now) for each in shown)
            here.out.table([*columns(here.out.terminal), *ASIDE_COLUMNS], aside_rows, empty="no actions were set aside")
            return aside_rows.count > 0
        found = (pending if only_open else every)(backend, agent, wanted)

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal count
            for view, action in islice(found, most):
                count += 1
                row = as_row(view, action)
                yield row if here.out.structured else row | for_people(row, now)

        here.out.table(columns(here.out.terminal), rows(), empty="no actions")
        if branched := [each for each in backend.agents_branched() if agent in ("", each)]:
            from recall_cli.aside_actions import tell

            tell(here, backend, branched)
    return count > 0
