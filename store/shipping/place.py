"""A remote's own object, ``recall.json``, and which agents there are below a prefix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from store.clock import Clock, Random, rfc3339_seconds
from store.errors import InvalidInput
from store.remote_errors import RemoteForeign, RemoteNewer, RemoteUnreachable
from store.shipping.bucket import Bucket, Dialect, Location
from store.text import check_agent, quoted
from store.value import value

NAME = "recall.json"
FORMAT = "recall.remote/1"
_READER = 1
_ID = re.compile(r"[0-9a-f]{32}")
_MANY = 100  # objects of one agent in a listing, from which the rest of its are passed over


@value
class Place:
    """What ``recall.json`` says.

    Attributes:
        id: the remote's; each head names it.
        dialect: how its store was found to speak when it was made.
        made: it was made by this very call.
        expiration: of the object's answer: a lifecycle rule that will delete it, or "".
    """

    id: str
    dialect: Dialect
    made: bool = False
    expiration: str = ""


def find(bucket: Bucket) -> Place | None:
    """What is at the prefix; None if nothing of Recall is.

    Raises:
        RemoteForeign, RemoteNewer: it is of something else, or of a newer Recall.
        RemoteUnreachable, RemoteRefused.
    """
    found = bucket.get(NAME)
    if found is None:
        return None
    try:
        document: Any = json.loads(found.body)
        said = document["format"]
        if said != FORMAT and isinstance(said, str) and said.startswith("recall.remote/"):
            raise RemoteNewer(what=f"remote {bucket.name}", found=quoted(said))
        if said != FORMAT or not _ID.fullmatch(document["store"]):
            raise ValueError
        if document["min_reader"] > _READER:
            raise RemoteNewer(what=f"remote {bucket.name}", found=f"a place for version {document['min_reader']}")
        dialect = Dialect.from_json(json.dumps(document["dialect"]))
    except (ValueError, LookupError, TypeError, RecursionError, InvalidInput):
        raise RemoteForeign(remote=bucket.name, reason=f"its {NAME} is not one of recall's") from None
    return Place(document["store"], dialect, expiration=found.expiration)


def find_or_make(bucket: Bucket, location: Location, dialect: Dialect, clock: Clock, random: Random) -> Place:
    """What is at the prefix; made if nothing is.

    Raises:
        RemoteForeign: there are objects of something else, or agents without their ``recall.json``.
        RemoteNewer, RemoteUnreachable, RemoteRefused.
    """
    place = find(bucket)
    if place is not None:
        return place
    strange = next((each.key for each in bucket.list("") if not each.key.startswith("probe/")), None)
    if strange is not None and strange != NAME:
        reason = f"there is {quoted(strange)}, and no {NAME}"
        hint = f"put {NAME} back, from a version or a copy of it" if strange.startswith("agents/") else ""
        raise RemoteForeign(remote=bucket.name, reason=reason, hint=hint)
    own = random.hex(32)
    document = {
        "format": FORMAT,
        "min_reader": 1,
        "store": own,
        "bucket": location.bucket,
        "region": location.region,
        "endpoint": location.endpoint_url,
        "dialect": json.loads(dialect.to_json()),
        "created": rfc3339_seconds(clock.now().wall_us),
    }
    bucket.create(NAME, json.dumps(document, indent=1).encode())
    place = find(bucket)  # somebody else may have been faster, and an answer may have been lost
    if place is None:
        raise RemoteUnreachable(remote=bucket.name, reason=f"{NAME} was written, and a read does not show it")
    return Place(place.id, place.dialect, place.id == own, place.expiration)


def agents_in(bucket: Bucket) -> Iterator[str]:
    """The agents below a prefix, by id; the many objects of one are not listed to their end."""
    agent, count, after = "", 0, ""
    while True:
        for each in bucket.list("agents/", after):
            name = each.key.split("/")[1]
            if name != agent:
                agent, count = name, 0
                if _is_agent(agent):
                    yield agent
            count += 1
            if count > _MANY:
                after = f"agents/{agent}0"  # "0" follows "/"
                break
        else:
            return


def _is_agent(name: str) -> bool:
    try:
        check_agent(name)
    except InvalidInput:
        return False
    return True
