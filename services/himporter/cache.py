"""Which requests have pages that are kept, what they are named by, and how they are cleared."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import quote_from_bytes

from common.http.access import Access
from common.http.answers import Header
from common.http.direct import Exchange
from common.http.message import Answer
from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.core.wire import Reply
from services.himporter.bridge import Bridge
from services.himporter.settings import Settings

READS: Final = ("GET", "HEAD")
SAFE: Final = frozenset({*READS, "OPTIONS", "TRACE"})
"""Methods that change nothing."""
MAX_TARGET: Final = 1_024
"""Characters of a path and query beyond which its page is not kept."""
FORWARDED: Final = frozenset({b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto"})
"""Headers of a trusted proxy that a page may depend on."""
LUA: Final = Path(__file__).parent / "lua"
_clear: Final = Script.read(LUA / "clear.lua")


class Cache:
    """The pages of one namespace."""

    def __init__(self, settings: Settings, keys: Keys, bridge: Bridge, access: Access) -> None:
        self.settings, self.keys, self.bridge, self.count = settings, keys, bridge, access.count
        self._rules = settings.cache_rules

    def seconds_for(self, exchange: Exchange) -> int:
        """Return for how long (s) the page of a request is kept if it does not say so itself; 0 if never."""
        for pattern, seconds in self._rules:
            if fnmatchcase(exchange.path, pattern):
                return seconds if len(exchange.path) + len(exchange.query) <= MAX_TARGET else 0
        return 0

    def clear(self, pages: Sequence[str | bytes], then: Callable[[Reply], None] = lambda _: None) -> bool:
        """Clear ``pages``; return False if the server is away."""
        return self.bridge.call(_clear, then, pages=self.keys.pages, cleared=pages)

    def clear_after(self, exchange: Exchange, headers: list[Header], answer: Answer, then: Callable[[], None]) -> None:
        """Call ``then`` once what ``exchange`` has changed, judging by its ``answer``, is cleared."""
        pages = [self.keys.page(name_of(method, exchange, headers)) for method in READS]
        if exchange.method in SAFE or answer.status >= 400 or not self.clear(pages, lambda _: then()):
            then()


def name_of(method: str, exchange: Exchange, headers: list[Header]) -> str:
    """Return what a page is named by: method, host, path and query, and what a trusted proxy says of these."""
    host = more = ""
    for name, value in headers:
        if name == b"host":
            host = value.decode("latin-1").lower()
        elif name in FORWARDED:
            more += f" {name.decode()}={quote_from_bytes(value, safe=':')}"
    query = f"?{exchange.query}" if exchange.query else ""
    return f"{method} {host}{exchange.path}{query}{more}"
