"""Requests that wait for their answers, and those whose time is over."""

import asyncio
from collections.abc import Callable

from common.http.message import Answer

Then = Callable[[Answer], None]


class WaitingRequest:
    """A request that was accepted: ``then`` is called once, with its answer."""

    __slots__ = ("due", "id", "is_cancelled", "message", "method", "then")

    def __init__(self, id: str, method: str, due: float, then: Then) -> None:
        self.id, self.method, self.due, self.then = id, method, due, then
        self.message = b""
        """Empty once the server has it."""
        self.is_cancelled = False


class Waiting:
    """Requests by id, in the order of their deadlines, since all have the same time."""

    def __init__(self, expired: Callable[[WaitingRequest], None]) -> None:
        self._expired = expired
        self._requests: dict[str, WaitingRequest] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, id: str) -> bool:
        return id in self._requests

    def add(self, request: WaitingRequest) -> None:
        """Wait for the answer to ``request``; ``expired`` is called with it if none comes in time."""
        self._requests[request.id] = request
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(request.due, self._expire)

    def take(self, id: str) -> WaitingRequest | None:
        """Return the request ``id``, and forget it; None if it does not wait."""
        return self._requests.pop(id, None)

    def get(self, id: str) -> WaitingRequest | None:
        """Return the request ``id``; None if it does not wait."""
        return self._requests.get(id)

    def close(self) -> None:
        """Forget all requests."""
        self._requests.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while (first := next(iter(self._requests.values()), None)) and first.due <= now:
            del self._requests[first.id]
            self._expired(first)
        self._timer = loop.call_at(first.due, self._expire) if first else None
