"""What became of the tasks, as those saw it who asked, and what the server says after the end."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from compose import runner
from compose.comparison import not_once
from compose.ending import Ending
from compose.months import is_right, rows_by_month
from compose.outcome import Outcome
from compose.queue.forger import NAME as FORGER
from compose.queue.names import KEYS, KEYSPACE
from compose.queue.producer import way_of
from compose.queue.scan import Scan, scan
from compose.tables import Cell, accounts, listing
from penstock.accounting.tracked import TrackedAudit, audit_tracked
from penstock.hqueue import Status
from penstock.tracking.events import END_EVENTS

PLAINTEXT: Final = rb"\d{4}/\d\d/\d\d,[\d.]+,|\"(mean|rainy|reading)\"|look twice|no rows of|asked for "
"""Rows in values, fields of results and progress, words of errors and of the client's tokens."""


@dataclass
class Found:
    """What is seen while the composition runs, and what the server has after its end."""

    months: Sequence[str]
    never: str
    """The month of which there are no rows."""
    cancelled: str
    killed_worker: str
    killed_process: str
    mark: str
    """A word of this run in what clients sent with their tasks."""
    tasks: dict[str, Status] = field(default_factory=dict)
    """All tasks at the end, by id."""
    replies: list[str] = field(default_factory=list)
    """Messages of the list of outcomes."""
    received: dict[str, Any] = field(default_factory=dict)
    """What the receiver of webhooks says."""
    polled: list[Status] = field(default_factory=list)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)
    forger_had: str | None = None
    """The id of the task that the forger let go."""
    killed: str | None = None
    """The id of the task that the killed worker had."""
    problems: list[str] = field(default_factory=list)
    aof: Path | None = None
    seconds: float = 0.0
    events: Mapping[str, Counter[str]] = field(default_factory=dict)
    """By id of the task, how often each kind of event."""
    late: int = 0
    """Acknowledgements that were refused since their lease had ended."""
    scan: Scan = field(default_factory=Scan)
    audit: TrackedAudit | None = None
    ending: Ending = field(default_factory=lambda: Ending({}, {}, []))

    @property
    def webhooks(self) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = self.received.get("taken", [])
        return taken

    @property
    def delivered(self) -> tuple[int, int, int]:
        """Return how many outcomes came to the list, by webhook and by long poll."""
        return len(self.replies), len(self.webhooks), len(self.polled)

    def ways_of(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of tasks by the way of their outcome: ``list``, ``webhook`` or ``poll``."""
        found: dict[str, list[str]] = {"list": [], "webhook": [], "poll": []}
        for name in names:
            way = way_of(name, "http://any")
            found["webhook" if "webhook" in way else "list" if "reply_to" in way else "poll"].append(name)
        return found

    @property
    def by_worker(self) -> Counter[str]:
        """Return how many tasks each worker has done."""
        return Counter(status.result["worker"] for status in self.done if isinstance(status.result, dict))

    @property
    def recovered(self) -> list[str]:
        """Return the ids of the tasks that have ended after the lease of another worker had."""
        tasks = self.tasks.values()
        return [each.id for each in tasks if each.has_ended and self.events.get(each.id, Counter())["timeout"]]

    @property
    def retried(self) -> list[str]:
        """Return the ids of the tasks that were done after a worker had failed."""
        return [status.id for status in self.done if self.events.get(status.id, Counter())["failed"]]

    @property
    def states(self) -> Counter[str]:
        """Return how many tasks are in which state; with the reason of those that are dead."""
        tasks = self.tasks.values()
        return Counter(f"{each.state}: {each.reason}" if each.reason else each.state for each in tasks)

    @property
    def done(self) -> list[Status]:
        return [status for status in self.tasks.values() if status.state == "done"]

    def differences(self) -> list[str]:
        """Return a line for everything that is not as promised."""
        found = [*self.problems, *self._ends(), *self._results(), *self._deliveries(), *self._faults()]
        found += [f"plaintext in {place}" for place in self.scan.found]
        return found + [f"{place}: the search does not even find what is there" for place in self.scan.unread]

    def _ends(self) -> list[str]:
        """Return what is wrong with the tasks that there are, and how each has ended."""
        wanted: dict[str, tuple[str, str | None]] = dict.fromkeys(self.months, ("done", None))
        wanted |= {self.never: ("dead", "failed"), self.cancelled: ("dead", "cancelled")}
        tasks = self.tasks.values()
        names = Counter(status.name or "" for status in tasks)
        found = [f"{name}: {many} tasks" for name, many in not_once(wanted, names)]
        for status in tasks:
            if (status.state, status.reason) != wanted.get(status.name or "", ()):
                found.append(f"{status.name}: {status.state}, {status.reason or 'no reason'}")
            ends = sum(self.events.get(status.id, Counter())[event] for event in END_EVENTS)
            if ends != 1:
                found.append(f"{status.name}: has ended {ends} times")
        return found

    def _results(self) -> list[str]:
        rows = rows_by_month()
        return [
            f"{status.name}: the result is {status.result}"
            for status in self.done
            if not is_right(status.result, rows.get(status.name or "", []))
        ]

    def _deliveries(self) -> list[str]:
        """Return what is wrong with the outcomes as they were delivered."""
        ways = self.ways_of([*self.months, self.never])
        known = {status.name: status for status in self.tasks.values()}
        found = list[str]()
        replies = [json.loads(each) for each in self.replies]
        polled = [{"id": each.name, "state": each.state, "result": each.result} for each in self.polled]
        for way, came in (("list", replies), ("webhook", self.webhooks), ("poll", polled)):
            names = Counter(each.get("id", "no id") for each in came)
            wanted = Counter(ways[way])
            found += [f"{name}: no outcome came by {way}" for name in wanted - names]
            found += [f"{name}: came by {way} {names[name]} times" for name in names - wanted]
            for each in came:
                task = known.get(each.get("id"))
                if task is None or each["state"] != task.state:
                    found.append(f"{each.get('id')}: came by {way} as {each['state']}")
                elif way != "list" and each.get("result") != task.result:
                    found.append(f"{each['id']}: came by {way} with the result {each.get('result')}")
                elif way == "list" and each.keys() & {"result", "result64", "error", "token"}:
                    found.append(f"{each['id']}: its contents lie in the list")
        found += [f"{name}: webhooks {name}: {self.received.get(name)}" for name in ("again", "forged")
                  if self.received.get(name)]  # fmt: skip
        if ways["webhook"] and not self.received.get("refused"):
            found.append("no webhook was refused at first")
        return found

    def _faults(self) -> list[str]:
        """Return which faults the tasks did not meet, or what was accepted that must not."""
        found = [f"accepted: {each}" for each in self.accepted]
        for what, id in (("the killed worker", self.killed), (f"the {FORGER}", self.forger_had)):
            if id is None:
                found.append(f"{what} had no task")
            elif id not in self.recovered:
                found.append(f"task {id}, which {what} had, was not done by another worker")
        if not self.refused:
            found.append("nothing was forged")
        if not self.retried:
            found.append("no task was tried again")
        if self.late < 1:
            found.append("no acknowledgement came too late")
        if any(self.killed == each.id and each.result["worker"] == self.killed_worker for each in self.done):
            found.append(f"task {self.killed} was done by the worker that was killed in it")
        return found


def judge(found: Found) -> Outcome:
    """Return what is not as promised, and what is shown of it."""
    searched, by_worker, states = found.scan, found.by_worker, found.states
    to_list, webhooks, polled = found.delivered
    at_first = found.received.get("refused", 0)
    workers = [
        (worker, many, f"killed in task {found.killed}" if worker == found.killed_worker else "")
        for worker, many in sorted(by_worker.items())
    ]
    faults: list[Sequence[Cell]] = [
        *sorted(states.items()),
        ("recovered", len(found.recovered), "its worker died, was slow, or left"),
        ("retried", len(found.retried), "a worker failed in the first attempt"),
        ("late acknowledgement", found.late, "409"),
        *((what, many, str(status)) for (what, status), many in sorted(found.refused.items())),
    ]
    ways: list[Sequence[Cell]] = [
        ("list", to_list, "without contents: they are sealed"),
        ("webhook", webhooks, f"{at_first} refused at first, with 503"),
        ("long poll", polled),
    ]
    where = f"{searched.keys:,} keys, their dumps and {len(searched.files)} files of the AOF, {searched.bytes:,} bytes"
    return Outcome(
        found.ending,
        audits={KEYS.namespace: found.audit},
        problems=found.differences(),
        killed=(found.killed_process,),
        shown=[
            listing("Who did what", ("worker", "tasks done", ""), workers),
            listing("What became of the tasks, and what was refused", ("", "times", ""), faults),
            listing("How the outcomes came", ("way", "outcomes", ""), ways),
            *accounts([found.audit]),
            f"Plaintext of values, results, errors and progress in {where}: {len(searched.found)}",
            found.ending.line,
        ],
        success=f"{len(found.tasks)} tasks ended once each, every result is right, every outcome came once",
        data={
            "tasks": dict(states),
            "byWorker": dict(by_worker),
            "recovered": len(found.recovered),
            "retried": len(found.retried),
            "lateAcks": found.late,
            "refused": {f"{what} ({status})": many for (what, status), many in sorted(found.refused.items())},
            "delivered": {"list": to_list, "webhook": webhooks, "poll": polled},
            "webhooksRefusedAtFirst": at_first,
            "scan": {
                "keys": searched.keys,
                "bytes": searched.bytes,
                "files": searched.files,
                "plaintext": searched.found,
            },
            "months": {status.name: status.result for status in found.done},
            "seconds": round(found.seconds, 3),
        },
    )


async def read_outcome(redis: "Redis", found: Found, statuses: Mapping[str, int]) -> Outcome:
    """Compare what the server has with what was seen."""
    found.events = await runner.count_events(redis, KEYS, lambda event: event.id)
    found.late = int(await redis.hget(KEYS.metric("http"), "4xx") or 0) - found.refused.total()
    plaintext = re.compile(PLAINTEXT + b"|" + re.escape(found.mark.encode()))
    control = f'"name":"{found.months[0]}"'.encode()
    found.scan = await scan(redis, "*" if found.aof else f"{KEYSPACE.name}:*", plaintext, control, found.aof)
    found.audit, found.ending = await audit_tracked(redis, KEYS), await Ending.read(KEYSPACE, statuses, redis)
    return judge(found)
