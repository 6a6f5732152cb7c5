"""Keys, as callers pass them."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from penstock.base.errors import WrongCall
from penstock.outbox.commands import COMMANDS
from penstock.outbox.frames import MAX_KEYS, MAX_KEYS_BYTES
from penstock.outbox.store import SEPARATOR

Keys = str | Iterable[str]
REMEMBERED: Final = 256


def as_keys(keys: Keys) -> tuple[str, ...]:
    """Return one key or several, each once. Raise ``WrongCall`` if there is none, or one is not a line of text."""
    found = (keys,) if isinstance(keys, str) else tuple(dict.fromkeys(keys))
    if not found:
        raise WrongCall("expected a key at least")
    for key in found:
        if not key or SEPARATOR in key:
            raise WrongCall(f"{key!r} is no key: expected a text without line feeds")
    return found


def message_keys(keys: Keys) -> tuple[str, ...]:
    """Return the keys of a message. Raise ``WrongCall`` if it cannot have them."""
    return _checked(keys if isinstance(keys, str) else tuple(keys))


@lru_cache(REMEMBERED)
def _checked(keys: str | tuple[str, ...]) -> tuple[str, ...]:
    found = as_keys(keys)
    if found[0] in COMMANDS or not set(COMMANDS).isdisjoint(found):
        raise WrongCall(f"{', '.join(COMMANDS)} are for outboxes themselves")
    try:
        size = sum(len(key.encode()) + 4 for key in found)
    except UnicodeEncodeError:  # in the store it would fail, together with what other tasks write
        raise WrongCall(f"{found!r} cannot be written as UTF-8") from None
    if len(found) > MAX_KEYS or size > MAX_KEYS_BYTES:
        raise WrongCall(f"expected at most {MAX_KEYS:,} keys of {MAX_KEYS_BYTES:,} bytes together")
    return found
