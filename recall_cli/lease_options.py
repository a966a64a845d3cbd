"""The options that the commands share which take a lease and keep it for somebody else: resume, acquire, exec."""

from __future__ import annotations

from typing import Annotated

import typer

Wait = Annotated[
    str, typer.Option("--wait", metavar="DURATION", help="How long to wait while another process holds the lease.")
]
Holder = Annotated[
    str | None, typer.Option("--holder", metavar="NAME", help="The name that others see [default: host:pid:8 hex].")
]
Budget = Annotated[int, typer.Option("--budget", metavar="N", help="The most tokens of the briefing.")]
BriefingFile = Annotated[
    str | None, typer.Option("--briefing-file", metavar="FILE", help="Write the briefing to a file.")
]
