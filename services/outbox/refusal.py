"""Why a message cannot be published."""

from collections.abc import Sequence
from typing import Final

from penstock.base.errors import WrongCall
from penstock.outbox import Outbox

NOBODY: Final = "noSubscriber"


def refusal(outbox: Outbox, keys: Sequence[str], message: bytes) -> str | None:
    """Return why ``message`` cannot be published with ``keys``; None if it can."""
    if not keys:
        return "noKey"
    if len(message) > outbox.max_bytes:
        return "tooLarge"
    try:
        return None if outbox.subscribers(keys) else NOBODY
    except WrongCall:
        return "badKey"
