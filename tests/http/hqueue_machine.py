"""A state machine: producers and workers do whatever they like with two queues; a model says what must come of it."""

import json
import re
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

import redis as sync
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.http.caller import Caller
from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from penstock.core.script import Script, translate_error
from penstock.core.wire import Reply
from services.hqueue.keys import PARTS
from services.hqueue.settings import Settings
from services.hqueue.store import Ended, New, Store
from tests.http.contents import contents
from tests.http.hqueue_model import ENDED, KEEP, LIFE, Clock, Model, Task

T = TypeVar("T")
KEYS: Final = Keys("work")
QUEUES: Final = ("/one", "ann/two")
METRICS: Final = (
    "taken", "registered", "delivered", "touched", "failed", "retry", "timeout", "revived", "done", "dead", "expired",
)  # fmt: skip
TIMES: Final = {KEYS.deadlines: "deadlines", KEYS.delayed: "delayed", KEYS.kept_tasks: "kept"}
SORTED: Final = frozenset({"ready", "held", "later", "behind", "order"})
NUMBERS: Final = ("index", "attempt", "used", "ends", "attempts")
QUEUE, PICK = st.integers(0, 1), st.integers(0, 20)
WORKERS = st.sampled_from(["w", "v", "INDEX"])
MAYBE_SECONDS = st.sampled_from([None, None, None, 1.0, 5.0])
RARELY = st.sampled_from([False, False, False, True])
STEPS: Final[dict[str, dict[str, st.SearchStrategy[Any]]]] = {
    "add": {
        "of": QUEUE,
        "many": st.integers(1, 2),
        "delay": st.sampled_from([0.0, 0.0, 0.0, 0.0, 3.0]),
        "key": st.sampled_from([None, None, "aa", "aab"]),
        "name": st.sampled_from([None, None, None, "x", "y"]),
        "ttl": st.sampled_from([4.0, 80.0, 80.0]),
        "start_timeout": MAYBE_SECONDS,
        "attempt_timeout": MAYBE_SECONDS,
        "attempts": st.sampled_from([0, 1, 2, 3]),
        "initial": st.sampled_from([0.0, 0.3333, 1.0]),
        "final": st.sampled_from([[], ["Bad"]]),
    },
    "fetch": {
        "of": QUEUE,
        "worker": WORKERS,
        "span": st.sampled_from([0.0004, 2.0, 10.0, 60.0, 60.0]),
        "most": st.integers(1, 3),
        "process": st.sampled_from(["", "", "one", "other"]),
    },
    "ack": {
        "pick": PICK,
        "outcome": st.sampled_from(["error", "result"]),
        "kind": st.sampled_from(["", "Bad", "Other"]),
        "again": st.sampled_from(["", "", "0", "+0.000000", "+2.500000"]),
        "forged": RARELY,
    },
    "heartbeat": {
        "pick": PICK,
        "span": st.sampled_from([None, 1.0, 20.0]),
        "progress": st.sampled_from([b"", b"half"]),
        "forged": RARELY,
    },
    "ack_of_worker": {"of": QUEUE, "worker": WORKERS, "late": RARELY},
    "cancel": {"of": QUEUE, "pick": PICK},
    "retry": {"of": QUEUE, "pick": PICK},
    "rewind": {"of": QUEUE, "last": st.integers(0, 10)},
    "pass_time": {"micros": st.sampled_from([1, 700, 400_000, 1_000_000, 2_500_000, 20_000_000])},
    "pass_until_due": {"pick": PICK, "more": st.sampled_from([-1, 0, 1, 40])},
    "sweep": {},
}
"""What may happen, and with what."""
OFTEN: Final = ("add", "add", "fetch", "fetch", "fetch", "ack", "ack", "ack", "heartbeat", "cancel", "sweep")
TIME: Final = re.compile(r"call\('TIME'\)")


class Direct(Caller):
    """Sends commands of the store one by one; with ``clock`` scripts read the time in this list, not the server's."""

    def __init__(self, redis: "sync.Redis", clock: str = "") -> None:
        self.redis, self.clock = redis, clock
        self._digests = dict[Any, str]()

    def send(self, *words: Any) -> Reply:
        reply = Reply()
        reply.set_result(self.redis.execute_command(*words))
        return reply

    def call(self, script: Script, reply: Reply, named: dict[str, Any]) -> Reply:
        try:
            reply.set_result(self.redis.execute_command(*self.command(script, named)))
        except sync.ResponseError as error:
            reply.set_exception(translate_error(error))
        return reply

    def command(self, script: Script, named: dict[str, Any]) -> Sequence[Any]:
        """Return the EVALSHA of a script that the server has."""
        _, source, *words = script.by_source(**named)
        if source not in self._digests:
            text = str(source)
            text = TIME.sub(f"call('LRANGE', '{self.clock}', 0, 1)", text) if self.clock else text
            self._digests[source] = self.redis.script_load(text)
        return "EVALSHA", self._digests[source], *words


class Piped(Direct):
    """Sends all calls of scripts together, by ``execute``, which returns their replies."""

    def __init__(self, redis: "sync.Redis") -> None:
        super().__init__(redis)
        self._pipeline = redis.pipeline(transaction=False)

    def call(self, script: Script, reply: Reply, named: dict[str, Any]) -> Reply:
        self._pipeline.execute_command(*self.command(script, named))
        reply.set_result([])
        return reply

    def execute(self) -> list[Any]:
        return self._pipeline.execute()


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    raise AssertionError("it waits")


def same(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """Fail with what differs."""
    differs = {name: (found.get(name), expected.get(name)) for name in {*found, *expected}}
    assert found == expected, {name: pair for name, pair in differs.items() if pair[0] != pair[1]}


class Machine(RuleBasedStateMachine):
    """Two queues with a few keys, names and workers."""

    redis: "sync.Redis"
    done: ClassVar[Counter[str]] = Counter()
    """How often each thing was done."""

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        settings = Settings(
            redis="redis://here", redis_namespace="work", keep=KEEP, task_expire=LIFE, event_capacity=1_000_000
        )
        self.store, self.clock = Store(Direct(self.redis, "clock"), KEYS, settings), Clock()
        self.store.become("1")
        self.models = [Model(name, self.clock) for name in QUEUES]
        self.tokens = list[tuple[int, str, int]]()
        """Queue, id and attempt of every task that a worker was given."""
        self.ends = 0
        self.set_clock()
        plain: dict[str, Any] = {
            "name": None,
            "start_timeout": None,
            "attempt_timeout": None,
            "attempts": 3,
            "final": [],
        }
        for of, key in ((0, None), (0, "aa"), (1, "aab"), (1, "aa")):
            self.add(of, 2, key=key, delay=0.0, ttl=80.0, initial=0.3333, **plain)
            self.fetch(of, "w" if key else "v", 60.0, 2, "")

    @rule(what=st.sampled_from([*STEPS, *OFTEN, *OFTEN]), data=st.data())
    def step(self, what: str, data: st.DataObject) -> None:
        """Do one thing: in one rule, since hypothesis leaves out some rules of several in most of its runs."""
        given = {name: data.draw(values) for name, values in STEPS[what].items()}
        getattr(self, what)(**given)
        Machine.done[what] += 1

    def set_clock(self) -> None:
        with self.redis.pipeline() as step:
            step.delete("clock")
            step.rpush("clock", *divmod(self.clock.micros, 1_000_000))
            step.execute()

    def picked(self, model: Model, pick: int) -> str:
        """Return the id of a task, or of none."""
        ids = [*model.tasks, "999999"]
        return ids[pick % len(ids)]

    # Producers

    def add(self, of: int, many: int, **given: Any) -> None:
        model = self.models[of]
        pairs = [self.new(model, **given) for _ in range(many)]
        found = result_of(self.store.add(model.name, [new for new, _ in pairs]))
        assert found is not None
        for (id, index, state, is_new), (new, task) in zip(found, pairs, strict=True):
            known = model.add(task, new.delay)
            assert (id, index, is_new) == (known.id, known.index, known is task)
            assert state == known.state

    def new(self, model: Model, **given: Any) -> tuple[New, Task]:
        id = result_of(self.store.new_id())
        backoff = {"initial": given["initial"], "factor": 2.0, "cap": 1.5}
        record: dict[str, Any] = {"ends": given["ttl"], "attempts": given["attempts"], "backoff": backoff}
        optional = {"startBy": "start_timeout", "attemptTimeout": "attempt_timeout", "name": "name", "key": "key"}
        record |= {field: given[name] for field, name in optional.items() if given[name] is not None}
        if given["final"]:
            record["nonRetryable"] = given["final"]
        start = given["start_timeout"]
        task = Task(
            id, 0, f"value {id}".encode(), self.clock.moment(given["ttl"]), given["attempts"], backoff, given["name"],
            given["key"], None if start is None else self.clock.moment(start), given["attempt_timeout"], given["final"],
        )  # fmt: skip
        return New(id, json.dumps(record).encode(), task.value, b"", given["delay"]), task

    def cancel(self, of: int, pick: int) -> None:
        model = self.models[of]
        id = self.picked(model, pick)
        assert result_of(self.store.cancel(model.name, id)) == model.cancel(id)

    def retry(self, of: int, pick: int) -> None:
        model = self.models[of]
        id = self.picked(model, pick)
        found = result_of(self.store.again(model.name, [id], dead_only=True))
        assert found == model.again([id], dead_only=True)

    def rewind(self, of: int, last: int) -> None:
        model = self.models[of]
        behind = [task.id for task in sorted(model.tasks.values(), key=lambda task: task.index) if task.index > last]
        page = result_of(self.store.page(model.name, last, 100))
        assert [id for id, _ in page] == behind
        found = result_of(self.store.again(model.name, behind, dead_only=False))
        assert found == model.again(behind, dead_only=False)

    # Workers

    def fetch(self, of: int, worker: str, span: float, most: int, process: str) -> None:
        model = self.models[of]
        expected = model.fetch(worker, span, most, process)
        given = result_of(self.store.fetch(model.name, worker, span, most, process))
        assert [task.id for task in given] == [task.id for task in expected]
        assert [task.index for task in given] == sorted(task.index for task in given)
        for task, known in zip(given, expected, strict=True):
            assert (task.attempt, task.value) == (known.attempt, known.value)
            assert task.progress == known.contents.get("progress")
            assert abs(task.lease_end - known.lease) < 0.001
            self.tokens.append((of, task.id, task.attempt))
        Machine.done["given"] += len(given)

    def token(self, pick: int) -> tuple[Model, str, int]:
        """Return a token, in one case of four perhaps of an attempt that is over."""
        live = [each for each in self.tokens if self.is_live(*each)]
        several = live if live and pick % 4 else self.tokens[-8:]
        of, id, attempt = several[pick % len(several)]
        return self.models[of], id, attempt

    def is_live(self, of: int, id: str, attempt: int) -> bool:
        task = self.models[of].tasks.get(id)
        return task is not None and task.attempt == attempt and self.models[of].has(task)

    def ack(self, pick: int, outcome: str, kind: str, again: str, forged: bool) -> None:
        if not self.tokens:
            return
        model, id, attempt = self.token(pick)
        attempt += forged
        self.ends += 1
        content = f"{outcome} {self.ends}".encode()
        before, may = contents(self.redis), self.is_live(self.models.index(model), id, attempt)
        expected = model.ack(id, attempt, outcome, content, kind, again)
        ended = Ended("", id, attempt, outcome, content, kind, again)
        [found] = result_of(self.store.ack(model.name, [ended]))
        assert found == expected
        if not may:
            assert found is None
            same(contents(self.redis), before)
        Machine.done["acknowledged" if found else "refused"] += 1
        Machine.done["given up"] += model.tasks[id].reason == "cancelled" if found and outcome == "error" else 0

    def ack_of_worker(self, of: int, worker: str, late: bool) -> None:
        """The original's: the task that the worker fetched last, unless it has fetched another one meanwhile."""
        model = self.models[of]
        id = result_of(self.store.last_of(model.name, worker))
        assert id == model.hands.get(worker, [None])[-1]
        if id is None:
            return
        given = "999999" if late else id
        expected = None if late else model.ack(id, 0, "result", b"old", "", "0")
        ended = Ended(worker, given, 0, "result", b"old", "", "0")
        assert result_of(self.store.ack(model.name, [ended])) == [expected]

    def heartbeat(self, pick: int, span: float | None, progress: bytes, forged: bool) -> None:
        if not self.tokens:
            return
        model, id, attempt = self.token(pick)
        attempt += forged
        expected = model.heartbeat(id, attempt, span, progress)
        found = result_of(self.store.heartbeat(model.name, id, attempt, span, progress))
        if expected is None:
            assert not found
        else:
            assert found[1] == expected
            assert abs(float(found[0]) - model.tasks[id].lease) < 0.001

    # Time

    def pass_time(self, micros: int) -> None:
        self.clock.micros += micros
        self.set_clock()

    def pass_until_due(self, pick: int, more: int) -> None:
        """Go to when something happens by itself, or a microsecond before or after it."""
        times = sorted(model.time_of(task) for model in self.models for task in model.tasks.values())
        later = [round(each * 1e6) + more for each in times if round(each * 1e6) + more > self.clock.micros]
        if later:
            self.clock.micros = later[pick % min(len(later), 3)]
            self.set_clock()

    def sweep(self) -> None:
        """Act on what is due, as an instance does four times a second, until nothing is."""
        for _ in range(5):
            after, found = result_of(self.store.due(500))
            expected = {(id, model.name) for model in self.models for id in model.due()}
            assert set(found) == expected
            times = [model.time_of(task) for model in self.models for task in model.tasks.values()]
            next_at = min((each for each in times if each > self.clock.now), default=None)
            assert (after is None) == (next_at is None)
            assert after is None or next_at is None or abs(after - (next_at - self.clock.now)) < 0.001
            if not found:
                return
            for model in self.models:
                if ids := [id for id, queue in found if queue == model.name]:
                    result_of(self.store.sweep(model.name, ids))
                    model.sweep(ids)
        raise AssertionError("something stays due")

    # Invariants

    def stored(self) -> dict[str, dict[str, Any]]:
        """Return what the keys hold: of sorted sets members and scores."""
        names = [*TIMES, *(KEYS.queue(queue, part) for queue in QUEUES for part in PARTS), *map(KEYS.metric, METRICS)]
        with self.redis.pipeline() as step:
            for name in names:
                if name in TIMES or name.rpartition(":")[2] in SORTED:
                    step.zrange(name, 0, -1, withscores=True)
                else:
                    step.hgetall(name)
            pairs = [found.items() if isinstance(found, dict) else found for found in step.execute()]
        return {
            name: {
                decoded(member): decoded(each) if isinstance(each, bytes) else round(each, 4) for member, each in found
            }
            for name, found in zip(names, pairs, strict=True)
        }

    @invariant()
    def all_is_as_the_model_has_it(self) -> None:
        found = self.stored()
        for model in self.models:
            parts = {part: found[KEYS.queue(model.name, part)] for part in PARTS}
            records = {id: json.loads(text) for id, text in parts.pop("tasks").items()}
            same({part: content for part, content in parts.items() if content}, model.keys())
            assert set(records) == set(model.tasks)
            for id, record in records.items():
                task = model.tasks[id]
                assert (record["state"], record.get("reason")) == (task.state, task.reason)
                assert [record[name] for name in NUMBERS] == [getattr(task, name) for name in NUMBERS]
            self.one_task_of_each_key_is_under_way([*records.values()])
        for key, name in TIMES.items():
            expected = {member: score for model in self.models for member, score in model.times()[name].items()}
            same(found[key], expected)
        counts = {name: int(found[KEYS.metric(name)].get("count", 0)) for name in METRICS}
        same(counts, {name: sum(model.counts[name] for model in self.models) for name in METRICS})
        self.no_task_is_lost_and_none_is_in_two_places(found, counts)

    def no_task_is_lost_and_none_is_in_two_places(self, found: dict[str, Any], counts: dict[str, int]) -> None:
        """What ``penstock audit`` adds up, by the keys and counters alone."""
        places = [
            member.rpartition(":")[2]
            for queue in QUEUES
            for part in ("ready", "held", "later", "behind")
            for member in found[KEYS.queue(queue, part)]
        ]
        assert len(set(places)) == len(places)
        assert counts["taken"] == len(places) + counts["done"] + counts["dead"] + counts["expired"]

    def one_task_of_each_key_is_under_way(self, records: list[dict[str, Any]]) -> None:
        for key in {record["key"] for record in records if "key" in record}:
            states = [record["state"] for record in records if record.get("key") == key]
            live = [state for state in states if state not in ENDED]
            assert len([state for state in live if state != "blocked"]) == bool(live)

    def teardown(self) -> None:
        """Nothing remains of a queue once its tasks have ended and are forgotten."""
        for _ in range(2):
            self.clock.micros += 1_000_000 * (LIFE + KEEP + 1)
            self.set_clock()
            self.sweep()
        assert sorted(self.redis.keys("work:queue:*")) == []
        assert not self.redis.exists(*TIMES)
