"""A rule: which requests it is for, and where they go or what they are answered."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from penstock.base.urls import is_url
from services.hrouter.expressions import beginning_of, compiled, escaped
from services.hrouter.reading import BadRule, flag, known, names, table, text
from services.hrouter.response import Response, parse_redirect, parse_response

PROPERTIES: Final = (
    *("name", "disabled", "match", "prefix", "path", "method", "host", "header"),
    *("to", "retry", "breaker", "waits", "respond", "redirect"),
)
PATHS: Final = ("match", "prefix", "path")
ENDS: Final = ("to", "respond", "redirect")
BREAKERS: Final = ("refuse", "cached", "accept")
"""What becomes of a request that would wait beyond its deadline: 503, the cached page, or 202."""


@dataclass(frozen=True)
class Rule:
    """One rule; an empty condition admits everything."""

    expression: str
    """Searched in the path."""
    methods: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    """Names in lower case; ``*.example.org`` is any name below that one."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case, each with an expression that one of its values must match."""
    to: str = ""
    """The list that requests go to; empty if they are answered."""
    response: Response | None = None
    name: str = ""
    disabled: bool = False
    breaker: str = ""
    """One of ``BREAKERS``, or empty: then a request goes to ``to`` however long it waits there."""
    waits: tuple[str, ...] = ()
    """Lists behind ``to`` through which its requests go, too."""

    @classmethod
    def parse(cls, written: object) -> "Rule":
        """Return the rule that ``written`` describes. Raise ``BadRule`` with the first thing that is wrong."""
        if not isinstance(written, dict):
            raise BadRule("expected an object, such as {prefix: /api/, to: web:api}")
        known(written, PROPERTIES)
        _one_of(written, PATHS)
        end = _one_of(written, ENDS)
        rule = cls(
            _expression(written),
            frozenset(_method(name) for name in names(written, "method")),
            tuple(_host(name) for name in names(written, "host")),
            tuple(_header(name, expression) for name, expression in table(written, "header").items()),
            _list_of(written) if end == "to" else "",
            parse_response(written["respond"]) if end == "respond" else None,
            text(written, "name", ""),
            flag(written, "disabled") or False,
            *_breaker(written, end),
        )
        if end == "redirect":
            return replace(rule, response=parse_redirect(written["redirect"], compiled(rule.expression).groups))
        return rule

    @cached_property
    def beginning(self) -> tuple[str, bool]:
        """See ``beginning_of``."""
        return beginning_of(self.expression)

    def __str__(self) -> str:
        return self.name or self.expression or "match: all"


def _one_of(written: Mapping[str, object], choices: tuple[str, ...]) -> str:
    found = [name for name in choices if name in written]
    if len(found) != 1:
        stated = " and ".join(found) or "none"
        raise BadRule(f"expected one of {', '.join(choices)}, found {stated}")
    return found[0]


def _expression(written: Mapping[str, object]) -> str:
    if "match" in written:
        if written["match"] != "all":
            raise BadRule("match: expected all; write an expression as path, a literal as prefix")
        return ""
    if "prefix" in written:
        prefix = text(written, "prefix")
        if not prefix.startswith("/"):
            raise BadRule("prefix: expected a text that begins with /")
        expression = escaped(prefix)
    else:
        expression = text(written, "path")
    try:
        compiled(expression)
    except ValueError as error:
        raise BadRule(f"{'prefix' if 'prefix' in written else 'path'}: {error}") from None
    return expression


def _method(name: str) -> str:
    if not name.isascii() or not name.isalpha():
        raise BadRule("method: expected names such as GET")
    return name.upper()


def _host(name: str) -> str:
    plain = name.removeprefix("*.")
    if not plain or "*" in plain or "/" in plain or plain.rpartition(":")[2].isdigit():
        raise BadRule("host: expected a name without a port, such as example.org, or *.example.org")
    return name.lower()


def _header(name: str, expression: object) -> tuple[str, str]:
    if not isinstance(expression, str):
        raise BadRule(f"header {name}: expected an expression, in quotes")
    try:
        compiled(expression)
    except ValueError as error:
        raise BadRule(f"header {name}: {error}") from None
    return name.lower(), expression


def _breaker(written: Mapping[str, object], end: str) -> tuple[str, tuple[str, ...]]:
    """Return ``breaker`` and ``waits`` of a rule with the end ``end``."""
    name, waits = text(written, "breaker", ""), tuple(names(written, "waits"))
    for each in ("retry", "breaker"):
        if each in written and end != "to":
            raise BadRule(f"{each}: has no effect with {end}: expected it beside to")
    if "breaker" in written and name not in BREAKERS:
        raise BadRule(f"breaker: expected {' | '.join(BREAKERS)}")
    if waits and not name:
        raise BadRule("waits: has no effect without breaker")
    for each in waits:
        _check_here("waits", each, "hrouter reads the length of no other")
    return name, waits


def _check_here(name: str, value: str, remedy: str) -> None:
    if is_url(value):
        raise BadRule(f"{name}: expected the name of a list on the same server, found a URL: {remedy}")


def _list_of(written: Mapping[str, object]) -> str:
    """Return the list of the rule; what later hops must know of its requests is in the list's name."""
    name = text(written, "to")
    _check_here("to", name, "use vpush to deliver to another")
    return name + {None: "", True: ":retry", False: ":once"}[flag(written, "retry")]
