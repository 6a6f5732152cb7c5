"""A consumer of any source: its life, and the loop over its items.

A consumer enters, takes as many items as are handled in 50 ms, settles as often, waits, renews its lease, and gives
back what was not handled. What the wire is, its ``Source`` knows.
"""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from redis.exceptions import RedisError

from penstock.base.errors import PenstockError, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.core.link import BACKOFF, rest
from penstock.core.mutex import Mutex
from penstock.core.pace import Pace, Prefetch
from penstock.core.source import SETTLE_SECONDS, Source
from penstock.core.tasks import Tasks
from penstock.core.watchdog import Watchdog

LEAVE_SECONDS: Final = 5.0
"""Longest time (s) that a stop takes to give back what was not handled; then others get it when the lease ends."""
QUICK_SECONDS: Final = 1.0
"""A wait that returns nothing sooner has not waited."""
TURNS: Final = 3
"""Turns of the event loop after which a generator that was dropped is being closed."""
TROUBLE: Final = (PenstockError, RedisError, OSError)
I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


class Run(Protocol):
    """Runs coroutines for a thread without an event loop."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Wait for the result of ``coroutine``, and return it."""

    def finish(self, call: Callable[[], Coroutine[Any, Any, None]], /) -> None:
        """Run ``call`` for a generator that ends, in any thread."""


class Consumers:
    """The consumers of one program's object, which is entered and left: they stop together.

    ``log`` gets what is wrong; ``expected`` is what a program has to write around their calls: ``async with``;
    ``blames`` names what runs while the event loop is blocked, by default what is in hand.
    """

    def __init__(
        self,
        log: Log,
        expected: str = "async with Consumers(...) as consumers:",
        *,
        blames: Callable[[], Mapping[str, object]] | None = None,
    ) -> None:
        self.log, self._expected, self._blames = log, expected, blames or self._in_hand
        self.running = set["Consumer[Any]"]()
        self.stopping = self.is_entered = False
        self._stopped = asyncio.Event()
        self._unheard = list[tuple[str, Exception]]()
        """What went wrong while nobody could be told, by the name of the source."""
        self.tasks = Tasks(log, lambda error: self._unheard.append(("", error)))
        self._watchdog: Watchdog | None = None

    async def __aenter__(self) -> Self:
        """Begin, perhaps once more."""
        self.stopping, self._stopped, self.is_entered = False, asyncio.Event(), True
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all loops, and raise what nobody has heard yet."""
        try:
            await self.leave()
        finally:
            await self.close()
        self.raise_unheard()

    def check_entered(self) -> None:
        """Raise ``WrongCall`` outside: leases would not be renewed."""
        if not self.is_entered:
            raise WrongCall(f"expected `{self._expected}` around this call")

    def stop(self) -> None:
        """End all loops: after what is in hand, or at once if they wait. What was taken ahead goes back at once."""
        if not self.stopping:
            self.stopping = True
            self._stopped.set()
            for consumer in self.running:
                self.tasks.begin(consumer.stop())

    async def leave(self) -> None:
        """Stop, and end loops that were left, and whose generators are not closed yet."""
        self.stop()
        for consumer in tuple(self.running):
            await consumer.leave(GeneratorExit())

    async def close(self) -> None:
        """End what runs in the background."""
        self.is_entered = False
        self._unwatch()
        await self.tasks.cancel()

    async def pause(self, seconds: float) -> None:
        """Sleep, but not beyond a stop."""
        await rest(seconds, self._stopped)

    def joined(self, consumer: "Consumer[Any]") -> None:
        """Note that ``consumer`` runs; have leases renewed, too, while a handler blocks the event loop."""
        self.running.add(consumer)
        every = consumer.source.renew_every
        if self._watchdog is None or every < self._watchdog.every:
            self._unwatch()
            self._watchdog = Watchdog(self.log, every, self._blames, self._renew_elsewhere)
            self._watchdog.start()

    def left(self, consumer: "Consumer[Any]") -> None:
        """Note that ``consumer`` has ended."""
        self.running.discard(consumer)
        if not self.running:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._watchdog:
            self._watchdog.stop()
            self._watchdog = None

    def _in_hand(self) -> Mapping[str, object]:
        return next((each.source.facts for each in tuple(self.running) if each.source.in_hand is not None), {})

    async def _renew_elsewhere(self) -> None:
        renewals = [consumer.source.renew_elsewhere() for consumer in tuple(self.running)]
        for end in await asyncio.gather(*renewals, return_exceptions=True):
            if isinstance(end, Exception):
                raise end

    def keep_unheard(self, name: str, error: Exception) -> None:
        """Keep ``error`` for the next loop over the source ``name``, or the end."""
        self._unheard.append((name, error))

    def raise_unheard(self, name: str | None = None) -> None:
        """Raise the first error that was kept of the source ``name``, by default of any."""
        for place, (whose, error) in enumerate(self._unheard):
            if name in (None, whose):
                del self._unheard[place]
                raise error


class _Loop:
    """What the frame of a loop over items holds."""


class Consumer(Generic[I]):
    """Takes the items of ``source``, and hands them out one by one.

    ``prefetch`` says how many are taken at once: a number is the most, fewer are taken while their handling is slow.
    """

    def __init__(self, consumers: Consumers, source: Source[I], prefetch: int | Prefetch) -> None:
        self._consumers, self.source = consumers, source
        self._prefetch = Pace(SETTLE_SECONDS, prefetch) if isinstance(prefetch, int) else prefetch
        self._leaving = Mutex()
        self._loop: weakref.ref[_Loop] | None = None
        self._keeping = Tasks(consumers.log, self._broke)
        self._is_broken = False

    # Loops

    async def messages(self) -> AsyncGenerator[I]:
        """Yield items until all shall stop; each has to be handled before the next one is asked for."""
        loop = self._begin_loop()
        source, consumers = self.source, self._consumers
        try:
            while batch := await self.batch():
                for item in batch:
                    source.in_hand = item  # first: a stop gives back what is not
                    if consumers.stopping:
                        break
                    if source.judges and source.judge(item):
                        source.in_hand = None
                    else:
                        yield item
                        self._check_handled()
                    if source.due_at <= monotonic() and not await self.settle():
                        break
        except BaseException as error:
            await self.leave(error)
            raise
        await self.leave()
        del loop

    def blocking(self, run: Run) -> Iterator[I]:
        """Yield items as ``messages`` does, in a thread without an event loop; ``run`` has one."""
        loop = self._begin_loop()
        source, consumers = self.source, self._consumers
        try:
            while batch := run(self.batch()):
                for item in batch:
                    source.in_hand = item
                    if consumers.stopping:
                        break
                    if source.judges and source.judge(item):
                        source.in_hand = None
                    else:
                        yield item
                        self._check_handled()
                    if source.due_at <= monotonic() and not run(self.settle()):
                        break
        except BaseException as error:
            run.finish(partial(self.leave, error))
            raise
        run.finish(self.leave)
        del loop

    def _begin_loop(self) -> object:
        """Return what the loop over items has to hold on to: once that is gone, the loop is over."""
        loop = _Loop()
        self._loop = weakref.ref(loop)
        return loop

    @property
    def _is_abandoned(self) -> bool:
        """Return whether an interrupt has kept a loop that is over from leaving."""
        return self._loop is not None and self._loop() is None

    def _check_handled(self) -> None:
        if self.source.in_hand is not None:
            noun = self.source.noun
            raise WrongCall(f"a {noun} was not handled: expected `with {noun}:` around its handling")

    # Life

    async def batch(self) -> list[I]:
        """Settle what was handled and return the next items, oldest first; none once all consumers shall stop."""
        await self.enter()
        source, consumers, empty = self.source, self._consumers, 0
        while not consumers.stopping:
            size = self._prefetch.size()
            if source.failures:  # what failed comes again at once
                await consumers.pause(BACKOFF.delay_after(source.failures))
            found = await source.take(size)
            self._prefetch.begin()
            if found:
                return found
            if found is None or consumers.stopping:
                continue
            begun = monotonic()
            found = await source.wait(size)
            self._prefetch.begin()
            if found:
                return found
            empty = 0 if found is None or monotonic() - begun > QUICK_SECONDS else empty + 1
            if empty:
                await consumers.pause(BACKOFF.delay_after(empty))
        return []

    async def settle(self) -> bool:
        """Settle what was handled. Return False if the rest of the batch is not ours: at a stop, and with the lease."""
        return not self._consumers.stopping and await self.source.take(0) is not None

    async def enter(self) -> None:
        """Have the lease renewed from now on, until ``leave``."""
        consumers = self._consumers
        consumers.check_entered()
        if self in consumers.running:
            if self._is_broken:
                consumers.raise_unheard(self.source.name)
            return
        await self._let_others_leave()
        consumers.raise_unheard(self.source.name)
        consumers.joined(self)
        self._keeping.begin(self._keep())

    async def _let_others_leave(self) -> None:
        """Wait for the loops over the same that are ending: what they give back comes first."""
        if self._consumers.stopping:  # this one begins nothing
            return
        for _ in range(TURNS):
            await asyncio.sleep(0)  # the loop closes a dropped generator in a task of its own
        for other in tuple(self._consumers.running):
            if other.source.name == self.source.name:
                if other._leaving.is_taken or other._is_abandoned:
                    await other.leave(GeneratorExit())
                elif self.source.alone:
                    raise WrongCall(
                        f"{self.source.name}: another loop has this name, and both would get its {self.source.noun}s"
                    )

    async def stop(self) -> None:
        """End a wait, and give back what was taken ahead; the loop gives back what this cannot."""
        if self.source.in_hand is None:  # then nothing was taken ahead
            await self.source.interrupt()
            return
        with suppress(*TROUBLE):
            async with asyncio.timeout(LEAVE_SECONDS), self._leaving:
                if self in self._consumers.running:
                    await self.source.give_back_ahead()

    async def leave(self, ending: BaseException | None = None) -> None:
        """Settle what was handled and give back the rest; if the server is away, others get it later.

        Raise what has kept handled items from being settled: they come again. If the loop is ``ending`` by an error or
        a ``break``, nobody would hear it here: the next loop over the same raises it, or the end of all.
        """
        consumers = self._consumers
        async with self._leaving:
            if self not in consumers.running:
                return
            self.source.in_hand = None
            await self._keeping.cancel()
            try:
                await self._give_back()
            except TROUBLE as error:
                if ending is None:
                    raise
                if not _is_told(ending):
                    consumers.keep_unheard(self.source.name, error)
                    notes = "; ".join(getattr(error, "__notes__", ()))
                    reason = f"{error}; {notes}" if notes else str(error)
                    consumers.log.error("not settled", **self.source.facts, reason=reason)
            finally:
                consumers.left(self)
                await self.source.close()

    async def _give_back(self) -> None:
        source = self.source
        try:
            async with asyncio.timeout(LEAVE_SECONDS if self._consumers.stopping else None):
                await source.give_back()
        except TROUBLE as error:  # a TimeoutError, too
            reason, handled = str(error) or "no answer", source.handled
            if isinstance(error, Unavailable | TimeoutError):
                self._consumers.log.warning(
                    "not given back: others get it when the lease ends", **source.facts, reason=reason
                )
                if not handled:
                    return
            if not handled:
                raise
            note = f"handled, not settled, so that they come again: {handled:,} of {source.name}"
            if isinstance(error, TimeoutError):
                raise Unavailable(f"{reason}: {note}") from error
            error.add_note(note)
            raise

    async def _keep(self) -> None:
        """Renew the lease as long as it is wanted; after trouble try again soon."""
        failures = 0
        while True:
            pause = self.source.renew_every
            await asyncio.sleep(min(pause, BACKOFF.delay_after(failures)) if failures else pause)
            if self._is_abandoned:
                await self.leave(GeneratorExit())
                return
            try:
                await self.source.renew()
                failures = 0
            except TROUBLE:  # the loop meets it as well, and reports it
                failures += 1

    def _broke(self, error: Exception) -> None:
        self._is_broken = True
        self._consumers.keep_unheard(self.source.name, error)


def _is_told(ending: BaseException) -> bool:
    """Return whether the loop ends by an error of the server already."""
    return isinstance(ending, PenstockError | RedisError) and not isinstance(ending, WrongCall)
