"""A request to a service, and its answer."""

import traceback
from collections.abc import Callable
from typing import Any

from penstock.base.encoding import parse_number
from penstock.base.errors import WrongCall
from penstock.base.payload import as_json


class Request:
    """One request as its provider sees it: ``data``, and ``expires`` (s since the epoch, the requester's clock)."""

    __slots__ = ("_answer", "data", "expires", "id", "in_parts", "reply_to")

    def __init__(self, found: dict[str, Any], answer: Callable[["Request", dict[str, Any]], Any]) -> None:
        self.data: Any = found.get("data")
        self.id: Any = found.get("reqId")
        self.reply_to: str | None = found.get("replyTo") if isinstance(found.get("replyTo"), str) else None
        expires = parse_number(found.get("expires"))
        self.expires: float | None = None if expires is None else expires / 1000
        self.in_parts = False
        """Whether a part of the answer was sent."""
        self._answer = answer

    async def partial(self, reply: Any) -> bool:
        """Send a part of the answer; return False if the requester has gone or wants no answer."""
        self.in_parts = True
        return await self._send({"err": None, "reply": reply, "partial": True})

    async def answer(self, reply: Any = None) -> bool:
        """Send the answer, or the last part of it; return as ``partial`` does."""
        return await self._send({"err": None, "reply": reply})

    async def end(self) -> bool:
        """End an answer whose parts were all sent by ``partial``; return as that does."""
        return await self._send({"err": None})

    async def fail(self, error: Any) -> bool:
        """Send an error instead: an exception, or any JSON value; return as ``partial`` does.

        Of an exception the requester gets the name of its class, its text, and its own attributes that are JSON values
        (``error.code = 7``): keep secrets out of these.
        """
        if isinstance(error, BaseException):
            own = {name: value for name, value in vars(error).items() if _is_json(value)}
            stack = "".join(traceback.format_exception_only(error)).strip()
            error = {**own, "name": type(error).__name__, "message": str(error), "stack": stack}
        return await self._send({"err": error})

    async def _send(self, reply: dict[str, Any]) -> bool:
        return self.reply_to is not None and bool(await self._answer(self, {**reply, "reqId": self.id}))


def _is_json(value: Any) -> bool:
    try:
        as_json(value)
    except WrongCall:
        return False
    return True
