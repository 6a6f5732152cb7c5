"""A load of requests at a steady rate, and what became of them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from compose.web.client import Answer, Broken, Client

CLIENTS: Final = 64
"""Connections at a time."""
MAX_SECONDS: Final = 40.0
"""Seconds until a request without an answer counts as failed: more than the importers' time-out."""
AGAIN_SECONDS: Final = 0.1
"""Seconds until a request is tried again."""


class Kind(NamedTuple):
    """One kind of request; ``{day}`` and ``{month}`` become some day and month, ``{number}`` a number of its own."""

    method: str
    target: str
    status: int
    """Expected of its answer."""
    share: int
    """How often it comes, relative to the others."""
    body: str = ""


KINDS: Final = (
    Kind("GET", "/days/{day}", 200, 150),
    Kind("GET", "/months/{month}", 200, 20),
    Kind("GET", "/report", 200, 1),
    Kind("GET", "/private/diary", 403, 5),
    Kind("GET", "/elsewhere", 404, 5),
    Kind("GET", "/", 302, 5),
    Kind("POST", "/notes", 201, 14, "note {number}"),
)


@dataclass
class Step:
    """What became of the requests that were due in one step of the load."""

    name: str
    asked: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    again: int = 0
    """Requests that were tried again, as their connection broke before an answer."""
    seconds: list[float] = field(default_factory=list)
    """From when each request was due to its answer."""
    failed: list[str] = field(default_factory=list)
    """Idempotent requests without the expected answer."""
    undone: list[str] = field(default_factory=list)
    """POSTs that were refused, or whose connection broke: they are not tried again."""

    @property
    def slowest(self) -> float:
        return max(self.seconds, default=0.0)

    @property
    def median(self) -> float:
        return median(self.seconds or [0.0])

    def cells(self, statuses: Iterable[int]) -> dict[str, str | int]:
        """Return the rows of its column in a table, with one for each of ``statuses``."""
        return {
            "requests": self.asked,
            **{f"answered {status}": self.statuses[status] for status in statuses},
            "failed": len(self.failed),
            "tried again": self.again,
            "POSTs not done": len(self.undone),
            "median (s)": f"{self.median:.3f}",
            "slowest (s)": f"{self.slowest:.3f}",
        }

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            "name": self.name,
            "requests": self.asked,
            "statuses": {str(status): many for status, many in sorted(self.statuses.items())},
            "failed": len(self.failed),
            "undone": self.undone,
            "triedAgain": self.again,
            "median": round(self.median, 3),
            "slowest": round(self.slowest, 3),
        }

    @classmethod
    def sum(cls, steps: "Iterable[Step]") -> "Step":
        """Return what became of the requests of all ``steps``."""
        whole = cls("all")
        for each in steps:
            whole.asked += each.asked
            whole.statuses += each.statuses
            whole.again += each.again
            whole.seconds += each.seconds
            whole.failed += each.failed
            whole.undone += each.undone
        return whole


class Load:
    """Requests to ``host`` and ``port``, in steps; ``begin`` begins one."""

    def __init__(self, host: str, port: int, rate: float, seed: int = 1) -> None:
        self._host, self.port, self._rate = host, port, rate
        self._random = random.Random(seed)
        self._number = 0
        self.over = 0
        """How many requests are answered, or have failed."""
        self.steps = list[Step]()
        self.noted = list[str]()
        """Notes whose POST was answered with 201."""

    def begin(self, name: str) -> None:
        """Begin a step: it has the requests that are due from now on."""
        self.steps.append(Step(name))

    def total(self, seconds: float) -> int:
        """Return how many requests ``run`` sends."""
        return round(seconds * self._rate)

    async def run(self, seconds: float) -> None:
        """Send requests for ``seconds``, whether former ones are answered or not, and wait for all answers."""
        begun, total = time.monotonic(), self.total(seconds)
        queue = asyncio.Queue[tuple[float, Step, Kind] | None]()
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._ask_all(queue))
            for number in range(total):
                due = begun + number / self._rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                [kind] = self._random.choices(KINDS, [each.share for each in KINDS])
                queue.put_nowait((due, self.steps[-1], kind))
            for _ in range(CLIENTS):
                queue.put_nowait(None)

    async def _ask_all(self, queue: "asyncio.Queue[tuple[float, Step, Kind] | None]") -> None:
        client = Client(self._host, self.port)
        try:
            while next := await queue.get():
                await self._ask(client, *next)
                self.over += 1
        finally:
            client.close()

    async def _ask(self, client: Client, due: float, step: Step, kind: Kind) -> None:
        target, body = self._filled(kind)
        step.asked += 1
        try:
            async with asyncio.timeout(MAX_SECONDS):
                answer = await self._until_answered(client, step, kind, target, body)
        except (Broken, TimeoutError) as error:
            found = step.undone if kind.method == "POST" else step.failed
            found.append(f"{kind.method} {target}: {str(error) or 'no answer'}")
            return
        step.statuses[answer.status] += 1
        step.seconds.append(time.monotonic() - due)
        if answer.status != kind.status:
            found = step.undone if kind.method == "POST" else step.failed
            found.append(f"{kind.method} {target}: {answer.status} {answer.body[:100].decode(errors='replace')}")
        elif kind.method == "POST":
            self.noted.append(body)

    async def _until_answered(self, client: Client, step: Step, kind: Kind, target: str, body: str) -> Answer:
        """Try a request again if its connection breaks, as a proxy does, unless it must not be done twice."""
        tried = False
        while True:
            try:
                return await client.ask(kind.method, target, body.encode())
            except Broken:
                if kind.method == "POST":
                    raise
                step.again += 0 if tried else 1
                tried = True
                await asyncio.sleep(AGAIN_SECONDS)

    def _filled(self, kind: Kind) -> tuple[str, str]:
        self._number += 1
        year, month, day = (self._random.randint(*bounds) for bounds in ((2012, 2015), (1, 12), (1, 28)))
        month_name = f"{year}-{month:02}"
        target = kind.target.format(day=f"{month_name}-{day:02}", month=month_name)
        return target, kind.body.format(number=self._number)
