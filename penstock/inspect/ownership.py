"""Find the owner of a key name: the lists that services registered on a server, and the keys of their namespaces."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, Self

from penstock.base.encoding import decoded
from penstock.base.keys import Keys, pending_of

Roles = Mapping[str, str]
"""The role of each list of a service, by name."""
INSTANCE_SUFFIX: Final = re.compile(re.escape(pending_of("", "")) + "[0-9]+$")


class Ownership:
    """The names that each namespace owns. A look-up takes one step for each colon in the name."""

    def __init__(self, roles: Mapping[str, Roles]) -> None:
        self._keys = {namespace: Keys(namespace) for namespace in roles}
        self._lists = [
            (name, namespace, role) for namespace, lists in sorted(roles.items()) for name, role in lists.items()
        ]
        self._by_name: dict[str, list[tuple[str, str]]] = {}
        for name, namespace, role in self._lists:
            self._by_name.setdefault(name, []).append((namespace, role))

    @classmethod
    def parse(cls, hashes: Iterable[Mapping[bytes, bytes]]) -> Self:
        """Parse what ``registration_of`` wrote, as HGETALL returns it.

        A field that cannot be parsed owns only the keys of its namespace.
        """
        return cls({decoded(name): _roles(words) for fields in hashes for name, words in fields.items()})

    def owner_of(self, name: str, besides: str | None = None, *, kept: bool = False) -> str | None:
        """Return the owner of ``name``, in words; None if it has none except the namespace ``besides``.

        With ``kept``, consider only what other clients must not touch: a service's keys and pending lists.
        """
        for namespace in _prefixes(name):
            keys = self._keys.get(namespace)
            if keys and namespace != besides and keys.owns(name) and not (kept and name == keys.done):
                return f"a key of the service that registered as {namespace!r}"
        for found, role in self._by_name.get(INSTANCE_SUFFIX.sub("", name), ()):
            if found != besides and role == "pending":
                return f"what the service that registered as {found!r} has in hand"
        for found, role in () if kept else self._by_name.get(name, ()):
            if found != besides:
                return f"the list `{role}` of the service that registered as {found!r}"
        return None

    def names(self, besides: str | None = None) -> list[tuple[str, str]]:
        """Return all owned names with their namespace, and an example of each kind of name made on demand."""
        made = [
            (name, namespace)
            for namespace, keys in self._keys.items()
            for name in (*keys.fixed, keys.instance("1"), keys.message("1"), keys.metric("taken"))
        ]
        named = [(name, namespace) for name, namespace, _ in self._lists]
        pending = [(pending_of(name, "1"), namespace) for name, namespace, role in self._lists if role == "pending"]
        return [(name, namespace) for name, namespace in (*named, *pending, *made) if namespace != besides]


def registration_of(lists: Roles, pendings: Iterable[str]) -> str:
    """Return what a service registers, as JSON: its lists, and the base names of its pending lists."""
    return json.dumps({**lists, **dict.fromkeys(pendings, "pending")})


def _roles(words: bytes) -> Roles:
    try:
        return {str(name): str(role) for name, role in json.loads(words).items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _prefixes(name: str) -> Iterable[str]:
    return (name[: place.start()] for place in re.finditer(":", name))
