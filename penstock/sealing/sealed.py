"""Seal and open messages with the data keys of one owner: AES-256-GCM with a random nonce.

A sealed message is ``0x01 | epoch (4 bytes) | nonce (12) | ciphertext | tag (16)``.
"""

import os
import time
from collections.abc import Mapping
from math import inf
from typing import Final

from penstock.base.errors import Forgotten, Unopenable, WrongCall
from penstock.base.extras import extra

with extra("seal"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION: Final = 1
HEADER_BYTES: Final = 5
NONCE_BYTES: Final = 12
OVERHEAD: Final = HEADER_BYTES + NONCE_BYTES + 16
"""By how many bytes a sealed message is longer than the plain one."""
MOST_MESSAGES: Final = 2**31
"""Messages after which a data key is replaced. With random nonces, AES-GCM allows 2^32."""


def epoch_of(sealed: bytes) -> int:
    """Return the epoch of the data key with which ``sealed`` was sealed. Raise ``Unopenable``."""
    if len(sealed) < OVERHEAD or sealed[0] != VERSION:
        raise Unopenable("not a sealed message: too short, or of another version")
    return int.from_bytes(sealed[1:HEADER_BYTES])


class DataKey:
    """A data key, wrapped and ready for use; its repr shows nothing of it."""

    __slots__ = ("cipher", "unreported", "wrapped")

    def __init__(self, plain: bytes, wrapped: bytes) -> None:
        self.cipher = AESGCM(plain)
        self.wrapped = wrapped
        self.unreported = 0
        """Messages that were sealed with it in this process and that Redis has not counted yet."""

    def __repr__(self) -> str:
        return "<DataKey>"


class OwnerKeys:
    """The data keys of one owner: the newest seals, all of them open. Do not keep it longer than one message."""

    __slots__ = ("_ciphers", "_due_at", "_forgotten", "_header", "_newest", "_sealed_before", "epoch", "owner")

    def __init__(self, owner: str, keys: Mapping[int, DataKey], *, due_at: float = inf, sealed_before: int = 0) -> None:
        """``due_at`` is on the monotonic clock; ``sealed_before`` counts the messages of all replicas."""
        self.owner = owner
        self.epoch = max(keys, default=0)
        """The epoch of the newest key; 0 if the owner has none."""
        self._ciphers = {epoch: key.cipher for epoch, key in keys.items()}
        self._newest = keys.get(self.epoch)
        self._header = bytes([VERSION]) + self.epoch.to_bytes(4)
        self._due_at, self._sealed_before = due_at, sealed_before
        self._forgotten = False

    def __repr__(self) -> str:
        return f"<OwnerKeys of {self.owner!r}, epoch {self.epoch}>"

    @property
    def due(self) -> bool:
        """Return True if sealing needs a new epoch: there is none, or the newest is too old or too much used."""
        newest = self._newest
        return (
            newest is None
            or self._sealed_before + newest.unreported >= MOST_MESSAGES
            or time.monotonic() >= self._due_at
        )

    def forget(self) -> None:
        """Drop the keys; from now on, ``seal`` and ``open`` raise ``Forgotten``."""
        self._ciphers, self._newest, self._forgotten = {}, None, True

    def seal(self, plain: bytes, aad: bytes) -> bytes:
        """Return ``plain`` sealed with the newest key; ``open`` needs the same ``aad``. Raise ``Forgotten``."""
        newest = self._newest
        if newest is None:
            raise Forgotten(self.owner) if self._forgotten else WrongCall("no data key: ask Keyring.current for it")
        newest.unreported += 1
        nonce = os.urandom(NONCE_BYTES)
        return b"".join((self._header, nonce, newest.cipher.encrypt(nonce, plain, aad)))

    def open(self, sealed: bytes, aad: bytes) -> bytes:
        """Return the plain message. Raise ``Unopenable`` or ``Forgotten``."""
        if self._forgotten:
            raise Forgotten(self.owner)
        epoch = epoch_of(sealed)
        cipher = self._ciphers.get(epoch)
        if cipher is None:
            raise Unopenable(f"sealed with data key {epoch}, which its owner does not have")
        body = memoryview(sealed)[HEADER_BYTES:]
        try:
            return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], aad)
        except InvalidTag:
            raise Unopenable("changed after it was sealed, or sealed for another owner, queue or task") from None
