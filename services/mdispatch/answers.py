"""The way back: answers of workers to whoever asked."""

import json

from common.context import Context
from common.finisher import Finisher, Place, Said
from services.mdispatch.request import xid_of
from services.mdispatch.settings import Settings


class Answers(Finisher):
    """From ``res`` through this instance's pending list to the list that the request named, ending its record."""

    def __init__(self, context: Context[Settings]) -> None:
        settings = context.settings
        assert context.keys
        assert settings.res
        place = Place(
            context.keys,
            settings.res,
            context.pending(settings.answers_pending),
            settings.batch,
            settings.batch_bytes,
            settings.event_capacity,
            settings.reply_expire,
            settings.reply_to or "",
        )
        super().__init__(context, place, understood)


def understood(answer: bytes) -> Said:
    """An answer is a JSON object with the request's ``meta.id``."""
    try:
        meta = json.loads(answer)["meta"]
        xid = xid_of(meta["id"])
        attempt = meta.get("attempt")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        xid, attempt = b"", None
    if not xid:
        return Said("badAnswer", words="expected a JSON object with the request's meta.id")
    return Said("answer", xid=xid, attempt=str(attempt) if isinstance(attempt, int) else "")
