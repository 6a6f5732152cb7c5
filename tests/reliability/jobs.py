"""Requests that tell a worker what to do with them, and their possible ends."""

import json
import random
from collections.abc import Callable
from hashlib import sha1
from typing import Final, NamedTuple

REPLIES: Final = tuple(f"demo:reply:{number}" for number in range(10))
WEIGHTS: Final = {
    "done": 50,
    "twin": 6,
    "silent": 5,
    "failing": 4,
    "flaky": 6,
    "final": 4,
    "late": 5,
    "touching": 5,
    "posthumous": 2,
}
"""Weights of the kinds, of about 100. In order: done at once; done, but pushed several times; never reported; failed in
every attempt; failed in the first; failed for good; done after the timeout; done after it, but touched before; done
after the last attempt."""
UNWILLING: Final = frozenset({"silent", "failing", "final"})
"""Kinds that no worker ever reports as done."""
LATER: Final = {"late": 1.35, "touching": 1.35, "posthumous": 8}
"""Seconds from delivery to done for three kinds; the timeout is 1 s, and the last attempt ends after 3.2 s."""


class Job(NamedTuple):
    """A parsed request."""

    message: bytes
    kind: str
    xid: str
    reply_to: str | None = None
    delay: float = 0


def parse_job(message: bytes) -> Job:
    if message.isdigit():
        return Job(message, "done", message.decode())
    if not message.startswith(b"{"):
        return Job(message, message.split()[0].decode(), sha1(message).hexdigest())
    meta = json.loads(message)["meta"]
    return Job(message, meta["id"].split("-")[0], meta["id"], meta.get("replyTo"), meta.get("delay", 0))


def requests(rng: random.Random) -> Callable[[int], bytes]:
    """Return a function from a number to a request: text, a number above all ids, or JSON with replyTo or delay."""
    twins: list[bytes] = []

    def request(number: int) -> bytes:
        if twins:
            return twins.pop()
        (kind,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind == "twin":
            twins.extend([b"twin %d" % number] * rng.randint(1, 3))
            return twins[0]
        form = rng.random()
        if form < 0.2 and kind == "done":
            return b"%d" % (10**9 + number)
        if form < 0.4:
            return b"%b %d" % (kind.encode(), number)
        meta: dict[str, object] = {"id": f"{kind}-{number}"}
        if rng.random() < 0.5:
            meta["replyTo"] = REPLIES[number % len(REPLIES)]
        if rng.random() < 0.2:
            meta["delay"] = round(rng.uniform(0.1, 1.5), 3)
        return json.dumps({"meta": meta}).encode()

    return request
