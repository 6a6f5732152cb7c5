"""Who may use the gateway, and what: the secret, and the names and methods that are allowed."""

import hmac
import re
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Final

from services.gateway.settings import Settings

FIELDS: Final = {
    "queue": "queues",
    "channel": "channels",
    "service": "services",
    "pubsub": "topics",
    "persistify": "objects",
}
"""The setting that lists the names of each type."""
WITHIN: Final = re.compile(r"channel:[^:]*:(?P<channel>.*)|service:(?P<service>.*?)(:replyTo:.*)?", re.DOTALL)
"""The queues of channels and services."""
ALWAYS: Final = frozenset({"on", "once", "promisify", "handled"})
"""Methods that change nothing."""


class Access:
    """What the settings allow."""

    def __init__(self, settings: Settings) -> None:
        self._secrets = [_digest(each) for each in settings.secrets]
        self._names = {type_: getattr(settings, field) for type_, field in FIELDS.items()}
        self._methods = settings.methods
        self._allowed: dict[tuple[str, str, str], bool] = {}

    def place_of(self, secret: str) -> int | None:
        """Return which of the secrets it is, 0 for the newest, None for another; the time does not depend on it."""
        given = _digest(secret)
        same = [hmac.compare_digest(given, each) for each in self._secrets]
        return same.index(True) if True in same else None

    def allows_name(self, type_: str, name: str) -> bool:
        """Return whether a peer may use the object ``name``.

        The queue of a channel or a service is allowed as that is, or by a pattern of ``queues`` that begins so.
        """
        patterns = self._names[type_]
        if type_ == "queue" and (within := WITHIN.fullmatch(name)):
            kind = "service" if within["channel"] is None else "channel"
            if self._names[kind] is not None:
                if self.allows_name(kind, within[kind]):
                    return True
                patterns = [pattern for pattern in patterns or () if pattern.startswith(f"{kind}:")]
        return any(fnmatchcase(name, pattern) for pattern in patterns or ())

    def allows_method(self, type_: str, wire: str, name: str) -> bool:
        """Return whether a peer may call a method of such an object.

        It is allowed by a pattern of its name on the wire, or by its very name in Python, of which one on the wire may
        stand for several.
        """
        known = self._allowed.get((type_, wire, name))
        if known is None:
            names = (wire, f"{type_}.{wire}")
            known = wire in ALWAYS or name in self._methods or f"{type_}.{name}" in self._methods
            known = known or any(fnmatchcase(each, pattern) for pattern in self._methods for each in names)
            self._allowed[type_, wire, name] = known
        return known


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogatepass")).digest()
