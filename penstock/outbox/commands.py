"""What an outbox asks another for about its subscriptions there: a message whose key is the verb."""

import json
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import WrongCall
from penstock.outbox import wire
from penstock.outbox.frames import MAX_KEYS_BYTES
from penstock.outbox.store import SEPARATOR

SUBSCRIBE: Final = "_subscribe"
UNSUBSCRIBE: Final = "_unsubscribe"
REMOVE: Final = "_remove_destination"
COMMANDS: Final = (SUBSCRIBE, UNSUBSCRIBE, REMOVE)
MAX_KEYS: Final = 10_000
"""Keys that one address may subscribe to."""
MAX_KEY_BYTES: Final = MAX_KEYS_BYTES - 4
"""Of a key that a message can have."""
MAX_BYTES: Final = 1024 * 1024
"""Of a command."""


@dataclass(frozen=True)
class Command:
    """What a peer wants of its subscriptions here."""

    verb: str
    address: str
    keys: tuple[str, ...]

    def as_json(self) -> bytes:
        """Raise ``WrongCall`` if nobody would take it."""
        try:
            body = json.dumps({"address": self.address, "keys": self.keys}, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise WrongCall(f"{self.keys!r} cannot be written as UTF-8") from None
        if len(body) > MAX_BYTES or len(self.keys) > MAX_KEYS:
            raise WrongCall(f"expected at most {MAX_KEYS:,} keys and {MAX_BYTES:,} bytes together")
        if self.keys and max(len(key.encode()) for key in self.keys) > MAX_KEY_BYTES:
            raise WrongCall(f"expected keys of at most {MAX_KEY_BYTES:,} bytes")
        return body

    @classmethod
    def parse(cls, verb: str, data: bytes) -> "Command":
        """Raise ``ValueError`` if ``data`` is none."""
        if len(data) > MAX_BYTES:
            raise ValueError(f"a command of {len(data):,} bytes is too large: the limit is {MAX_BYTES:,}")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        match found:
            case {"address": str() as address, "keys": list() as keys} if wire.is_address(address) and all(
                map(_is_key, keys)
            ):
                return cls(verb, address, tuple(keys))
        raise ValueError("expected an address and keys")


def _is_key(key: object) -> bool:
    """Return whether a message can have ``key``: JSON may have half of a surrogate pair."""
    try:
        return isinstance(key, str) and 0 < len(key.encode()) <= MAX_KEY_BYTES and SEPARATOR not in key
    except UnicodeEncodeError:
        return False
