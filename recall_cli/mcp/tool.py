"""What a tool is: its entry in the list, and the check of what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recall_cli.mcp.session import ReadOnly, Session
from store.errors import InvalidInput
from store.text import quoted, shown_number
from store.value import value

_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_CALLED = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list of texts",
    "object": "an object",
}


@value
class Param:
    """One argument.

    Attributes:
        kinds: the JSON types that it may have. The first is declared, since some hosts know no unions; the others are
            taken too. Null is as if left out, unless it is among them.
        choices: the texts that it may be; all if there are none.
        least, most: the bounds of a number.
    """

    name: str
    kinds: tuple[str, ...]
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.kinds[0]}
        if self.kinds[0] == "array":
            schema["items"] = {"type": "string"}
        if self.kinds[0] == "object":
            schema["additionalProperties"] = {"type": "string"}
        limits = {"enum": list(self.choices) or None, "minimum": self.least, "maximum": self.most}
        schema |= {keyword: given for keyword, given in limits.items() if given is not None}
        return schema | {"description": self.about}

    def check(self, given: Any) -> Any:
        """The value as the handler takes it. Raises InvalidInput; what the engine checks anyway is left to it."""
        if isinstance(given, float) and given.is_integer():
            given = int(given)  # JavaScript has no other numbers
        fits = any(isinstance(given, kind) for name in self.kinds for kind in _KINDS[name])
        if not fits or (isinstance(given, bool) and "boolean" not in self.kinds):
            raise InvalidInput(field=self.name, reason=f"must be {_CALLED[self.kinds[0]]}, not {quoted(given)}")
        if self.choices and given not in self.choices:
            raise InvalidInput(field=self.name, reason=f"must be {_or(self.choices)}, not {quoted(given)}")
        if isinstance(given, int) and not self._within(given):
            least = "" if self.least is None else f" from {self.least:,}"
            most = "" if self.most is None else f" to {self.most:,}"
            raise InvalidInput(field=self.name, reason=f"must be{least}{most}, not {shown_number(given)}")
        return given

    def _within(self, number: int) -> bool:
        return (self.least is None or number >= self.least) and (self.most is None or number <= self.most)


def _or(choices: tuple[str, ...]) -> str:
    return ", ".join(choices[:-1]) + " or " + choices[-1]


@value
class Tool:
    """One tool.

    Attributes:
        run: does it: a session and checked arguments in, a JSON value out.
        writes: whether it changes the store; the others are offered by a read-only server too.
        again: whether a second call with the same arguments changes nothing more.
        destroys: whether it takes something out of sight or settles it for good, so that a host may want to ask first.
        of_agent: whether it is a tool of the agent itself, and not of whoever looks after agents.
    """

    name: str
    title: str
    about: str
    params: tuple[Param, ...]
    run: Callable[[Session, dict[str, Any]], Any]
    writes: bool = False
    again: bool = True
    destroys: bool = False
    of_agent: bool = True

    def listed(self) -> dict[str, Any]:
        """Its entry in ``tools/list``."""
        hints = {"readOnlyHint": not self.writes, "destructiveHint": self.destroys, "idempotentHint": self.again}
        schema = {
            "type": "object",
            "properties": {each.name: each.schema() for each in self.params},
            "required": [each.name for each in self.params if each.required],
            "additionalProperties": False,
        }
        return {
            "name": self.name,
            "title": self.title,
            "description": self.about,
            "inputSchema": schema,
            "annotations": {"title": self.title, **hints, "openWorldHint": False},
        }

    def call(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        """Check the arguments and do it. Raises InvalidInput, naming what is wrong, and whatever it raises."""
        if self.writes and not session.write:
            raise ReadOnly(tool=self.name)
        return self.run(session, self._checked(arguments))

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        names = [each.name for each in self.params]
        unknown = [each for each in arguments if each not in names]
        if unknown:
            hint = "it takes " + ", ".join(names)
            raise InvalidInput(field=quoted(unknown[0]), reason=f"is no argument of {self.name}", hint=hint)
        checked = {}
        for each in self.params:
            given = arguments.get(each.name)
            if given is None and "null" not in each.kinds:
                if each.required:
                    raise InvalidInput(field=each.name, reason=f"is missing: {each.about}")
            elif each.name in arguments:
                checked[each.name] = each.check(given)
        return checked
