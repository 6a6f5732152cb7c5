"""The master key, with which data keys are wrapped: in a file, or in Vault, which never gives it away."""

import binascii
import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, Self

from penstock.base.errors import WrongMasterKey
from penstock.base.extras import extra
from penstock.base.secrets import MAX_SECRET_BYTES, NoSecret, read_at_most
from penstock.sealing.vault import VaultKey

with extra("seal"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
ID_BYTES: Final = 8
VERSION: Final = b"\x01"
SYSTEMD_DIRECTORY: Final = "CREDENTIALS_DIRECTORY"
"""Variable with the folder of LoadCredential=, which only the service can enter; the files there may have mode 0440."""


class MasterKey(Protocol):
    """Wraps and unwraps data keys; ``context`` says whose data key it is, and must be the same for both."""

    @property
    def id(self) -> str:
        """Name the master key that wraps, without saying anything of the key itself."""
        ...

    async def wrap(self, plain: bytes, context: bytes) -> bytes: ...

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the data key. Raise ``WrongMasterKey``."""
        ...

    async def rewrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the same data key, wrapped with the newest master key. Raise ``WrongMasterKey``."""
        ...


def master_key(setting: str, environ: Mapping[str, str] | None = None) -> MasterKey:
    """Return the master key named ``file:/path`` or ``vault:https://host:8200/transit/name``. Raise ``NoSecret``."""
    kind, _, place = setting.partition(":")
    environ = os.environ if environ is None else environ
    if kind == "file" and place:
        return FileKey.read(place, environ)
    if kind == "vault" and place:
        return VaultKey.parse(place, environ)
    raise NoSecret("expected a master key as file:/PATH or vault:https://HOST:PORT/MOUNT/KEY")


class FileKey:
    """Master keys in a file, one a line: the first wraps, all of them unwrap.

    Wrapped is ``0x01 | id of the master key (8 bytes) | nonce (12) | ciphertext | tag (16)``.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
        self._first = _id_of(keys[0])

    def __repr__(self) -> str:
        return f"<FileKey {self.id}>"

    @property
    def id(self) -> str:
        return self._first.hex()

    @classmethod
    def read(cls, path: str | Path, environ: Mapping[str, str] | None = None) -> Self:
        """Return the keys in the file ``path``: 32 bytes each, as base64 or hex. Raise ``NoSecret``."""
        folder = (os.environ if environ is None else environ).get(SYSTEMD_DIRECTORY)
        private = not (folder and Path(path).is_relative_to(folder))
        try:
            found = read_at_most(str(path), MAX_SECRET_BYTES, private=private)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise NoSecret(f"master key: {path} cannot be read: {reason}") from None
        lines = [(number, line.strip()) for number, line in enumerate(found.splitlines(), start=1)]
        keys = [_parse(line, f"master key: {path}:{number}") for number, line in lines if line]
        if not keys:
            raise NoSecret(f"master key: {path} is empty: expected 32 bytes as base64 or hex")
        return cls(keys)

    async def wrap(self, plain: bytes, context: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return VERSION + self._first + nonce + self._ciphers[self._first].encrypt(nonce, plain, context)

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        version, id, rest = wrapped[:1], wrapped[1 : 1 + ID_BYTES], wrapped[1 + ID_BYTES :]
        if version != VERSION:
            raise WrongMasterKey("not wrapped with a master key in a file")
        if id not in self._ciphers:
            raise WrongMasterKey(f"wrapped with the master key {id.hex()}, which the file does not have")
        try:
            return self._ciphers[id].decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], context)
        except (InvalidTag, ValueError):
            raise WrongMasterKey("changed after it was wrapped, or wrapped for another owner or epoch") from None

    async def rewrap(self, wrapped: bytes, context: bytes) -> bytes:
        return await self.wrap(await self.unwrap(wrapped, context), context)


def _id_of(key: bytes) -> bytes:
    return sha256(b"penstock master key\0" + key).digest()[:ID_BYTES]


def _parse(line: bytes, place: str) -> bytes:
    """Return the key in a line; 64 hexadecimal digits are hex."""
    key = b""
    try:
        if re.fullmatch(rb"[0-9A-Fa-f]{64}", line):
            key = bytes.fromhex(line.decode())
        else:
            key = b64decode(line.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(line) % 4), validate=True)
    except binascii.Error:
        pass
    if len(key) != KEY_BYTES:
        raise NoSecret(f"{place}: expected 32 bytes as base64 (44 characters) or hex (64 digits)")
    return key
