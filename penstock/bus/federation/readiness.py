"""Whether another site is there and has an object as it should be, and the calls that wait for that."""

import asyncio

from penstock.base.errors import PenstockError, Unavailable
from penstock.bus.host import Host


class Readiness:
    """That of one object at the site ``url``."""

    def __init__(self, bus: Host, url: str, refused: PenstockError | None) -> None:
        self._bus, self._url = bus, url
        self.refused = refused
        """Why the other site refuses the secret or the object; None if it does not."""
        self._event = asyncio.Event()
        self._waiting = 0

    @property
    def is_there(self) -> bool:
        """Return whether calls need not wait."""
        return self._event.is_set()

    def begin(self) -> None:
        """Let calls go on."""
        self.refused = None
        self._event.set()

    def end(self) -> None:
        """Have calls wait from now on."""
        self._event.clear()

    def refuse(self, error: PenstockError) -> None:
        """Raise ``error`` in the calls that wait, and in those to come."""
        self.refused = error
        self._event.set()
        self._event.clear()

    async def wait(self) -> None:
        """Wait for the other site. Raise why it refuses, or ``Unavailable`` if it stays away or too many calls wait."""
        if self.refused is not None:
            raise self.refused
        if self._waiting >= self._bus.buffer:
            raise Unavailable(f"{self._waiting:,} calls wait for {self._url} already (buffer)")
        self._waiting += 1
        try:
            async with self._bus.bounded(lambda: f"{self._url} is away"):
                while not self.is_there:
                    if self.refused is not None:
                        raise self.refused
                    await self._event.wait()
        finally:
            self._waiting -= 1
