"""Programs that move messages from one list to another, most of them as they should not: ``... NAME`` runs one.

Each is restarted when it fails, and stops at SIGTERM when nothing is in its hands, so that nothing but its way of
moving messages is to blame.
"""

import os
import signal
import sys
from collections.abc import Callable
from hashlib import sha1
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

IN, WORKING, OUT, SECOND = "shop:in", "shop:working", "shop:out", "shop:second"


def pops_and_pushes(server: Any) -> None:
    """As many scripts in the world do."""
    if message := server.brpop([IN], 1):
        server.lpush(OUT, message[1])


def acknowledges_first(server: Any) -> None:
    if message := server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lrem(WORKING, 1, message)
        server.lpush(OUT, message)


def fans_out_bit_by_bit(server: Any) -> None:
    """What was in its hands when it failed goes first, to both lists."""
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lpush(OUT, message)
        server.lpush(SECOND, message)
        server.lrem(WORKING, 1, message)


def settles_at_once(server: Any) -> None:
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush(OUT, message).lpush(SECOND, message).lrem(WORKING, 1, message).execute()


def finishes(server: Any) -> None:
    """A worker of mdispatch: keeps the request and says that it is done, at once."""
    work, hand = "every:work", "every:work:working"
    if message := server.lindex(hand, -1) or server.blmove(work, hand, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush("every:kept", message).lpush("every:mdispatch:done", sha1(message).hexdigest())
            transaction.lrem(hand, 1, message).execute()


def settles_in_two_steps(server: Any) -> None:
    """What was in its hands when it failed goes first; between the two steps it has been delivered, and is there."""
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lpush(OUT, message)
        server.lrem(WORKING, 1, message)


def puts_back_at_the_wrong_end(server: Any) -> None:
    """Settles in one transaction; what it finds in its hands at its start is the newest message afterwards."""
    if message := server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush(OUT, message).lrem(WORKING, 1, message).execute()


def moves_in_a_transaction(server: Any) -> None:
    """Right: the oldest in its hands is settled first, also where it came there unseen."""
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
    """Right, too: run twice, the script settles the next message, which is in its hands as well."""
    server.blmove(IN, WORKING, 1, "RIGHT", "LEFT")
    while server.eval(SETTLE, 2, WORKING, OUT):
        pass


def loses_one_of_three_hundred(server: Any) -> None:
    """Settles in one transaction, and leaves some out, whether anything fails or not."""
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
"""Workers that pass a test without faults, and many with one."""
RIGHT: Final = ("moves_in_a_transaction", "moves_by_script")
PROGRAMS: Final[dict[str, Callable[[Any], None]]] = {
    each.__name__: each
    for each in (
        pops_and_pushes,
        acknowledges_first,
        fans_out_bit_by_bit,
        settles_at_once,
        finishes,
        settles_in_two_steps,
        puts_back_at_the_wrong_end,
        moves_in_a_transaction,
        moves_by_script,
        loses_one_of_three_hundred,
    )
}
PROGRAMS["pops_again"] = pops_and_pushes
PROGRAMS["pushes_again"] = settles_in_two_steps
RETRIES: Final = ("pops_again", "pushes_again")
"""Those whose client sends a command again when the connection is lost, as many clients do by default."""


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


if __name__ == "__main__":
    main(sys.argv[1])
