"""The actions of records that were set aside: listed, and counted where others are listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from recall_cli.evidence import collected, row
from recall_cli.options import Globals
from recall_cli.pending import Filter
from store.backends.sqlite import SqliteBackend
from store.views import View


def listed(
    backend: SqliteBackend, agents: Iterable[str], wanted: Filter, *, remote: bool, only_open: bool
) -> Iterator[dict[str, Any]]:
    """Rows of the actions of agents that were set aside and are ``wanted``, by agent and number."""
    now = backend.clock.now()
    for agent in agents:
        view = View(backend, agent)
        for each in sorted(collected(backend, agent, remote=remote), key=lambda one: (one.action.seq, one.lsn)):
            if wanted.lets(view, each.action, now) and (each.action.open or not only_open):
                yield row(each) | {"still_running": None, "may_run_until": None, "may_run_on": None}


def tell(here: Globals, backend: SqliteBackend, agents: Iterable[str]) -> None:
    """Say on stderr how many actions of each agent the log no longer has."""
    for agent in agents:
        lost = {each.action.key for each in collected(backend, agent, remote=False) if not each.in_log}
        if lost:
            which = "1 action was" if len(lost) == 1 else f"{len(lost):,} actions were"
            here.out.message(f"{which} set aside: recall actions list {agent} --set-aside")
