"""Decide which lists may get answers: those that the operator allows, and none that a service uses itself."""

import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Self

from common.registered_lists import RegisteredLists
from common.settings.collisions import collision
from common.settings.redaction import quoted
from common.settings.roles import is_pattern
from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.inspect.ownership import Ownership
from penstock.tracking.policy import Policy

MOST_NAMES: Final = 1_000
"""Names whose decision is cached."""


class ReplyRules:
    """The rules of ``replyTo`` and ``replyLists`` of one namespace, for all services that answer."""

    def __init__(
        self,
        keys: Keys,
        allowed: Sequence[str],
        own: Iterable[str],
        pendings: Sequence[str],
        directory: RegisteredLists,
        reply_to: str = "",
    ) -> None:
        """``allowed`` are names and patterns, ``own`` the service's own lists, ``pendings`` the bases of pending lists.

        ``reply_to`` gets the answers of requests that name no list.
        """
        self._keys, self._allowed, self._directory = keys, allowed, directory
        self._ownership = Ownership({})
        self.lasting = tuple(filter(None, (reply_to, *(name for name in allowed if not is_pattern(name)))))
        """The lists that the operator has named; they never get a TTL."""
        self._patterns = tuple(filter(is_pattern, allowed))
        self._pendings = pendings
        self._own = {*own, *pendings, keys.dead}
        self.refusal = lru_cache(MOST_NAMES)(self._refusal)
        """Return why a list gets no answer; None if it may get one."""

    @classmethod
    def of(cls, keys: Keys, policy: Policy, directory: RegisteredLists) -> Self:
        """Return the rules of the mdispatch that has published ``policy``, for itself and for monitors."""
        own = policy.source, policy.out, policy.done, policy.res
        pendings = policy.pending, f"{policy.pending}:answers"
        return cls(keys, policy.reply_lists, own, pendings, directory, policy.reply_to)

    @property
    def lasting_words(self) -> str:
        """Return ``lasting`` as JSON, for scripts."""
        return json.dumps(self.lasting, ensure_ascii=False)

    async def refresh(self) -> None:
        """Read what other services have registered, unless that was done within ``STALE`` seconds."""
        ownership = await self._directory.read()
        if ownership:
            self._ownership = ownership
            self.refusal.cache_clear()

    def _refusal(self, name: str) -> str | None:
        try:
            encoded(name)
        except UnicodeEncodeError:
            return f"{quoted(name)} has a character that no name of a list has"
        if name in self._own:
            return f"{quoted(name)} is a list of the service itself"
        for pending in self._pendings:
            if reason := collision(name, pending, self._keys.namespace):
                return reason
        named = name in self.lasting
        if named or any(fnmatchcase(name, pattern) for pattern in self._patterns):
            whose = self._ownership.owner_of(name, self._keys.namespace, kept=named)
            return f"{quoted(name)} is {whose}: expected a list for answers" if whose else None
        allowed = ", ".join(map(quoted, self._allowed))
        return f"{quoted(name)} matches nothing in replyLists: expected {allowed}, or have the operator add it there"
