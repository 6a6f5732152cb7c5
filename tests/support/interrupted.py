"""Interrupt a program before one opcode after the other, as a signal does.

In ``penstock.sync`` the handler raises an exception; in an event loop it is that of asyncio, which cancels the task.
``python -m tests.support.interrupted URL KIND SAMPLE SEED`` tries ``SAMPLE`` of the opcodes, or all (0), and prints a
line for each after which a message or its results are missing or doubled.
"""

import asyncio
import dis
import faulthandler
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Final

import redis

from penstock import lists
from penstock.base.errors import WrongCall
from penstock.sync import Lists
from tests.support.harness import PATIENCE

SENT: Final = [b"a", b"b", b"c"]
KINDS: Final = "leaves", "goes on", "fails", "leaves in a loop", "goes on in a loop", "fails in a loop"


class Interrupt(Exception):  # as a time limit of RQ or Celery
    """What a signal handler raises."""


class Interrupter:
    """Calls ``interrupt`` before the opcode with this number; counts those that it meets."""

    def __init__(self, at: int, interrupt: Callable[[], None], only: str = "") -> None:
        self.at, self.met, self.interrupt, self.only = at, 0, interrupt, only
        self.place = "none"

    def __call__(self, call: Callable[[], object]) -> None:
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is Interrupter.__call__.__code__ or (self.only and self.only not in frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and ("/penstock/" in frame.f_code.co_filename or _is_heeded(frame)):
            self.met += 1
            if self.met == self.at:
                name, line = frame.f_code.co_filename.rpartition("penstock/")[2], frame.f_lineno
                self.place = f"{name}:{line} {frame.f_code.co_name}, opcode {frame.f_lasti // 2}"
                if "VERBOSE" in os.environ:
                    print(self.place, file=sys.stderr)
                self.interrupt()
        return self._trace


def _is_heeded(frame: FrameType) -> bool:
    """Return whether Python looks for signals before this opcode: not just after a ``with`` has taken its lock."""
    code, place = frame.f_code.co_code, frame.f_lasti
    while place > 0 and code[place - 2] == 0:  # CACHE
        place -= 2
    return place > 0 and dis.opname[code[place - 2]] in ("CALL", "CALL_FUNCTION_EX", "RESUME")


def life(made: Lists, kind: str) -> None:
    """Handle all messages; ``kind`` says what becomes of an interrupt inside the loop."""
    tried = set[bytes]()
    with made as opened:
        while len(tried) < len(SENT):
            try:
                for message in opened["orders"].messages():
                    try:
                        with message:
                            message.also_push("bills", message.body)
                            if kind == "fails" and message.body not in tried:
                                tried.add(message.body)
                                raise LookupError
                            tried.add(message.body)
                    except LookupError:
                        break
                    if len(tried) == len(SENT):
                        break
            except (Interrupt, WrongCall):
                if kind != "goes on":
                    raise


async def life_in_a_loop(url: str, kind: str) -> None:
    """The same with ``penstock.lists``."""
    tried = set[bytes]()
    async with lists.Lists(url, lease=1, patience=PATIENCE) as opened:
        while len(tried) < len(SENT):
            try:
                async for message in opened["orders"].messages():
                    try:
                        with message:
                            message.also_push("bills", message.body)
                            if kind == "fails" and message.body not in tried:
                                tried.add(message.body)
                                raise LookupError
                            tried.add(message.body)
                    except LookupError:
                        break
                    if len(tried) == len(SENT):
                        break
            except asyncio.CancelledError:
                if kind != "goes on" or not (task := asyncio.current_task()):
                    raise
                task.uncancel()


def settle_rest(url: str, client: Any) -> None:
    """Handle what is left."""
    with Lists(url, lease=1, patience=PATIENCE) as opened:
        while client.llen("orders") or [*client.scan_iter("orders:consumer:*")]:
            for message in opened["orders"].messages():
                with message:
                    message.also_push("bills", message.body)
                break


def _raise() -> None:
    raise Interrupt


def _signal() -> None:
    signal.raise_signal(signal.SIGINT)


def _run_loop(url: str, kind: str) -> None:
    asyncio.run(life_in_a_loop(url, kind))


def attempt(url: str, client: Any, kind: str, at: int) -> Interrupter:
    """Interrupt a life at one opcode, and print what the account says unless it is right."""
    client.flushall()
    client.lpush("orders", *SENT)
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    how, _, inside = kind.partition(" in ")
    interrupter = Interrupter(at, _signal, "penstock/") if inside else Interrupter(at, _raise)
    made = Lists(url, lease=1, patience=PATIENCE)
    with suppress(Interrupt, KeyboardInterrupt, WrongCall, RuntimeError):  # the last one inside of `Thread.start`
        interrupter(partial(_run_loop, url, how) if inside else partial(life, made, how))
    settle_rest(url, client)
    faulthandler.cancel_dump_traceback_later()
    if (found := sorted(client.lrange("bills", 0, -1))) != SENT:
        print(f"{kind}: interrupted before {interrupter.place} ({at}): {found}")
    return interrupter


def main(url: str, kind: str, sample: str, seed: str) -> None:
    warnings.simplefilter("ignore")  # a coroutine that was never begun
    sys.unraisablehook = lambda _: None  # an interrupt while a generator was collected
    with redis.Redis.from_url(url) as client:
        attempt(url, client, kind, 0)  # makes what is made at its first use
        many = attempt(url, client, kind, 0).met
        chosen = range(1, many + 1)
        for at in random.Random(seed).sample(chosen, int(sample)) if int(sample) else chosen:
            attempt(url, client, kind, at)
    print(f"{many} opcodes", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
