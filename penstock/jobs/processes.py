"""Processors that run in processes of their own: a deadline stops only these in the middle of a computation."""

import asyncio
import importlib
import os
import pickle
import runpy
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from penstock.base.errors import WrongCall

if TYPE_CHECKING:
    from penstock.jobs.attempt import Attempt

HEAD: Final = struct.Struct("!Q")
FOREIGN: Final = "penstock.jobs.processes"
PARENT_SECONDS: Final = 1.0
"""Seconds between two looks whether the consumer lives."""


class ProcessDied(Exception):
    """The process of a processor has ended without an answer."""


@dataclass(frozen=True)
class ProcessJob:
    """A job as a processor in a process sees it: what it returns becomes the value ``result``."""

    id: str
    stream: str
    group: str
    number: int
    key: str | None
    values: dict[str, bytes | None] = field(default_factory=dict)


class Processes:
    """Calls ``function`` in processes, one job at a time in each; as many as jobs run at a time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name, module = function.__qualname__, function.__module__
        if "<" in name:
            raise WrongCall(f"{name}: expected a function at the top of a module, since a process imports it")
        main = sys.modules["__main__"]
        if module == "__main__":
            module = getattr(main.__spec__, "name", None) or str(getattr(main, "__file__", ""))
        self._words = (module, name)
        self._idle: list[asyncio.subprocess.Process] = []
        self._all = set[asyncio.subprocess.Process]()
        self._ready = dict["Attempt", asyncio.subprocess.Process]()

    async def __call__(self, attempt: "Attempt") -> Any:
        """Return what the function does with a job, or raise what it raises. Cancelled, it kills the process."""
        process = self._ready.pop(attempt)
        job = ProcessJob(attempt.id, attempt.stream, attempt.group, attempt.number, attempt.key, attempt.values)
        try:
            assert process.stdin
            assert process.stdout
            body = pickle.dumps(job)
            process.stdin.write(HEAD.pack(len(body)) + body)
            await process.stdin.drain()
            (length,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            is_error, value = pickle.loads(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, OSError) as error:
            await self._end(process)
            raise ProcessDied(f"its process ended with status {process.returncode}") from error
        except BaseException:
            await self._end(process)
            raise
        self._idle.append(process)
        if is_error:
            raise value
        return value

    async def prepare(self, attempt: "Attempt") -> None:
        """Have a process ready for ``attempt``, before its deadline begins to count."""
        self._ready[attempt] = self._idle.pop() if self._idle else await self._start()

    async def _start(self) -> asyncio.subprocess.Process:
        code = f"from {FOREIGN} import serve; serve({os.getpid()}, *{self._words!r})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment
        )
        self._all.add(process)
        assert process.stdout
        try:
            await process.stdout.readexactly(1)
        except BaseException as error:
            await self._end(process)
            if isinstance(error, asyncio.IncompleteReadError):
                raise ProcessDied(f"a process could not import {': '.join(self._words)}") from None
            raise
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._all.discard(process)
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())

    async def close(self) -> None:
        """End all processes."""
        self._idle.clear()
        await asyncio.gather(*(self._end(process) for process in tuple(self._all)))


def serve(consumer: int, module: str, name: str) -> None:
    """Do the jobs of standard input, in a process, until it ends. ``module`` may be the file of a script.

    ``consumer`` is the pid of who sends them: if that dies, end in the middle of a job, which is another consumer's.
    """
    threading.Thread(target=_end_with, args=[consumer], daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints must not look like an answer
    if module.endswith(".py"):
        found: Any = SimpleNamespace(**runpy.run_path(module, run_name=FOREIGN))
    else:
        found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function = getattr(found, "__wrapped__", found)
    answers.write(b"!")
    answers.flush()
    while job := _read(sys.stdin.buffer):
        try:
            answer = pickle.dumps((False, function(job)))
        except BaseException as error:  # noqa: BLE001  # the parent raises it
            answer = _error(error)
        answers.write(HEAD.pack(len(answer)) + answer)
        answers.flush()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _read(stream: BinaryIO) -> ProcessJob | None:
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    job: ProcessJob = pickle.loads(stream.read(HEAD.unpack(head)[0]))
    return job


def _error(error: BaseException) -> bytes:
    """Return an exception as an answer; one that cannot be sent is replaced by its name and message."""
    try:
        answer = pickle.dumps((True, error))
        pickle.loads(answer)
    except Exception:  # noqa: BLE001  # whatever its own code raises
        return pickle.dumps((True, RuntimeError(f"{type(error).__name__}: {error}")))
    else:
        return answer
