"""What the model of a queue of hqueue knows: its tasks, and what each request makes of them, by a virtual clock."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

KEEP: Final = 50
"""Seconds that a task is kept once it has ended."""
LIFE: Final = 100
"""Seconds that a task lives that waits again."""
ENDED: Final = frozenset({"done", "dead", "expired"})


@dataclass
class Clock:
    """Microseconds since the epoch, as the server has them."""

    micros: int = 1_790_000_000_000_000

    @property
    def now(self) -> float:
        """Return the seconds since the epoch, in whole milliseconds as all scripts read them."""
        return self.micros // 1000 / 1000

    def moment(self, seconds: float) -> float:
        """Return the time ``seconds`` from now, to four decimals as records keep it."""
        return round(self.now + seconds, 4)


@dataclass
class Task:
    """A task; times are in seconds since the epoch."""

    id: str
    index: int
    value: bytes
    ends: float
    attempts: int
    backoff: dict[str, float]
    name: str | None = None
    key: str | None = None
    start_by: float | None = None
    attempt_timeout: float | None = None
    final: list[str] = field(default_factory=list)
    """Types of errors after which no attempt follows."""
    due: float | None = None
    state: str = "new"
    attempt: int = 0
    used: int = 0
    worker: str | None = None
    span: float = 0.0
    lease: float = 0.0
    close: float | None = None
    cancelled: bool = False
    reason: str | None = None
    forgotten_at: float = 0.0
    asked: tuple[int, str, int] = (0, "", 0)
    """The attempt, the process that has it, and how often that has asked for it again."""
    together: int = 1
    """How many tasks its worker got with it."""
    suspect: int | None = None
    """How many of such may be in one hand."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """Value, result, error and progress."""

    @property
    def tried(self) -> int:
        return self.attempt - self.used

    @property
    def limit(self) -> float:
        """When it is over if no worker gets it."""
        return min(self.ends, self.start_by) if self.start_by is not None and self.attempt == 0 else self.ends


def _alike(found: list[Task]) -> int:
    """Return how many of ``found`` one worker may get: no suspects with others, nor more than may be in one hand."""
    first = found[0].suspect if found else None
    ends = (place for place, task in enumerate(found) if task.suspect != first or place == first)
    return next(ends, len(found))


class Model:
    """One queue."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name, self.clock = name, clock
        self.tasks = dict[str, Task]()
        self.busy = dict[str, str]()
        """By key, the id of the task that those behind it wait for."""
        self.hands = dict[str, list[str]]()
        """By worker, the ids that it has."""
        self.counts = Counter[str]()

    @property
    def now(self) -> float:
        return self.clock.now

    def of(self, *states: str) -> list[Task]:
        """Return the tasks in these states, in order."""
        return sorted((task for task in self.tasks.values() if task.state in states), key=lambda task: task.index)

    def named(self, name: str | None) -> Task | None:
        return next((task for task in self.tasks.values() if name is not None and task.name == name), None)

    # What requests do

    def add(self, task: Task, delay: float) -> Task:
        """Add a task; return it, or the one that has its name."""
        if known := self.named(task.name):
            return known
        task.index = 1 + max((each.index for each in self.tasks.values()), default=0)
        task.contents["value"] = task.value
        task.due = self.clock.moment(delay) if delay > 0 else None
        self.tasks[task.id] = task
        self._count("taken", "registered")
        self._place(task)
        return task

    def fetch(self, worker: str, span: float, most: int, process: str) -> list[Task]:
        """Return what a worker gets."""
        while True:
            if self._leases_over() or self._delays_over():
                if not self.sweep(["0"]):
                    return []
                continue
            own = [self.tasks[id] for id in self.hands.get(worker, [])[:most]]
            if lost := [task for task in own if self._has_died(task, process)]:
                for task in lost:
                    task.lease = self.now
                continue
            for task in own:
                task.asked = (task.attempt, process, task.asked[2] + 1)
            found = own or self.of("waiting")[:most]
            given = len(found) if own else _alike(found)
            looked = found[: given + 1]  # of one more than it gives it sees whether that is over
            over = next((task for task in looked if task.ends <= self.now or task.limit <= self.now), None)
            if over is None:
                break
            if not self.sweep([over.id]):
                return []
        found = found[:given]
        for task in found:
            if not own:
                task.state, task.worker, task.attempt = "held", worker, task.attempt + 1
                task.close = None if task.attempt_timeout is None else self.clock.moment(task.attempt_timeout)
                task.asked, task.together = (task.attempt, process, 0), len(found)
                self.hands.setdefault(worker, []).append(task.id)
                self._count("delivered")
            self._lease(task, span)
        return found

    def _has_died(self, task: Task, process: str) -> bool:
        attempt, known, times = task.asked
        return (attempt == task.attempt and known != process) or (not process and times > 0)

    def has(self, task: Task | None) -> bool:
        """Return whether a worker has this task and may still say so."""
        return task is not None and task.state == "held" and min(task.lease, task.ends) > self.now

    def heartbeat(self, id: str, attempt: int, span: float | None, progress: bytes) -> bool | None:
        """Return whether the task is to be given up; None if the attempt is over."""
        task = self.tasks.get(id)
        if task is None or not self.has(task) or task.attempt != attempt:
            return None
        self._lease(task, task.span if span is None else span)
        if progress:
            task.contents["progress"] = progress
        self._count("touched")
        return task.cancelled

    def ack(self, id: str, attempt: int, outcome: str, content: bytes, kind: str, again: str) -> str | None:
        """Return the state of the task; None if the attempt is over. ``attempt`` 0 is whichever it is."""
        task = self.tasks.get(id)
        if task is None or not self.has(task) or attempt not in (0, task.attempt):
            return None
        task.contents[outcome] = content
        if outcome == "result":
            task.contents.pop("error", None)
            self._end(task, "done")
            return "done"
        self._count("failed")
        task.suspect = None
        if again == "0" or task.cancelled or kind in task.final or 0 < task.attempts <= task.tried:
            self._end(task, "dead", "cancelled" if task.cancelled else "failed")
            return task.state
        back = task.backoff
        wait = float(again[1:]) if again else min(back["initial"] * back["factor"] ** (task.tried - 1), back["cap"])
        self._leave(task)
        task.due = self.clock.moment(wait) if wait > 0 else None
        self._place(task)
        self._count("retry")
        return task.state

    def cancel(self, id: str) -> str | None:
        """Return what `lua/cancel.lua` does."""
        task = self.tasks.get(id)
        if task is None:
            return None
        if task.state == "held":
            task.cancelled = True
        elif task.state not in ENDED:
            self._end(task, "dead", "cancelled")
            return "cancelled"
        return task.state

    def again(self, ids: Iterable[str], *, dead_only: bool) -> int:
        """Let tasks that have ended wait again; return how many do."""
        count = 0
        for id in ids:
            task = self.tasks.get(id)
            if task is None or task.state not in (("dead",) if dead_only else ("dead", "done")):
                continue
            task.used, task.ends, task.start_by = task.attempt, self.clock.moment(LIFE), None
            task.reason, task.cancelled, task.due = None, False, None
            task.contents = {"value": task.value}
            self._place(task)
            count += 1
        self._count(*["taken", "registered", "revived"] * count)
        return count

    # What time does

    def sweep(self, due: Iterable[str]) -> int:
        """Act on tasks whose leases or delays are over and on those of ``due``; return how many were acted on."""
        several = [*due, *(task.id for task in self._leases_over()), *(task.id for task in self._delays_over())]
        return sum(self._act(self.tasks[id]) for id in dict.fromkeys(several) if id in self.tasks)

    def due(self) -> list[str]:
        """Return the ids of all tasks that are due."""
        return [id for id, task in self.tasks.items() if self.time_of(task) <= self.now]

    def time_of(self, task: Task) -> float:
        """Return when the state of a task ends by itself."""
        if task.state in ENDED:
            return task.forgotten_at
        if task.state == "held":
            return min(task.lease, task.ends)
        return min(task.due, task.limit) if task.state == "delayed" and task.due is not None else task.limit

    def _act(self, task: Task) -> int:
        if task.state in ENDED:
            if task.forgotten_at > self.now:
                return 0
            del self.tasks[task.id]
        elif task.ends <= self.now:
            self._end(task, "expired", "ttl")
        elif task.state != "held" and task.limit <= self.now:
            self._end(task, "dead", "queueTimeout")
        elif task.state == "held" and task.lease <= self.now:
            self._count("timeout")
            self._suspect(task)
            if task.cancelled:
                self._end(task, "dead", "cancelled")
            elif 0 < task.attempts <= task.tried:
                self._end(task, "dead", "timeout")
            else:
                self._leave(task)
                self._place(task)
                self._count("retry")
        elif task.state == "delayed" and task.due is not None and task.due <= self.now:
            self._place(task)
        else:
            return 0
        return 1

    def _suspect(self, task: Task) -> None:
        if task.together > 1 and (task.close is None or task.close > self.now):
            task.used += 1
            task.suspect = 1 if task.suspect else -(-task.together // 2)
        else:
            task.suspect = 1

    def _leases_over(self) -> list[Task]:
        return [task for task in self.of("held") if task.lease <= self.now]

    def _delays_over(self) -> list[Task]:
        return [task for task in self.of("delayed") if task.due is not None and task.due <= self.now]

    # States

    def _lease(self, task: Task, span: float) -> None:
        task.span, lease = span, self.clock.moment(span)
        task.lease = lease if task.close is None else min(lease, task.close)

    def _place(self, task: Task) -> None:
        if task.key is not None and self.busy.setdefault(task.key, task.id) != task.id:
            task.state = "blocked"
        elif task.due is not None and task.due > self.now:
            task.state = "delayed"
        else:
            task.state, task.due = "waiting", None

    def _leave(self, task: Task) -> None:
        if task.worker is not None:
            self.hands[task.worker].remove(task.id)
            if not self.hands[task.worker]:
                del self.hands[task.worker]
            task.worker = None

    def _end(self, task: Task, state: str, reason: str | None = None) -> None:
        self._leave(task)
        task.state, task.reason, task.due, task.forgotten_at = state, reason, None, self.now + KEEP
        if state == "expired":
            for name in ("value", "progress"):
                task.contents.pop(name, None)
        if task.key is not None and self.busy.get(task.key) == task.id:
            del self.busy[task.key]
            blocked = [each for each in self.of("blocked") if each.key == task.key]
            if blocked:
                self._place(blocked[0])
        self._count(state)

    def _count(self, *names: str) -> None:
        self.counts.update(names)

    # What the server must have

    def keys(self) -> dict[str, dict[str, Any]]:
        """Return what each key of the queue holds; one that holds nothing does not exist."""
        behind = {f"{task.key}:{task.index:016d}:{task.id}": 0.0 for task in self.of("blocked")}
        found: dict[str, dict[str, Any]] = {
            "ready": {task.id: float(task.index) for task in self.of("waiting")},
            "held": {task.id: task.lease for task in self.of("held")},
            "later": {task.id: task.due for task in self.of("delayed")},
            "behind": behind,
            "busy": dict(self.busy),
            "workers": {worker: " ".join(ids) for worker, ids in self.hands.items()},
            "order": {task.id: float(task.index) for task in self.tasks.values()},
            "named": {task.name: task.id for task in self.tasks.values() if task.name is not None},
            "values": {
                id if name == "value" else f"{id}:{name}": content.decode()
                for id, task in self.tasks.items()
                for name, content in task.contents.items()
            },
        }
        return {name: content for name, content in found.items() if content}

    def times(self) -> dict[str, dict[str, float]]:
        """Return what the sets of all queues hold of this one."""
        sets: dict[str, dict[str, float]] = {"deadlines": {}, "delayed": {}, "kept": {}}
        for id, task in self.tasks.items():
            kind = "kept" if task.state in ENDED else "delayed" if task.state == "delayed" else "deadlines"
            sets[kind][f"{id} {self.name}"] = self.time_of(task)
        return sets
