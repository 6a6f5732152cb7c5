"""The rules in force, compiled: find the first one that matches a request."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from services.hrouter.expressions import compiled, compiled_set
from services.hrouter.request import Request
from services.hrouter.rule import Rule

MAX_KNOWN: Final = 10_000
"""Paths whose rule is remembered: looking one up costs a tenth of a match."""
MAX_KNOWN_BYTES: Final = 200
"""Longest path that is remembered."""
MAX_HOST: Final = 255
"""Characters; a longer host is no name."""
PORT: Final = re.compile(r":\d*\Z")
Matches = Callable[[bytes], Sequence[int] | None]
"""Return the places of all rules of a set whose expression matches a path, in any order; None if none does."""


class Table:
    """One RE2 set for the rules of all hosts, and one for each host that rules name.

    A set returns all rules whose expression matches, at one pass over the path. The other conditions are checked for
    these alone, in order. Raise ``BadExpression`` if the rules take too much memory together.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rule for rule in rules if not rule.disabled)
        self.reads_requests = any(rule.methods or rule.hosts or rule.headers for rule in self.rules)
        """Whether any rule asks for more than the path."""
        self._plain = [not rule.methods and not rule.headers for rule in self.rules]
        by_host: dict[str, list[int]] = {}
        for place, rule in enumerate(self.rules):
            for host in dict.fromkeys(rule.hosts) or ("",):
                by_host.setdefault(host, []).append(place)
        self._hosts = {host: self._compiled(places) for host, places in by_host.items()}
        self._matching: Matches = self._hosts.pop("", _nothing)
        self._known: dict[bytes, Rule | None] = {}
        self._headers = {pair: compiled(pair[1]).search for rule in self.rules for pair in rule.headers}

    def _compiled(self, places: list[int]) -> Matches:
        match = compiled_set([self.rules[place].expression for place in places])
        if len(places) == len(self.rules):
            return match
        return lambda path: [places[each] for each in match(path) or ()]

    def by_path(self, path: bytes) -> Rule | None:
        """Return the first rule that matches; None if none does. Only if ``reads_requests`` is False."""
        if path in self._known:
            return self._known[path]
        found = self._matching(path)
        rule = self.rules[min(found)] if found else None
        if len(path) <= MAX_KNOWN_BYTES:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[path] = rule
        return rule

    def find(self, request: Request) -> Rule | None:
        """Return the first rule that matches; None if none does."""
        found = [*(self._matching(request.path) or ()), *self._of_host(request)]
        for place in sorted({*found}):
            if self._plain[place] or self._admits(self.rules[place], request):
                return self.rules[place]
        return None

    def _of_host(self, request: Request) -> list[int]:
        if not self._hosts:
            return []
        host = next((value for name, value in request.headers if name == "host"), "")
        host = PORT.sub("", host.lower()).removesuffix(".")
        if len(host) > MAX_HOST:
            return []
        labels = host.split(".")
        names = [host, *("*." + ".".join(labels[place:]) for place in range(1, len(labels)))]
        sets = (self._hosts[name] for name in names if name in self._hosts)
        return [place for matching in sets for place in matching(request.path) or ()]

    def _admits(self, rule: Rule, request: Request) -> bool:
        if rule.methods and request.method not in rule.methods:
            return False
        return all(self._has(request, name, expression) for name, expression in rule.headers)

    def _has(self, request: Request, name: str, expression: str) -> bool:
        search = self._headers[name, expression]
        return any(search(value.encode("latin-1", "replace")) for each, value in request.headers if each == name)


def _nothing(path: bytes) -> None:
    return None
