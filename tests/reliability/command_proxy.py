"""Proxy that injects a fault at one command or its reply, in every way that a connection can fail."""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from penstock.testing.chaos.frames import words_of
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault, Timing


class Kind(Enum):
    """The kind of fault at a command: its timing, the share of the command or reply that passes, and if it swallows.

    A fault that swallows leaves the connection open but passes nothing more. Others close it at both ends.
    """

    CUT_BEFORE = (Timing.BEFORE, 0.0, False)
    TORN_COMMAND = (Timing.BEFORE, 0.5, False)
    SWALLOWED_COMMAND = (Timing.BEFORE, 0.0, True)
    CUT_BEFORE_REPLY = (Timing.AFTER, 0.0, False)
    TORN_REPLY = (Timing.AFTER, 0.5, False)
    SWALLOWED_REPLY = (Timing.AFTER, 0.0, True)
    CUT_AFTER = (Timing.AFTER, 1.0, False)

    @property
    def swallows(self) -> bool:
        return self.value[2]


@dataclass(frozen=True)
class CommandFault:
    """A fault at the ``nth`` command that begins with ``word``, counted from 0 over all connections.

    The order within a connection is fixed; the order between connections is random.
    """

    kind: Kind
    word: str
    nth: int


class CommandProxy(FaultProxy):
    """Count the commands of all connections and inject a fault at one of them; in a thread of its own."""

    def __init__(self, port: int, fault: CommandFault | None = None) -> None:
        super().__init__(port)
        self._wanted, self._counts = fault, Counter[str]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.commands: list[str] = []
        """The first word of every command received."""
        self.met = False

    def inject(self, fault: CommandFault) -> None:
        """Inject ``fault`` in place of the one that was wanted before."""
        self._wanted = fault

    def command(self, frame: bytes, _: list[str]) -> ProxyFault | None:
        word = words_of(frame)[0].decode().upper()
        nth, fault = self._counts[word], self._wanted
        self._counts[word] += 1
        self.commands.append(word)
        if fault is None or (word, nth) != (fault.word, fault.nth):
            return None
        self.met = True
        timing, passes, swallows = fault.kind.value
        return ProxyFault(None, timing, swallows, passes)

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
