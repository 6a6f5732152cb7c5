"""Who asks: the token of a request, looked up in Redis and remembered for some seconds."""

import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from common.http.answers import Header
from penstock.base.keys import Keys
from penstock.core.raw_connection import Command
from penstock.core.tokens import Token, digest_of
from penstock.core.wire import Reply

CACHE_SECONDS: Final = 5.0
MOST: Final = 10_000
BEARER: Final = re.compile(r"bearer +(pst_[A-Za-z0-9_-]{20,200})", re.IGNORECASE).fullmatch
Fetch = Callable[[Command, Reply], bool]
"""Sends a command whose reply goes to the second argument; returns False if it cannot be sent."""


class Verdict(NamedTuple):
    """``status`` is 200 for a token with the right, else 401, 403 or, if the server is away, 503."""

    status: int
    owner: str = ""
    service: str = ""
    """The only service that it is for; empty: any."""


class Tokens:
    """Checks that requests show a token with one of some rights; a token that is unknown is remembered, too."""

    def __init__(self, keys: Keys, right: str, fetch: Fetch) -> None:
        self._keys, self._rights, self._fetch = keys, (right,), fetch
        self._known: dict[str, tuple[float, Token | None]] = {}
        """By digest: until when (monotonic) what is known of a token."""

    def check(self, headers: list[Header], then: Callable[[Verdict], None], rights: tuple[str, ...] = ()) -> None:
        """Call ``then``, at once or once the server has replied, with what a request with ``headers`` may do.

        It needs one of ``rights``, by default the right of the service.
        """
        rights = rights or self._rights
        given = [value for name, value in headers if name == b"authorization"]
        found = BEARER(given[0].decode("latin-1")) if len(given) == 1 else None
        if found is None:
            then(Verdict(401))
            return
        digest = digest_of(found[1])
        until, token = self._known.get(digest, (0.0, None))
        if until > time.monotonic():
            then(_verdict(token, rights))
            return
        reply = Reply(lambda reply: self._looked_up(digest, reply, then, rights))
        if not self._fetch(("HGETALL", self._keys.token(digest)), reply):
            then(Verdict(503))

    def _looked_up(self, digest: str, reply: Reply, then: Callable[[Verdict], None], rights: tuple[str, ...]) -> None:
        if reply.error:
            then(Verdict(503))
            return
        words = reply.value()
        token = Token.parse(digest, dict(zip(words[::2], words[1::2], strict=True)))
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[digest] = time.monotonic() + CACHE_SECONDS, token
        then(_verdict(token, rights))


def _verdict(token: Token | None, rights: tuple[str, ...]) -> Verdict:
    if token is None:
        return Verdict(401)
    return Verdict(403 if set(rights).isdisjoint(token.rights) else 200, token.owner, token.service)
