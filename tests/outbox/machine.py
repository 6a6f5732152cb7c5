"""A publisher and a subscriber as processes, which tests kill: ``python -m tests.outbox.machine``.

The publisher publishes 0, 1, 2 ... and appends to a file what was accepted. The subscriber's handler appends what it
gets. Either can be told to kill itself just before or after its n-th commit, or that no file may have more bytes.
"""

import asyncio
import hashlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from penstock.outbox import Message, Outbox
from penstock.outbox.store import Store
from tests.outbox.outboxes import outbox
from tests.support.harness import ROOT

TASKS: Final = 8
KEY: Final = "numbers"


def body_of(number: int) -> str:
    """Return a body that only ``number`` has."""
    return f"{number} {hashlib.sha256(str(number).encode()).hexdigest()}".ljust(300, ".")


def number_in(body: str) -> int:
    """Return the number whose body this is. Raise ``ValueError`` if it is none."""
    number = int(body.split(" ", 1)[0])
    if body != body_of(number):
        raise ValueError(f"not whole: {body!r}")
    return number


class Machine:
    """One of the two, as a process that can be started again and again."""

    def __init__(self, role: str, datadir: Path, bind: str) -> None:
        self.role, self.datadir, self.bind = role, datadir, bind
        self.told = datadir.parent / f"{role}.told"
        self.log = datadir.parent / f"{role}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, dies: str = "") -> None:
        """``dies``: ``before:7`` or ``after:7``, the commit at which it kills itself."""
        arguments = [self.role, str(self.datadir), self.bind, str(self.told), dies]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.outbox.machine", *arguments], cwd=ROOT, stdout=log, stderr=log
            )

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        assert self.process is not None
        status = self.process.wait(600)
        self.process = None
        return status

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        assert self.wait() == -signal.SIGKILL, self.log.read_text()[-3000:]

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.wait() == 0, self.log.read_text()[-3000:]

    def has_more_than(self, size: int) -> bool:
        """Return whether it has told more than ``size`` bytes; fail if it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return self.size > size

    @property
    def size(self) -> int:
        """Bytes of what it has told."""
        return self.told.stat().st_size if self.told.exists() else 0

    def numbers(self) -> list[int]:
        """Return what it has told: published or handled."""
        return [int(line) for line in self.told.read_text().splitlines()] if self.told.exists() else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)


class _Dies:
    """Kills the process at a commit."""

    def __init__(self, at: str) -> None:
        when, _, number = at.partition(":")
        self._before, self._number = when == "before", int(number)
        self._commit, self._count = Store.commit, 0

    def install(self) -> None:
        dies = self

        def commit(store: Store) -> None:
            dies._count += 1
            if dies._before and dies._count == dies._number:
                os.kill(os.getpid(), signal.SIGKILL)
            dies._commit(store)
            if not dies._before and dies._count == dies._number:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(Store, "commit", commit)  # noqa: B010 - mypy takes it for an assignment of another type


async def publish(box: Outbox, told: Path, stop: asyncio.Event) -> None:
    """Publish on from the number after the greatest that may have been published before."""
    begun = told.with_suffix(".begun")
    numbers = iter(range(int(begun.read_text()) if begun.exists() else 0, 1 << 62))
    with told.open("ab", buffering=0) as file:

        async def task() -> None:
            for number in numbers:
                if stop.is_set():
                    return
                if number % 100 == 0:  # those below the next 100 are taken, whatever happens
                    new = begun.with_suffix(".new")
                    new.write_text(str(number + 100))
                    new.replace(begun)
                await box.publish(KEY, body_of(number))
                file.write(b"%d\n" % number)

        await asyncio.gather(*(task() for _ in range(TASKS)))
    await box.drain()


async def handle(box: Outbox, told: Path, stop: asyncio.Event) -> None:
    with told.open("ab", buffering=0) as file:

        def handler(message: Message) -> None:
            file.write(b"%d\n" % number_in(str(message)))

        box.every(KEY, handler)
        await stop.wait()
        await box.drain()


async def main(role: str, datadir: str, bind: str, told: str, dies: str) -> None:
    if dies.startswith("limit:"):
        limit = int(dies.removeprefix("limit:"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    elif dies:
        _Dies(dies).install()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with outbox(Path(datadir), bind, attempts=1000) as box:
        await (publish if role == "publisher" else handle)(box, Path(told), stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
