"""What tests of encryption share: a file with master keys, a keyring on the tests' server."""

from base64 import b64encode
from pathlib import Path

from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.sealing.keyring import Keyring
from penstock.sealing.master import FileKey, MasterKey

KEYS = Keys("box")
AAD = b"ann|orders|17"
FIRST, SECOND = bytes(range(32)), bytes(range(32, 64))
"""Master keys."""


def keyring(redis: "Redis", master: MasterKey | None = None, seconds: float = 30) -> Keyring:
    return Keyring(redis, KEYS, master or FileKey([FIRST]), seconds=seconds)


def key_file(path: Path, *keys: bytes, mode: int = 0o600) -> Path:
    """Write ``keys`` to ``path`` as base64, with ``mode``."""
    path.touch(mode=0o600)
    path.write_bytes(b"".join(b64encode(key) + b"\n" for key in keys))
    path.chmod(mode)
    return path
