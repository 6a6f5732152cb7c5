"""What is done to the chain: each fault breaks something, waits, and mends it; any number of them go on at once."""

import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from tests.reliability.soak.chain import ARRIVED, DONE, HERE, IN, LEGS, NAMESPACES, SERVICES, THERE, WORK, Chain, Place
from tests.reliability.soak.links import DIRECTIONS

EXPIRED: Final = 33.0
"""Seconds that are longer than `serviceExpire`, which cannot be less than 30."""
LONG: Final = 90.0
"""Seconds that are left when a fault may last as long as that."""


@dataclass
class FaultContext:
    """``left`` is how many seconds of the seed remain when the fault begins; ``stop`` ends every fault at once."""

    chain: Chain
    rng: random.Random
    left: float
    stop: threading.Event

    def place(self, *names: str) -> Place:
        return self.rng.choice([place for place in self.chain.places if place.name in (names or (place.name,))])

    def side(self) -> str:
        return self.rng.choice((HERE, HERE, THERE))

    def seconds(self, least: float, most: float) -> float:
        """Return a length; one in six is longer than a registration lives, where the seed has the time."""
        if self.left > LONG and self.rng.random() < 1 / 6:
            return EXPIRED
        return self.rng.uniform(least, most)

    def order(self, side: str, *words: Any) -> None:
        """Ask the server as it is: it may be away, or say no."""
        with self.chain.asking(side) as redis, suppress(RedisError):
            redis.execute_command(*words)


def killed(context: FaultContext) -> None:
    context.place().signal(signal.SIGKILL)


def stopped(context: FaultContext) -> None:
    """The worker has no other way to end than this."""
    place = context.place(*SERVICES)
    if '"settings"' in place.replica.log_text():
        place.signal(signal.SIGTERM)


def suspended(context: FaultContext) -> None:
    """Longer than a lease, and sometimes longer than a registration."""
    place, seconds = context.place(), context.seconds(1.5, 5)
    pid = place.signal(signal.SIGSTOP)
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
    """For a moment, and sometimes longer than a registration lives."""
    side, seconds = context.side(), context.seconds(0.5, 4)
    with context.chain.locks[side]:
        context.order(side, "CONFIG", "SET", "maxmemory", "1")
        context.stop.wait(seconds)
        context.chain.insist(side, "CONFIG", "SET", "maxmemory", "0")


def read_only(context: FaultContext) -> None:
    """A replica of nobody: what a failover leaves for a while."""
    side, seconds = context.side(), context.rng.uniform(0.3, 3)
    with context.chain.locks[side]:
        context.order(side, "REPLICAOF", "127.0.0.1", "1")
        context.stop.wait(seconds)
        context.chain.insist(side, "REPLICAOF", "NO", "ONE")


def wrong_type(context: FaultContext) -> None:
    """Any key that the services use is a text for a while, or a list if it is a text; then it is what it was."""
    side = context.rng.choice((HERE, HERE, HERE, THERE))
    key, seconds = _key(context, side), context.rng.uniform(0.2, 3)
    aside = f"aside:{key}"
    with context.chain.locks[side]:
        try:
            with context.chain.asking(side) as redis:
                found = redis.eval(SPOIL, 2, key, aside)
        except RedisError:
            found = None
        context.stop.wait(seconds if found != b"spoiled" else 0)
        context.chain.insist(side, "EVAL", MEND, 2, key, aside)


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
  return redis.call('DEL', KEYS[2]) -- a service wrote it anew, as it does with what it knows
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
        *LEGS,
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
    """An order to stop; whoever runs the process starts it again."""
    place = context.place(*SERVICES)
    pid = str(place.replica.pid).encode()
    namespace = NAMESPACES[place.name]
    with context.chain.asking(HERE) as redis, suppress(RedisError):
        for id in redis.lrange(f"{namespace}:ids", 0, -1):
            key = f"{namespace}:{id.decode()}"
            if redis.hget(key, "pid") == pid:
                redis.delete(key)


def cut(context: FaultContext) -> None:
    place = context.place()
    context.rng.choice(list(place.proxies.values())).cut()


def torn(context: FaultContext) -> None:
    place = context.place()
    context.rng.choice(list(place.proxies.values())).tear(context.rng)


def held(context: FaultContext) -> None:
    """One direction is silent, and sometimes for longer than the process waits for an answer."""
    proxy = context.rng.choice(list(context.place().proxies.values()))
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
"""How often one is drawn; the others 2."""


def drawn(rng: random.Random) -> str:
    names = list(FAULTS)
    return rng.choices(names, [WEIGHTS.get(name, 2) for name in names])[0]


def inject(name: str, context: FaultContext) -> None:
    """Let the fault happen, to its end; a server that refuses a command of ours is no failure."""
    with suppress(ResponseError):
        FAULTS[name](context)
