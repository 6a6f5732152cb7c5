"""Responses that a rule gives at once: a static one, or a redirect."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from services.hrouter.expressions import compiled
from services.hrouter.reading import BadRule, known, status, table, text

REDIRECTS: Final = (301, 302, 303, 307, 308)
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header."""
VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""What may be the value of a header: no line end."""
GROUP: Final = re.compile(r"\\(.?)", re.DOTALL)
VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True)
class Response:
    """A response; with ``location`` a redirect, in which ``\\1`` stands for what the first group matched."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    location: str = ""

    def to(self, id: str, path: bytes = b"", expression: str = "") -> bytes:
        """Return the message that answers request ``id``."""
        if not self.location:
            return b'{"id": %b%b' % (json.dumps(id).encode(), self._rest)
        headers = [*self.headers, ("location", self._location(path, expression))]
        return _packed({"id": id, "status": self.status, "headers": headers})

    @cached_property
    def _rest(self) -> bytes:
        body = {"body": self.body} if self.body else {}
        return b", " + _packed({"status": self.status, "headers": self.headers, **body})[1:]

    def _location(self, path: bytes, expression: str) -> str:
        if "\\" not in self.location:
            return self.location
        match = compiled(expression).search(path)

        def group(found: re.Match[str]) -> str:
            part = match.group(int(found[1])) if match else None
            return quote((part or b"").decode("latin-1"), safe=VISIBLE, encoding="latin-1")

        return GROUP.sub(group, self.location)


NOT_FOUND: Final = Response(404, (("content-type", "text/plain"),), "not found\n")
"""The answer to a request that no rule matches."""


def busy(id: str, retry_after: int, breaker: str) -> bytes:
    """Return the message that answers request ``id``, which would wait too long; ``breaker`` is that of its rule.

    ``otherwise`` says what himporter answers in place of it, if it can.
    """
    headers = [("retry-after", str(retry_after)), ("content-type", "text/plain")]
    otherwise = {} if breaker == "refuse" else {"otherwise": breaker}
    return _packed({"id": id, "status": 503, "headers": headers, "body": "too many requests wait\n", **otherwise})


def parse_response(written: object) -> Response:
    """Return what ``respond`` of a rule says. Raise ``BadRule``."""
    if not isinstance(written, dict):
        raise BadRule("respond: expected an object, such as {status: 403, body: 'not here'}")
    known(written, ("status", "headers", "body"), "respond: ")
    headers = tuple(_header(name, value) for name, value in table(written, "headers").items())
    body = text(written, "body", "")
    if body and not any(name == "content-type" for name, _ in headers):
        headers = (*headers, ("content-type", "text/plain; charset=utf-8"))
    return Response(status(written, 200, range(200, 600)), headers, body)


def parse_redirect(written: object, groups: int) -> Response:
    """Return what ``redirect`` of a rule says, whose expression has ``groups`` groups. Raise ``BadRule``."""
    place: Mapping[str, Any] = {"to": written} if isinstance(written, str) else written  # type: ignore[assignment]
    if not isinstance(place, dict):
        raise BadRule("redirect: expected a URL, or an object, such as {to: /new/, status: 308}")
    known(place, ("to", "status"), "redirect: ")
    location = text(place, "to")
    if not location.isascii() or not location.isprintable() or " " in location:
        raise BadRule("redirect: expected a URL: printable ASCII without spaces")
    for number in GROUP.findall(location):
        if not number.isdigit() or int(number) > groups:
            raise BadRule(f"redirect: \\{number} is none of the {groups} groups of path")
    return Response(status(place, 302, REDIRECTS), location=location)


def _header(name: str, value: object) -> tuple[str, str]:
    if not TOKEN.fullmatch(name) or not isinstance(value, str) or not VALUE.fullmatch(value):
        raise BadRule("headers: expected names and texts of HTTP, without line ends")
    return name.lower(), value


def _packed(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode()
