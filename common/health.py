"""``python -m common.health``: whether the service in this container is registered; exit status 0 or 1.

It finds the process that runs ``-m services.<name>`` here, reads the same settings, and looks for a live registration
with this host and that process. A service without a namespace is well while its server answers.
"""

import asyncio
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.arguments import parse
from penstock.connection import connect
from penstock.keys import Keys
from penstock.names import decoded


def services() -> Iterator[tuple[int, str, list[str], dict[str, str]]]:
    """Process id, service, arguments and environment of every service that runs on this host (needs /proc)."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = [decoded(word) for word in (entry / "cmdline").read_bytes().split(b"\0")]
            environment = [decoded(pair) for pair in (entry / "environ").read_bytes().split(b"\0")]
            here = (entry / "root").samefile("/")
        except OSError:
            continue
        if not here or not Path(words[0]).name.startswith("python"):
            continue
        for place, word in enumerate(words[:-1]):
            if word == "-m" and words[place + 1].startswith("services."):
                pairs = dict(pair.partition("=")[::2] for pair in environment if pair)
                yield int(entry.name), words[place + 1].partition(".")[2], words[place + 2 : -1], pairs


async def registered(pid: int, service: str, arguments: list[str], environment: dict[str, str]) -> bool:
    """Whether the process is in the registry that its settings name."""
    os.chdir(f"/proc/{pid}/cwd")  # the props file may be named relative to it
    settings_class = importlib.import_module(f"services.{service}.settings").Settings
    settings = parse(service, settings_class, arguments, environment)
    async with connect(settings.service_redis or settings.redis, silence=3, name="penstock-health") as redis:
        if settings.redis_namespace is None:
            return bool(await redis.ping())
        return await _listed(redis, Keys(settings.redis_namespace), str(pid))


async def _listed(redis: "Redis", keys: Keys, pid: str) -> bool:
    newest = int(await redis.get(keys.counter) or 0)
    listed = [decoded(id) for id in await redis.lrange(keys.ids, 0, -1)]
    for id in (*listed, *map(str, range(newest, max(newest - 100, 0), -1))):
        host, process = await redis.hmget(keys.instance(id), ["host", "pid"])
        if (host, process) == (socket.gethostname().encode(), pid.encode()):
            return True
    return False


def main() -> int:
    found = list(services())
    if not found:
        print("no service runs here: expected a process `python -m services.<name>`", file=sys.stderr)
        return 1
    for pid, service, arguments, environment in found:
        try:
            if not asyncio.run(registered(pid, service, arguments, environment)):
                print(f"{service}, process {pid}, is not registered", file=sys.stderr)
                return 1
        except (RedisError, OSError) as error:
            print(f"{service}, process {pid}: its server does not answer: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
