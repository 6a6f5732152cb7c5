"""Methods of objects that are called over a wire: each is a row, and every face of the object reads it.

Those that are a call and its answer, and nothing else, stand at the head of their type's file, in an interface: a
class of methods with signature and docstring, and without a body. The local class implements it, so that a type checker
compares the two; the one at another site has them made from the rows, and so has what serves the object to others::

    class QueueMethods:
        @method("count", early=False)
        async def count(self) -> int:
            \"\"\"Return how many messages wait.\"\"\"

What opens, ends, hands out or takes many at once is written for each face; there the row says the rest.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar, get_type_hints

from penstock.base.errors import Refused, WrongCall

MAX_DIGITS: Final = 16
Method = TypeVar("Method", bound=Callable[..., Any])


class Kind(NamedTuple):
    """How values of a type go over the wire: ``sent`` makes one JSON; ``taken`` reads it, or raises ``ValueError``."""

    name: str
    """What is expected, for errors: ``a whole number``."""
    sent: Callable[[Any], Any]
    taken: Callable[[Any], Any]


def _is(*types: type) -> Callable[[Any], Any]:
    def taken(value: Any) -> Any:
        if type(value) not in types:
            raise ValueError
        return value

    return taken


def _number(value: Any) -> int:
    """Read a whole number such as 5 or 5.0, which Node's server may give as text."""
    is_text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
    if is_text or (type(value) in (int, float) and value == int(value)):
        return int(value)
    raise ValueError


def _number_or_none(value: Any) -> int | None:
    return None if value is None else _number(value)


def _texts(value: Any) -> dict[str, str]:
    """Read texts by name, for which Node's server gives null if there are none."""
    return {} if value is None else _is(dict)(value)


def _same(value: Any) -> Any:
    return value


KINDS: Final[Mapping[Any, Kind]] = {
    type(None): Kind("nothing", _same, lambda _: None),
    bool: Kind("true or false", _same, bool),
    int: Kind("a whole number", _same, _number),
    int | None: Kind("a whole number, or nothing", _same, _number_or_none),
    str: Kind("text", _same, _is(str)),
    str | None: Kind("text, or nothing", _same, _is(str, type(None))),
    dict[str, str]: Kind("texts by name", _same, _texts),
}
"""Those of the types that rows take and give; a row names another one by ``gives``."""


class Facts(NamedTuple):
    """Facts of a method that its signature does not show."""

    wire: str
    """Its name on the wire."""
    also: tuple[str, ...] = ()
    """Further names."""
    again: bool = True
    """Whether it may run twice: then it is called again if its answer was lost."""
    early: bool = True
    """Whether a server of Node's survives it before the object was opened."""
    since: int = 0
    """The first version of a gateway that has it; 0 is Node's server."""
    gives: Kind | None = None
    """How its result goes over the wire, if its type does not tell."""
    plain: bool = True
    """Whether it is a call and its answer, and nothing else."""


@dataclass(frozen=True)
class Row:
    """A method of an object, as all its faces see it; without signature and kinds unless it is plain."""

    name: str
    facts: Facts
    signature: inspect.Signature
    takes: Mapping[str, Kind]
    gives: Kind

    def sent(self, *values: Any, **named: Any) -> list[Any]:
        """Return the arguments of a call as they are sent. Raise ``TypeError`` if they are not those of the method."""
        try:
            bound = self.signature.bind(*values, **named)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        return [self.takes[name].sent(value) for name, value in bound.arguments.items()]

    def taken(self, values: Sequence[Any]) -> list[Any]:
        """Return arguments that have come. Raise ``WrongCall`` if they are not those of the method."""
        found = list[Any]()
        for place, (name, parameter) in enumerate(self.signature.parameters.items()):
            value = values[place] if place < len(values) else parameter.default
            try:
                found.append(self.takes[name].taken(value))
            except (ValueError, TypeError, OverflowError):
                shown = "none" if value is parameter.empty else repr(value)[:100]
                raise WrongCall(f"{self.facts.wire}: {name}: expected {self.takes[name].name}, found {shown}") from None
        return found

    def given(self, value: Any) -> Any:
        """Return a result that has come. Raise ``Refused`` if it is none of the method's."""
        try:
            return self.gives.taken(value)
        except (ValueError, TypeError, LookupError):
            raise Refused(f"{self.facts.wire}: expected {self.gives.name}, found {repr(value)[:100]}") from None


class Calling(Protocol):
    """An object at another site."""

    async def call(self, method: str, *values: Any) -> Any:
        """Call a method by its name on the wire, and return what it gives."""


def method(wire: str, **facts: Any) -> Callable[[Method], Method]:
    """Make a method of an interface a row: ``facts`` are the fields of ``Facts``."""

    def marked(found: Method) -> Method:
        vars(found)["row"] = Facts(wire, **facts)
        return found

    return marked


@cache
def rows_of(interface: type) -> Mapping[str, Row]:
    """Return the rows of an interface by the names of its methods."""
    return MappingProxyType(
        {
            name: _row(name, found, facts)
            for each in reversed(interface.__mro__)
            for name, found in vars(each).items()
            if (facts := getattr(found.fget if isinstance(found, property) else found, "row", None))
        }
    )


@cache
def wires_of(interface: type) -> Mapping[str, Row]:
    """Return the rows by their names on the wire; several methods may share one."""
    rows = rows_of(interface).values()
    return MappingProxyType({wire: row for row in rows for wire in (row.facts.wire, *row.facts.also)})


def relays(interface: type) -> Callable[[type], type]:
    """Give a class at another site the plain methods of ``interface`` that it does not write itself."""

    def filled(cls: type) -> type:
        for name, row in rows_of(interface).items():
            if row.facts.plain and name not in vars(cls):
                setattr(cls, name, _relay(row, vars(interface)[name]))
        return cls

    return filled


def _row(name: str, found: Any, facts: Facts) -> Row:
    if not facts.plain:
        return Row(name, facts, inspect.Signature(), {}, KINDS[type(None)])
    signature, hints = inspect.signature(found), get_type_hints(found)
    parameters = [*signature.parameters.values()][1:]
    takes = {each.name: KINDS[hints[each.name]] for each in parameters}
    return Row(name, facts, signature.replace(parameters=parameters), takes, facts.gives or KINDS[hints["return"]])


def _relay(row: Row, written: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(written)
    async def call(self: Calling, *values: Any, **named: Any) -> Any:
        return row.given(await self.call(row.facts.wire, *row.sent(*values, **named)))

    return call
