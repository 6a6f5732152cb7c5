"""What a consumption does and must not be cancelled: it begins, or takes messages."""

import asyncio


class UnderWay:
    """One such work at a time: a task, or a call that was sent."""

    def __init__(self) -> None:
        self._work: asyncio.Future[None] | None = None

    def note_sent(self) -> None:
        """Note that a call was sent."""
        self._work = asyncio.get_running_loop().create_future()

    def note_reply(self) -> "asyncio.Future[None] | None":
        """Note that its reply is there; end the future that is returned once that is dealt with."""
        work, self._work = self._work, None
        return work

    def go_on(self, work: "asyncio.Future[None]") -> None:
        """Note that ``work`` follows."""
        self._work = work

    async def wait_for(self, work: "asyncio.Future[None]") -> None:
        """Wait for ``work``, which goes on if this call is cancelled."""
        self._work = work
        try:
            await asyncio.shield(work)
        finally:
            if work.done() and self._work is work:
                self._work = None

    async def until_done(self) -> None:
        """Wait for what is under way, and what follows from it; raise if that raises."""
        while work := self._work:
            await self.wait_for(work)

    async def until_ended(self) -> None:
        """Wait for what goes on though its call was cancelled; its error is left to ``until_done``."""
        while self._work and not self._work.done():
            await asyncio.wait({self._work})
