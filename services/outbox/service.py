"""outbox: exchange lists with other sites, which see nothing of the server here."""

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from common.context import Context
from common.open_files import allow_open_files
from penstock.base.errors import PenstockError
from penstock.core.atomic import AtomicWrites
from penstock.outbox import Allowed, Outbox, Security
from penstock.outbox.store import Store
from services.outbox.handover import Handover
from services.outbox.listening import listening
from services.outbox.programs import Programs
from services.outbox.receiving import Receiving
from services.outbox.sending import Sending
from services.outbox.settings import Settings

COUNT_SECONDS: Final = 2.0
"""Seconds between two looks at what the outbox has."""
OPEN_FILES: Final = 22_000
"""Twice as many as destinations that may subscribe, and some."""
CLOSE_SECONDS: Final = 1.0
"""Seconds at the end for what has come and is not in the list, or in a program's hand."""


class CannotOpen(PenstockError):
    """The address is taken, or the datadir or the files of TLS cannot be used."""


class Site:
    """Runs of the service, and the outbox, which sends and takes messages while the server is away."""

    def __init__(self) -> None:
        self._receiving = Receiving()
        self._outbox: Outbox

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[Outbox]:
        """Open the outbox of ``settings``. Raise ``CannotOpen``, ``Locked``, ``Damaged`` or ``DiskFull``."""
        outbox = _outbox(settings)
        try:
            await outbox.__aenter__()
        except OSError as error:
            if error.filename is not None:
                raise CannotOpen(f"datadir {settings.datadir} cannot be used: {error.strerror}") from None
            taken = error.errno == errno.EADDRINUSE
            reason = "is taken: set bind" if taken else f"cannot be used: {error.strerror or error}"
            raise CannotOpen(f"{settings.bind} {reason}") from None
        try:
            async with self._socket(outbox, settings):
                if settings.out is not None:
                    outbox.all(self._receiving.take)
                await _subscribe(outbox, settings)
                self._outbox = outbox
                yield outbox
        finally:
            await outbox.close(CLOSE_SECONDS)

    @asynccontextmanager
    async def _socket(self, outbox: Outbox, settings: Settings) -> AsyncIterator[None]:
        """Serve the programs at the socket of ``settings``, if there is one. Raise ``CannotListen``.

        At the end, those that have messages in hand may still finish them.
        """
        if settings.socket is None:
            yield
            return
        handover = None if settings.out else Handover()
        programs = Programs(outbox, handover, settings.unsubscribed, settings.batch)
        async with listening(Path(settings.socket), programs.serve) as server:
            if handover is not None:
                outbox.all(handover.take)
            try:
                yield
            finally:
                server.close()
                await programs.end(taking=False)
                await outbox.close(CLOSE_SECONDS)
                await programs.end(taking=True)

    async def run(self, context: Context[Settings]) -> None:
        """Move messages both ways until the run ends."""
        settings = context.settings
        async with asyncio.TaskGroup() as tasks:
            if settings.in_ is not None:
                tasks.create_task(Sending(context, self._outbox).run())
            if settings.out is not None:
                tasks.create_task(self._receiving.run(context.beside("receiving")))
            await _watch(context, self._outbox)


def _outbox(settings: Settings) -> Outbox:
    """Return the outbox that ``settings`` describe. Raise ``CannotOpen``."""
    allow_open_files(OPEN_FILES)
    return Outbox(
        datadir=settings.datadir,
        bind=settings.bind,
        advertise=settings.advertise or "",
        security=_security(settings),
        allowed=Allowed(settings.grants),
        dedupe=settings.dedupe,
        store_bytes=settings.store_bytes,
        attempts=None,  # a message waits for the server, or a program, however often this process starts
        concurrency=settings.batch,
    )


def _security(settings: Settings) -> Security:
    if settings.certificate and settings.key and settings.authority:
        try:
            return Security.tls(settings.certificate, settings.key, settings.authority, settings.secret)
        except (OSError, ssl.SSLError) as error:
            raise CannotOpen(f"certificate, key and authority cannot be loaded: {error.strerror or error}") from None
    return Security.shared(settings.secret) if settings.secret else Security.none(insecure=settings.insecure)


async def _subscribe(outbox: Outbox, settings: Settings) -> None:
    """Ask others for what ``settings`` say, and for nothing else."""
    wanted, had = settings.subscriptions, dict[str, list[str]]()
    for address, key in await asyncio.to_thread(_subscribed, outbox):
        had.setdefault(address, []).append(key)
    for address, keys in had.items():
        if left := [key for key in keys if key not in wanted.get(address, [])]:
            await outbox.unsubscribe(address, left)
    for address, keys in wanted.items():
        await outbox.subscribe(address, keys)


def _subscribed(outbox: Outbox) -> list[tuple[str, str]]:
    store = Store.read(outbox.datadir)
    try:
        return [*store.subscribed()]
    finally:
        store.close()


async def _watch(context: Context[Settings], outbox: Outbox) -> None:
    """Write what the outbox has whenever that has changed, until the run ends."""
    written = dict[Any, Any]()
    while context.running:
        status = await outbox.status()
        now: dict[Any, Any] = {**status.counts._asdict(), "away": len(status.away), "refused": status.refused}
        if context.outage.reason and not context.settings.in_:
            await context.redis.ping()
            context.outage.over()
        if now != written:
            async with AtomicWrites(context.redis) as writes:
                writes.hset(context.required_keys.metric("outbox"), mapping=now)
                await writes.execute()
            written = now
        await context.pause(COUNT_SECONDS)
