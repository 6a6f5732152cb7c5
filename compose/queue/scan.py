"""Search for plaintext of values and results in all that a server has: keys, their dumps, and its AOF."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from penstock.encoding import decoded

CONTENTS: Final = {
    "string": ("GET",),
    "list": ("LRANGE", 0, -1),
    "hash": ("HGETALL",),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", 0, -1),
    "stream": ("XRANGE", "-", "+"),
}
"""How to read a key of each type, with the words after its name."""
SHOWN: Final = 60


@dataclass
class Scan:
    """What a search has read and found."""

    keys: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)
    """Files of the AOF."""
    found: list[str] = field(default_factory=list)
    """Where plaintext was found."""
    unread: list[str] = field(default_factory=list)
    """Where not even ``control`` was found, which must be there: nothing else would have been found, either."""


async def scan(redis: "Redis", pattern: str, plaintext: re.Pattern[bytes], control: bytes, aof: Path | None) -> Scan:
    """Search the keys that match ``pattern``, and the folder ``aof``, for ``plaintext``."""
    done, seen = Scan(), False
    async for key in redis.scan_iter(pattern, count=1_000):
        done.keys += 1
        for part in await _parts(redis, key):
            seen = seen or control in part
            _search(done, decoded(key), part, plaintext)
    if not seen:
        done.unread.append("the keys")
    if aof:
        _search_files(done, aof, plaintext, control)
    return done


async def _parts(redis: "Redis", key: Any) -> list[bytes]:
    """Return the key itself, its dump, and what it holds: a dump is compressed."""
    word, *more = CONTENTS[decoded(await redis.type(key))]
    dump = await redis.execute_command("DUMP", key)
    return [*_flat([key, dump, await redis.execute_command(word, key, *more)])]


def _flat(found: Any) -> Iterator[bytes]:
    if isinstance(found, bytes):
        yield found
    elif isinstance(found, dict):
        yield from _flat([*found.items()])
    elif isinstance(found, list | tuple | set | frozenset):
        for each in found:
            yield from _flat(each)


def _search_files(done: Scan, folder: Path, plaintext: re.Pattern[bytes], control: bytes) -> None:
    contents = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    for name, content in contents.items():
        done.files.append(name)
        _search(done, name, content, plaintext)
    if not any(control in content for content in contents.values()):
        done.unread.append("the AOF")


def _search(done: Scan, place: str, content: bytes, plaintext: re.Pattern[bytes]) -> None:
    done.bytes += len(content)
    if match := plaintext.search(content):
        done.found.append(f"{place}: {content[match.start() : match.end() + SHOWN]!r}")
