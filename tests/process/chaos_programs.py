"""Programs that move messages between lists, most of them incorrectly; ``python -m ... NAME`` runs one.

Each is restarted after a failure and stops on SIGTERM only between messages, so any loss comes from how it moves them.
"""

import os
import signal
import sys
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

IN, WORKING, OUT, SECOND = "shop:in", "shop:working", "shop:out", "shop:second"


def pops_and_pushes(server: Any) -> None:
    """Pop, then push: not safe, but common."""
    if message := server.brpop([IN], 1):
        server.lpush(OUT, message[1])


def acknowledges_first(server: Any) -> None:
    if message := server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lrem(WORKING, 1, message)
        server.lpush(OUT, message)


def fans_out_one_by_one(server: Any) -> None:
    """Push to both lists one by one. After a restart, the message in ``WORKING`` goes first, to both lists again."""
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lpush(OUT, message)
        server.lpush(SECOND, message)
        server.lrem(WORKING, 1, message)


def settles_at_once(server: Any) -> None:
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush(OUT, message).lpush(SECOND, message).lrem(WORKING, 1, message).execute()


def finishes(server: Any) -> None:
    """Act as a worker of mdispatch: keep the request and report it as done, in one transaction."""
    work, hand = "every:work", "every:work:working"
    if message := server.lindex(hand, -1) or server.blmove(work, hand, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush("every:kept", message).lpush("every:mdispatch:done", sha1(message).hexdigest())
            transaction.lrem(hand, 1, message).execute()


def settles_in_two_steps(server: Any) -> None:
    """Deliver, then remove from ``WORKING``. A restart between the two steps delivers the message again."""
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lpush(OUT, message)
        server.lrem(WORKING, 1, message)


def puts_back_at_the_wrong_end(server: Any) -> None:
    """Settle in one transaction. At a restart, ``main`` returns ``WORKING`` to the wrong end, as the newest message."""
    if message := server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush(OUT, message).lrem(WORKING, 1, message).execute()


def moves_in_a_transaction(server: Any) -> None:
    """Settle the oldest message in ``WORKING`` first, even if the reply to its BLMOVE was lost. Correct."""
    server.blmove(IN, WORKING, 1, "RIGHT", "LEFT")
    while message := server.lindex(WORKING, -1):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush(OUT, message).rpop(WORKING).execute()


SETTLE: Final = """
local message = redis.call('LINDEX', KEYS[1], -1)
if message then
  redis.call('LPUSH', KEYS[2], message)
  redis.call('RPOP', KEYS[1])
end
return message
"""


def moves_by_script(server: Any) -> None:
    """Settle by script. Correct: a second run settles the next message, which is in ``WORKING``, too."""
    server.blmove(IN, WORKING, 1, "RIGHT", "LEFT")
    while server.eval(SETTLE, 2, WORKING, OUT):
        pass


def drops_every_300th(server: Any) -> None:
    """Settle in one transaction, but drop every 300th message, with or without a fault."""
    server.blmove(IN, WORKING, 1, "RIGHT", "LEFT")
    while message := server.lindex(WORKING, -1):
        lost = server.incr("shop:seen") % 300 == 0
        with server.pipeline(transaction=True) as transaction:
            if not lost:
                transaction.lpush(OUT, message)
            transaction.rpop(WORKING).execute()


WRONG: Final = (
    "pops_and_pushes",
    "pops_again",
    "pushes_again",
    "settles_in_two_steps",
    "puts_back_at_the_wrong_end",
)
"""Wrong programs that pass a test without faults, and often one with a single fault."""
RIGHT: Final = ("moves_in_a_transaction", "moves_by_script")
PROGRAMS: Final[dict[str, Callable[[Any], None]]] = {
    each.__name__: each
    for each in (
        pops_and_pushes,
        acknowledges_first,
        fans_out_one_by_one,
        settles_at_once,
        finishes,
        settles_in_two_steps,
        puts_back_at_the_wrong_end,
        moves_in_a_transaction,
        moves_by_script,
        drops_every_300th,
    )
}
PROGRAMS["pops_again"] = pops_and_pushes
PROGRAMS["pushes_again"] = settles_in_two_steps
RETRIES: Final = ("pops_again", "pushes_again")
"""Programs whose client resends a command after a lost connection, as many clients do by default."""


def main(name: str) -> None:
    orders: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: orders.append(number))
    retry = Retry(NoBackoff(), 3 if name in RETRIES else 0)
    server = redis.Redis.from_url(os.environ["REDIS"], retry=retry, socket_timeout=3, protocol=2)
    if name == "puts_back_at_the_wrong_end":
        while server.lmove(WORKING, IN, "RIGHT", "LEFT"):
            pass
    while not orders:
        PROGRAMS[name](server)


def composed(directory: Path, program: str, *out: str, ordered: bool = False) -> Path:
    """Write a composition of one program; return its folder."""
    (directory / "Procfile").write_text(f"mover: exec python -m tests.process.chaos_programs {program}\n")
    order = ", ordered: true" if ordered else ""
    said = f"programs:\n  mover: {{reads: {IN}, writes: [{', '.join(out)}], keeps: {WORKING}{order}}}\n"
    (directory / "composition.yaml").write_text(said)
    return directory


if __name__ == "__main__":
    main(sys.argv[1])
