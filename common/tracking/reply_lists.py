"""Decide which lists may get answers: those that the operator allows, and none that a service uses itself."""

import json
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from common.registered_lists import RegisteredLists
from common.settings.collisions import collision
from common.settings.redaction import quoted
from common.settings.roles import is_pattern
from penstock.inspect.ownership import Ownership
from penstock.keys import Keys
from penstock.tracking.policy import Policy

MOST_NAMES: Final = 1_000
"""Names whose decision is cached."""


class ReplyRules:
    """The rules of ``replyTo`` and ``replyLists`` of one namespace, for mdispatch and monitors alike."""

    def __init__(self, keys: Keys, policy: Policy, directory: RegisteredLists) -> None:
        self._keys, self._allowed, self._directory = keys, policy.reply_lists, directory
        self._ownership = Ownership({})
        self.lasting = tuple(filter(None, (policy.reply_to, *(name for name in self._allowed if not is_pattern(name)))))
        """The lists that the operator has named; they never get a TTL."""
        self._patterns = tuple(filter(is_pattern, self._allowed))
        self._pendings = (policy.pending, f"{policy.pending}:answers")
        self._own = {policy.source, policy.out, policy.done, policy.res, *self._pendings, keys.dead}
        self.refusal = lru_cache(MOST_NAMES)(self._refusal)
        """Return why a list gets no answer; None if it may get one."""

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
