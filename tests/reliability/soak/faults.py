"""Faults of the chain: each breaks something, waits, and repairs it; any number may be active at once."""

import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from tests.reliability.soak.chain import (
    ARRIVED,
    BRANCHES,
    DONE,
    HERE,
    IN,
    NAMESPACES,
    SERVICES,
    THERE,
    WORK,
    Chain,
    ManagedProcess,
)
from tests.reliability.soak.links import DIRECTIONS

EXPIRED_SECONDS: Final = 33.0
"""Seconds, longer than `serviceExpire`, whose minimum is 30."""
MIN_LEFT: Final = 90.0
"""Seconds that must be left for a fault of ``EXPIRED_SECONDS``."""


@dataclass
class FaultContext:
    """The context of a fault; ``left`` seconds of the seed remain, and ``stop`` ends all faults at once."""

    chain: Chain
    rng: random.Random
    left: float
    stop: threading.Event

    def process(self, *names: str) -> ManagedProcess:
        return self.rng.choice([each for each in self.chain.processes if each.name in (names or (each.name,))])

    def side(self) -> str:
        return self.rng.choice((HERE, HERE, THERE))

    def seconds(self, least: float, most: float) -> float:
        """Return a duration; one in six exceeds the TTL of a registration, if enough seconds are left."""
        if self.left > MIN_LEFT and self.rng.random() < 1 / 6:
            return EXPIRED_SECONDS
        return self.rng.uniform(least, most)

    def order(self, side: str, *words: Any) -> None:
        """Send a command; ignore errors, as the server may be down or refuse it."""
        with self.chain.connected(side) as redis, suppress(RedisError):
            redis.execute_command(*words)


def killed(context: FaultContext) -> None:
    context.process().signal(signal.SIGKILL)


def stopped(context: FaultContext) -> None:
    """Stop a service with SIGTERM, once it handles signals; the worker can only be killed."""
    process = context.process(*SERVICES)
    if '"settings"' in process.replica.log_text():
        process.signal(signal.SIGTERM)


def suspended(context: FaultContext) -> None:
    """Suspend a process for longer than a lease lasts, and sometimes longer than a registration."""
    process, seconds = context.process(), context.seconds(1.5, 5)
    pid = process.signal(signal.SIGSTOP)
    context.stop.wait(seconds)
    with suppress(ProcessLookupError):
        pid.signal(signal.SIGCONT)


def server_killed(context: FaultContext) -> None:
    side, seconds = context.side(), context.rng.uniform(0, 1.5)
    with context.chain.locks[side]:
        context.chain.servers[side].kill()
        context.stop.wait(seconds)
        context.chain.servers[side].start()


def clients_killed(context: FaultContext) -> None:
    context.order(context.side(), "CLIENT", "KILL", "TYPE", "normal")


def paused(context: FaultContext) -> None:
    mode = context.rng.choice(("ALL", "WRITE"))
    context.order(context.side(), "CLIENT", "PAUSE", context.rng.randrange(100, 3_000), mode)


def scripts_flushed(context: FaultContext) -> None:
    context.order(context.side(), "SCRIPT", "FLUSH")


def asleep(context: FaultContext) -> None:
    context.order(context.side(), "DEBUG", "SLEEP", str(context.rng.uniform(0.1, 2)))


def full(context: FaultContext) -> None:
    """Let a server run out of memory for a while, sometimes longer than a registration lasts."""
    side, seconds = context.side(), context.seconds(0.5, 4)
    with context.chain.locks[side]:
        context.order(side, "CONFIG", "SET", "maxmemory", "1")
        context.stop.wait(seconds)
        context.chain.execute_until_answered(side, "CONFIG", "SET", "maxmemory", "0")


def read_only(context: FaultContext) -> None:
    """Make a server a replica without a master, as a failover does for a while."""
    side, seconds = context.side(), context.rng.uniform(0.3, 3)
    with context.chain.locks[side]:
        context.order(side, "REPLICAOF", "127.0.0.1", "1")
        context.stop.wait(seconds)
        context.chain.execute_until_answered(side, "REPLICAOF", "NO", "ONE")


def wrong_type(context: FaultContext) -> None:
    """Replace a key of the services by a string, or a string by a list, for a while."""
    side = context.rng.choice((HERE, HERE, HERE, THERE))
    key, seconds = _key(context, side), context.rng.uniform(0.2, 3)
    aside = f"aside:{key}"
    with context.chain.locks[side]:
        try:
            with context.chain.connected(side) as redis:
                found = redis.eval(SPOIL, 2, key, aside)
        except RedisError:
            found = None
        context.stop.wait(seconds if found != b"spoiled" else 0)
        context.chain.execute_until_answered(side, "EVAL", MEND, 2, key, aside)


SPOIL: Final = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 'spoiled' end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[2]) end
if redis.call('TYPE', KEYS[2]).ok == 'string' then
  redis.call('LPUSH', KEYS[1], 'spoiled by a test')
else
  redis.call('SET', KEYS[1], 'spoiled by a test')
end
return 'done'
"""
MEND: Final = """
local kind, found = redis.call('TYPE', KEYS[1]).ok, nil
if kind == 'string' then found = redis.call('GET', KEYS[1]) end
if kind == 'list' then found = redis.call('LINDEX', KEYS[1], -1) end
if found == 'spoiled by a test' then
  redis.call('DEL', KEYS[1])
elseif kind ~= 'none' then
  return redis.call('DEL', KEYS[2]) -- a service has written the key again
end
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[1]) end
return 'mended'
"""


def _key(context: FaultContext, side: str) -> str:
    if side == THERE:
        return ARRIVED
    rng, namespace = context.rng, NAMESPACES[context.rng.choice(SERVICES)]
    track = NAMESPACES["mdispatch"]
    kinds = (
        IN,
        *BRANCHES,
        WORK,
        DONE,
        *(f"{namespace}:{name}" for name in ("ids", "owners", "holdings", "lists", "lease", "metrics:taken")),
        *(f"{track}:message:{name}" for name in ("id", "ids", "deadlines", "delayed")),
        *(f"{track}:{name}" for name in ("events", "policy", "metrics:done", "metrics:registered")),
        f"{NAMESPACES['vpush']}:sequence",
        f"{NAMESPACES['vpush']}:pending",
        f"{NAMESPACES['mpush']}:pending",
    )
    return rng.choice(kinds)


def deregistered(context: FaultContext) -> None:
    """Order an instance to stop; the chain starts another one."""
    process = context.process(*SERVICES)
    pid = str(process.replica.pid).encode()
    namespace = NAMESPACES[process.name]
    with context.chain.connected(HERE) as redis, suppress(RedisError):
        for id in redis.lrange(f"{namespace}:ids", 0, -1):
            key = f"{namespace}:{id.decode()}"
            if redis.hget(key, "pid") == pid:
                redis.delete(key)


def cut(context: FaultContext) -> None:
    process = context.process()
    context.rng.choice(list(process.proxies.values())).cut()


def torn(context: FaultContext) -> None:
    process = context.process()
    context.rng.choice(list(process.proxies.values())).tear(context.rng)


def held(context: FaultContext) -> None:
    """Hold back one direction, sometimes for longer than the process waits for a reply."""
    proxy = context.rng.choice(list(context.process().proxies.values()))
    direction, cuts = context.rng.choice(DIRECTIONS), context.rng.random() < 0.5
    proxy.hold(direction, context.rng.choice((context.rng.uniform(0.2, 3), context.rng.uniform(8, 14))), cut=cuts)


FAULTS: Final[dict[str, Callable[[FaultContext], None]]] = {
    "kill -9": killed,
    "SIGTERM": stopped,
    "SIGSTOP": suspended,
    "server kill": server_killed,
    "CLIENT KILL": clients_killed,
    "CLIENT PAUSE": paused,
    "SCRIPT FLUSH": scripts_flushed,
    "DEBUG SLEEP": asleep,
    "maxmemory": full,
    "REPLICAOF": read_only,
    "wrong type": wrong_type,
    "DEL of a registration": deregistered,
    "cut": cut,
    "torn at a byte": torn,
    "one direction held": held,
}
WEIGHTS: Final = {"kill -9": 3, "SIGTERM": 2, "server kill": 1, "cut": 3, "torn at a byte": 3, "wrong type": 3}
"""Weights of the faults in the random choice; 2 for the others."""


def draw_fault(rng: random.Random) -> str:
    names = list(FAULTS)
    return rng.choices(names, [WEIGHTS.get(name, 2) for name in names])[0]


def inject(name: str, context: FaultContext) -> None:
    """Run a fault to its end; ignore commands that the server refuses."""
    with suppress(ResponseError):
        FAULTS[name](context)
