"""Signals that end loops: all that share one are stopped, and what was there before returns when the last has left."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from penstock.base.errors import WrongCall

Place = tuple[asyncio.AbstractEventLoop | None, int]
"""An event loop, or None for programs without one, and a signal."""
_heard: Final = dict[Place, "_Heard"]()


class StopSignals:
    """Calls ``stop`` at each of ``numbers`` from ``enter`` to ``leave``, in an event loop or without one."""

    def __init__(self, numbers: Iterable[signal.Signals], stop: Callable[[], object]) -> None:
        self._numbers, self._stop = tuple(numbers), stop
        self._places = list[Place]()

    def check(self) -> None:
        """Raise ``WrongCall`` outside of the main thread, which alone gets signals."""
        if self._numbers and threading.current_thread() is not threading.main_thread():
            raise WrongCall("stop_signals: only the main thread of a program gets signals")

    def enter(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin; raise as ``check`` does."""
        self.check()
        for number in self._numbers:
            place = loop, int(number)
            self._places.append(place)
            heard = _heard.get(place) or _heard.setdefault(place, _Heard(*place))
            heard.stops.append(self._stop)

    def leave(self) -> None:
        """End."""
        while self._places:
            place = self._places[-1]
            heard = _heard.get(place)
            if heard is not None:
                with suppress(ValueError):  # an interrupt has kept it from entering
                    heard.stops.remove(self._stop)
                if not heard.stops:
                    heard.end()
                    del _heard[place]
            self._places.pop()


class _Heard:
    """What one signal stops."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, number: int) -> None:
        self.stops = list[Callable[[], object]]()
        self._loop, self._number, self._process = loop, number, os.getpid()
        self._former: Any = None
        if loop is None:
            self._former = signal.signal(number, self._handle)
        else:
            loop.add_signal_handler(number, self._call)

    def end(self) -> None:
        """Restore what was there before."""
        if self._loop is None:
            signal.signal(self._number, self._former)
        elif not self._loop.is_closed():
            self._loop.remove_signal_handler(self._number)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() == self._process:
            self._call()
        else:  # a forked child, in which nothing is to be stopped, does what the signal did before
            self.end()
            signal.raise_signal(number)

    def _call(self) -> None:
        for stop in tuple(self.stops):
            stop()
