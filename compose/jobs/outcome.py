"""What became of the jobs, as those saw it who listened, and what the server says after the end."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from redis.asyncio import Redis

from compose import runner
from compose.comparison import not_once
from compose.ending import Ending
from compose.jobs.names import GROUPS, JOBS, KEYS, KEYSPACE, MONTHS, OUT, PREFIX, SNOW, STATISTICS, TALLY
from compose.months import is_right, rows_by_month
from compose.outcome import Outcome
from compose.tables import Cell, accounts, listing
from penstock.accounting.tracked import TrackedAudit, audit_tracked
from penstock.encoding import decoded, encoded
from penstock.jobs import Completion, DeadJob, Jobs
from penstock.tracking.events import END_EVENTS

ATTEMPTS: Final = 3


@dataclass
class Found:
    """What is seen while the composition runs, and what the server has after its end."""

    months: Sequence[str]
    never: str
    """The month of which there are no rows."""
    killed_process: str
    tallies: int
    """How often the repeated job must have been done, at least."""
    snow: str
    """What does the jobs of the group snow."""
    completed: list[Completion] = field(default_factory=list)
    """All completions that were published, of both groups."""
    killed: str | None = None
    """The month whose job the killed process had."""
    killed_worker: str = ""
    has_killed: bool = False
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    out: Sequence[Mapping[str, Any]] = ()
    """What the producer has pushed: ``request``, and what each group says."""
    events: Mapping[str, Counter[str]] = field(default_factory=dict)
    """Events of the group of the service, by stream and job."""
    dead: Sequence[DeadJob] = ()
    results: Mapping[str, int] = field(default_factory=dict)
    """What the repeated job has returned, by its id."""
    pending: Mapping[str, int] = field(default_factory=dict)
    """Entries that a group has read and not done, or not read."""
    audit: TrackedAudit | None = None
    ending: Ending = field(default_factory=lambda: Ending({}, {}, []))

    @property
    def by_worker(self) -> dict[str, Counter[str]]:
        """Return how many months each worker has done, by group."""
        return {
            group: Counter(each[group]["worker"] for each in self.out if "worker" in each[group]) for group in GROUPS
        }

    @property
    def retried(self) -> list[str]:
        """Return the jobs that were done after an attempt had failed."""
        return [id for id, events in self.events.items() if events["done"] and events["failed"]]

    @property
    def claimed(self) -> list[str]:
        """Return the jobs that were begun again though no attempt had failed."""
        return [id for id, events in self.events.items() if events["delivered"] > events["failed"] + 1]

    def differences(self) -> list[str]:
        """Return a line for everything that is not as promised."""
        known = rows_by_month()
        found = [*self.problems, *self._ends()]
        found += [line for each in self.out for line in wrong_results(each, known.get(each["request"], []))]
        found += [*self._limit(), *self._faults(), *self._tallies()]
        return found + [f"{name}: {many} jobs are not done" for name, many in self.pending.items() if many]

    def _ends(self) -> list[str]:
        """Return which jobs have not ended once for each group."""
        wanted = [*self.months, self.never]
        came = Counter(each["request"] for each in self.out)
        heard = Counter((each.job, each.group) for each in self.completed)
        ends = {id: sum(events[kind] for kind in END_EVENTS) for id, events in self.events.items()}
        pairs = [(name, group) for name in wanted for group in GROUPS]
        ids = [f"{MONTHS} {name}" for name in wanted]
        return [
            *(f"{name}: came out {many} times" for name, many in not_once(wanted, came)),
            *(f"{job}: {group} has completed it {many} times" for (job, group), many in not_once(pairs, heard)),
            *(f"{id}: has ended {many} times in the history of {KEYS.namespace}" for id, many in not_once(ids, ends)),
        ]

    def _limit(self) -> list[str]:
        """Return which jobs of one year ran at the same time."""
        times = dict[str, list[tuple[float, float, str]]]()
        for each in self.out:
            if (done := each[STATISTICS]) and "from" in done:
                times.setdefault(each["request"][:4], []).append((done["from"], done["until"], each["request"]))
        return [
            f"{first[2]} and {second[2]} ran at the same time"
            for spans in times.values()
            for first, second in pairwise(sorted(spans))
            if second[0] < first[1]
        ]

    def _faults(self) -> list[str]:
        """Return which faults the jobs did not meet, and how they did not stand them."""
        found = list[str]()
        if self.killed is None or not self.has_killed:
            found.append("no process was killed in a job")
        else:
            if f"{MONTHS} {self.killed}" not in self.claimed:
                found.append(f"{self.killed}: was not claimed, though its process was killed")
            if self.killed_worker in self.by_worker[STATISTICS]:
                found.append(f"{self.killed_worker} has done jobs, though it was killed in its first one")
        if not self.retried:
            found.append("no job was tried again")
        dead = [(each.job, each.group, each.attempts, len(each.errors), each.values) for each in self.dead]
        if dead != [(self.never, STATISTICS, ATTEMPTS, ATTEMPTS, {"rows": b""})]:
            found.append(f"dead: expected {self.never} with its value and {ATTEMPTS} errors, found {dead}")
        return found

    def _tallies(self) -> list[str]:
        """Return what is wrong with the job that is repeated."""
        ran = [id for id in self.events if id.startswith(f"{TALLY} ")]
        found = [f"{id}: returned {many}" for id, many in self.results.items() if not 0 <= many <= len(self.out)]
        if len(ran) < self.tallies or len(self.results) != len(ran):
            found.append(f"{TALLY}: was done {len(ran)} times, with {len(self.results)} results")
        return found


def judge(found: Found) -> Outcome:
    """Return what is not as promised, and what is shown of it."""
    by_worker = found.by_worker
    done = Counter(each.group for each in found.completed if each.error is None)
    dead = Counter(each.group for each in found.dead)
    retried, claimed = (sum(id.startswith(f"{MONTHS} ") for id in ids) for ids in (found.retried, found.claimed))
    workers = [
        (group, worker, many, found.snow if group == SNOW else "")
        for group, counts in by_worker.items()
        for worker, many in sorted(counts.items())
    ]
    if found.has_killed:
        workers.append((STATISTICS, found.killed_worker, 0, f"killed in the job of {found.killed}"))
    jobs: list[Sequence[Cell]] = [
        ("done", *(done[group] for group in GROUPS)),
        ("retried", retried, "", "a hot month fails in its first attempt"),
        ("claimed", claimed, "", "a process was killed that had it"),
        ("dead", *(dead[group] for group in GROUPS), "no rows, in 3 attempts"),
        (TALLY, len(found.results), "", "a job that is repeated every second"),
    ]
    return Outcome(
        found.ending,
        audits={KEYS.namespace: found.audit},
        problems=found.differences(),
        killed=(found.killed_process,),
        shown=[
            listing("Who did what", ("group", "worker", "months done", ""), workers, numbers=(2,)),
            listing("What became of the jobs", ("", *GROUPS, ""), jobs, numbers=(1, 2)),
            *accounts([found.audit]),
            found.ending.line,
        ],
        success=f"{len(found.months) + 1} jobs ended once for each of 2 groups, every result is right",
        data={
            "snow": found.snow,
            "done": {group: done[group] for group in GROUPS},
            "byWorker": by_worker,
            "retried": found.retried,
            "claimed": found.claimed,
            "dead": [{"job": each.job, "group": each.group, "attempts": each.attempts} for each in found.dead],
            "killed": {"worker": found.killed_worker, "job": found.killed},
            "tallies": [*found.results.values()],
            "months": {each["request"]: {group: each[group] for group in GROUPS} for each in found.out},
            "seconds": round(found.seconds, 3),
        },
    )


def wrong_results(found: Mapping[str, Any], rows: Sequence[str]) -> list[str]:
    """Return a line for each group that says otherwise of a month than what is computed here from its ``rows``."""
    name, statistics, snow = found["request"], found[STATISTICS], found[SNOW]
    dead = {"error": {"name": "ValueError", "message": f"no rows of {name}"}}
    wrong = [] if (is_right(statistics, rows) if rows else statistics == dead) else [STATISTICS]
    days = len([row for row in rows if row.split(",")[5] == "snow"])
    wrong += [] if isinstance(snow, dict) and snow.get("snow") == days else [SNOW]
    return [f"{name}: {group} says {found[group]}" for group in wrong]


async def read_outcome(redis: "Redis", url: str, found: Found, statuses: Mapping[str, int]) -> Outcome:
    """Compare what the server has with what was seen."""
    found.events = await runner.count_events(redis, KEYS, lambda event: f"{event.queue} {event.xid}")
    out: list[Any] = await redis.lrange(OUT, 0, -1)
    found.out = [json.loads(each) for each in reversed(out)]
    async with Jobs(url, prefix=PREFIX) as jobs:
        found.dead = [each async for each in jobs.dead(MONTHS)]
    ids = [id.partition(" ")[2] for id in found.events if id.startswith(f"{TALLY} ")]
    tallies = {id: await redis.get(encoded(JOBS.payload(id, TALLY))) for id in ids}
    found.results = {id: int(value) for id, value in tallies.items() if value is not None}
    found.pending = {**await _left(redis, MONTHS), **await _left(redis, TALLY)}
    found.audit, found.ending = await audit_tracked(redis, KEYS), await Ending.read(KEYSPACE, statuses, redis)
    return judge(found)


async def _left(redis: "Redis", stream: str) -> dict[str, int]:
    """Return how many entries of a stream each of its groups has not done."""
    name, found = encoded(JOBS.stream(stream)), dict[str, int]()
    if not await redis.exists(name):
        return found
    groups: Any = await redis.xinfo_groups(name)
    for group in groups:
        after = decoded(group["last-delivered-id"])
        unread: Any = await redis.xrange(name, f"({after}", "+")
        found[f"{stream}, {decoded(group['name'])}"] = group["pending"] + len(unread)
    return found
