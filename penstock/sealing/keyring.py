"""Data keys of owners: made on first use, wrapped with the master key, kept in Redis, and cached for some seconds."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from penstock.base.encoding import decoded
from penstock.base.errors import Forgotten, WrongMasterKey
from penstock.base.extras import extra
from penstock.core.script import Script
from penstock.sealing.master import MasterKey
from penstock.sealing.owners import LUA, KeyRecord, forget_owner, read_owners
from penstock.sealing.sealed import DataKey, OwnerKeys, epoch_of

with extra("seal"):
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys

KEY_BITS: Final = 256
MOST_SECONDS: Final = 30 * 86_400
"""Age at which a data key is replaced."""
MOST_OWNERS: Final = 10_000
"""Owners in the cache; the one that was read first leaves it."""
_add, _read, _rewrap = (Script.read(LUA / f"{verb}.lua") for verb in ("add", "read", "rewrap"))


class _Entry(NamedTuple):
    """What is known of an owner, and until when (monotonic)."""

    keys: OwnerKeys
    data_keys: Mapping[int, DataKey]
    is_forgotten: bool
    until: float


class _Lock(asyncio.Lock):
    """Held while the keys of an owner are read or made; has the error of who tried that last, and when (monotonic)."""

    failure: Exception | None = None
    failed_at = -inf


class Keyring:
    """The data keys of all owners of one namespace.

    What it reads it uses for ``seconds``. ``invalidate`` makes it read again at once: call it for each owner that the
    channel ``Keys.key_changes`` announces, or let ``listen`` do that. A data key that it has unwrapped before is not
    unwrapped again, so a warm process does not need Vault.

    A data key is replaced after 30 days or 2^31 messages. Messages are counted by best effort: each process reports its
    count when it reads the keys again, so a killed one leaves its last ones uncounted. AES-GCM allows twice as many.
    """

    def __init__(self, redis: "Redis", keys: "Keys", master: MasterKey, *, seconds: float = 30) -> None:
        self._redis, self._keys, self._master, self._seconds = redis, keys, master, seconds
        self._cache: dict[str, _Entry] = {}
        self._locks = WeakValueDictionary[str, _Lock]()
        self._reading = set[str]()
        """Owners whose keys are being read, without those that were invalidated meanwhile."""

    def __repr__(self) -> str:
        return f"<Keyring of {self._keys.namespace!r}, master key {self._master.id}>"

    def known(self, owner: str) -> OwnerKeys | None:
        """Return the keys of ``owner`` from the cache, fit to seal and open; None if ``current`` must be awaited."""
        entry = self._cached(owner)
        return None if entry is None or entry.is_forgotten or entry.keys.due else entry.keys

    async def current(self, owner: str) -> OwnerKeys:
        """Return the keys of ``owner``, fit to seal: make a new one if there is none, or the newest is due.

        Replicas that do so at once agree on one key. Raise ``Forgotten``, ``WrongMasterKey`` or an error of the master
        key's server.
        """
        if found := self.known(owner):
            return found
        async with self._locked(owner):
            found = await self._load(owner)
            if not found.due:
                return found
            await self._add(owner, found.epoch)
            return await self._load(owner)

    async def all(self, owner: str) -> OwnerKeys:
        """Return the keys of ``owner`` to open messages, perhaps none of them fit to seal. Raise as ``current``."""
        if (entry := self._cached(owner)) and not entry.is_forgotten:
            return entry.keys
        async with self._locked(owner):
            return await self._load(owner)

    async def seal(self, owner: str, plain: bytes, aad: bytes) -> bytes:
        """Return ``plain``, sealed for ``owner``. Raise as ``current``."""
        return (await self.current(owner)).seal(plain, aad)

    async def open(self, owner: str, sealed: bytes, aad: bytes) -> bytes:
        """Return the plain message; read the keys again if another replica has made a newer one meanwhile.

        Raise ``Unopenable`` or as ``current``.
        """
        keys = await self.all(owner)
        if epoch_of(sealed) > keys.epoch:
            self.invalidate(owner)
            keys = await self.all(owner)
        return keys.open(sealed, aad)

    async def rotate(self, owner: str) -> int:
        """Make a new data key for ``owner``, and return its epoch; the old ones still open. Raise as ``current``."""
        async with self._locked(owner):
            self.invalidate(owner)
            before = await self._load(owner)
            await self._add(owner, before.epoch)
            return (await self._load(owner)).epoch

    async def forget(self, owner: str) -> int:
        """Delete the data keys of ``owner`` for good, and return how many there were.

        Nothing that was sealed for the owner can be opened again, and nothing is sealed for it. Other replicas follow
        once they hear of it, or after their ``seconds``. Copies of Redis (AOF, RDB, replicas, backups) have the wrapped
        keys until they are rewritten.
        """
        count = await forget_owner(self._redis, self._keys, owner)
        self.invalidate(owner)
        if entry := self._cache.pop(owner, None):
            entry.keys.forget()
        return count

    async def owners(self) -> list[KeyRecord]:
        """Return what Redis has of all owners, also of forgotten ones."""
        return await read_owners(self._redis, self._keys)

    async def rewrap(self) -> int:
        """Wrap all data keys anew with the first master key, and return how many; no message changes.

        Begin once all replicas have the new master key as their first, and remove the old one after it.
        """
        count = 0
        for record in await self.owners():
            changes = list[int | bytes]()
            for epoch, wrapped in record.wrapped.items():
                with _naming(record.owner, epoch):
                    changes += [epoch, wrapped, await self._master.rewrap(wrapped, _context(record.owner, epoch))]
            if changes:
                count += int(await _rewrap(self._redis, wrapped=self._keys.owner_keys(record.owner), changes=changes))
        return count

    def invalidate(self, owner: str | None = None) -> None:
        """Read the keys of ``owner``, or of all owners, again before their next use."""
        for name in [owner] if owner is not None else [*self._cache, *self._reading]:
            self._reading.discard(name)
            if entry := self._cache.get(name):
                self._cache[name] = entry._replace(until=-inf)

    async def listen(self, redis: "Redis") -> None:
        """Invalidate what other replicas change, until cancelled; ``redis`` is a client of its own.

        Raise ``RedisError`` if the connection is lost. Then call it again: it begins by invalidating all owners.
        """
        async with redis.pubsub() as subscription:
            await subscription.subscribe(self._keys.key_changes)
            while True:
                heard = await subscription.get_message(timeout=self._seconds)
                if heard and heard["type"] == "subscribe":
                    self.invalidate()
                elif heard and heard["type"] == "message":
                    self.invalidate(decoded(heard["data"]))

    def _cached(self, owner: str) -> _Entry | None:
        entry = self._cache.get(owner)
        return entry if entry and time.monotonic() < entry.until else None

    @asynccontextmanager
    async def _locked(self, owner: str) -> AsyncIterator[None]:
        """Let one at a time read or make the keys of ``owner``, so that each is unwrapped once.

        Who waited while that failed gets the same error: they would wait in turn for a Vault that does not answer.
        """
        began, lock = time.monotonic(), self._locks.setdefault(owner, _Lock())
        async with lock:
            if lock.failure and lock.failed_at > began:
                raise lock.failure.with_traceback(None)
            try:
                yield
            except Exception as error:
                lock.failure, lock.failed_at = error, time.monotonic()
                raise

    async def _load(self, owner: str) -> OwnerKeys:
        """Return the keys of ``owner``, from Redis unless they are cached. Raise ``Forgotten``."""
        while not (entry := self._cached(owner)):
            self._reading.add(owner)
            entry = await self._read(owner)
            if owner in self._reading:
                self._keep(owner, entry)
                break
        if entry.is_forgotten:
            raise Forgotten(owner)
        return entry.keys

    async def _read(self, owner: str) -> _Entry:
        before = self._cache.get(owner)
        known = before.data_keys if before else {}
        epoch = before.keys.epoch if before else 0
        until, sealed = time.monotonic() + self._seconds, known[epoch].unreported if epoch else 0
        at, words = await _read(self._redis, wrapped=self._keys.owner_keys(owner), epoch=epoch, sealed=sealed)
        if sealed:
            known[epoch].unreported -= sealed
        record = KeyRecord.parse(owner, dict(zip(words[::2], words[1::2], strict=True)))
        if record.forgotten is not None:
            if before:
                before.keys.forget()
            return _Entry(OwnerKeys(owner, {}), {}, True, until)
        unwrapping = (self._unwrap(owner, each, wrapped, known.get(each)) for each, wrapped in record.wrapped.items())
        data_keys = dict(zip(record.wrapped, await asyncio.gather(*unwrapping), strict=True))
        due_at = until - self._seconds + MOST_SECONDS - (float(at) - (record.made or 0))
        return _Entry(OwnerKeys(owner, data_keys, due_at=due_at, sealed_before=record.sealed), data_keys, False, until)

    async def _unwrap(self, owner: str, epoch: int, wrapped: bytes, known: DataKey | None) -> DataKey:
        if known and known.wrapped == wrapped:
            return known
        with _naming(owner, epoch):
            plain = await self._master.unwrap(wrapped, _context(owner, epoch))
            if len(plain) * 8 != KEY_BITS:
                raise WrongMasterKey(f"expected a key of {KEY_BITS} bits")
            return DataKey(plain, wrapped)

    async def _add(self, owner: str, newest: int) -> None:
        """Make the data key that follows ``newest``, unless another replica has made it."""
        epoch = newest + 1
        wrapped = await self._master.wrap(AESGCM.generate_key(KEY_BITS), _context(owner, epoch))
        named = {"wrapped": self._keys.owner_keys(owner), "owners": self._keys.key_owners}
        words = {"owner": owner, "epoch": epoch, "key": wrapped, "channel": self._keys.key_changes}
        await _add(self._redis, **named, **words)
        self.invalidate(owner)

    def _keep(self, owner: str, entry: _Entry) -> None:
        self._reading.discard(owner)
        self._cache.pop(owner, None)
        if len(self._cache) >= MOST_OWNERS:
            del self._cache[next(iter(self._cache))]
        self._cache[owner] = entry


def _context(owner: str, epoch: int) -> bytes:
    """Return what a wrapped data key is bound to: it unwraps for this owner and epoch only."""
    return f"dek|{owner}|{epoch}".encode()


@contextmanager
def _naming(owner: str, epoch: int) -> Iterator[None]:
    """Say in a ``WrongMasterKey`` which data key it was."""
    try:
        yield
    except WrongMasterKey as error:
        raise WrongMasterKey(f"data key {epoch} of {owner!r}: {error}") from None
