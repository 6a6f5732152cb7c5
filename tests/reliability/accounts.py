"""Assertions about a line once nothing is in flight: every request has ended once, and all records agree.

They compare the records with what the test knows: requests pushed, reports of workers, answers and dead letters.
"""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from penstock.tracking.events import Entry, TrackedEvent
from tests.reliability.fleet import assert_registry_clean, audited
from tests.reliability.jobs import REPLIES, UNWILLING, Job, parse_job
from tests.reliability.tracked_line import TRACKING, Line
from tests.reliability.tracked_worker import KEYS, REPORTS

LIFE_PATTERN: Final = re.compile(
    "registered (delayed delivered )?"
    "((touched )*(timeout |(failed )+)retry ){0,2}"
    "((touched )*(failed )*(done|late)|(touched )*(timeout |(failed )+)(late|dead)) "
)
"""All possible lives of a message, as the names of its events."""
MAX_EXTRA_TTL: Final = 60
"""Seconds by which the TTL of a reply list may exceed ``replyExpire``."""
REPORT_MS: Final = 2_000
"""Maximum milliseconds that a worker's report may wait while all processes are killed, one after the other."""
PERMANENT_KEYS: Final = re.compile(
    r"(demo|watcher):(id|lists|owners|holdings|shape|metrics:[a-z:]+)|penstock:registered|demo:(message:(id|pushed|looks|answers|answers:more)|policy|events(:marks)?|dead)|"
    + REPORTS
)
"""Keys without a TTL, by docs/keys.md."""


class Records:
    """All records of the requests of a line."""

    def __init__(self, line: Line, accepted: Iterable[bytes]) -> None:
        self.line, fleet = line, line.dispatching
        self.accepted = list(map(parse_job, accepted))
        self.jobs = {job.xid: job for job in self.accepted}
        entries = [Entry(*entry) for entry in fleet.redis.xrange(KEYS.events)]
        self.events = [event for entry in entries for event in entry.events()]
        self.lives: dict[str, list[TrackedEvent]] = defaultdict(list)
        for event in self.events:
            self.lives[event.id].append(event)
        self.letters: list[dict[str, Any]] = [json.loads(letter) for letter in fleet.held(KEYS.dead)]
        self.reports = _with_times(fleet.redis.xrange(REPORTS))

    def named(self, *names: str) -> list[TrackedEvent]:
        return [event for event in self.events if event.event in names]

    def letters_of(self, *reasons: str) -> list[dict[str, Any]]:
        return [letter for letter in self.letters if letter["reason"] in reasons]


def assert_all_ended(line: Line, accepted: Sequence[bytes]) -> Records:
    """Assert all of the following."""
    records = Records(line, accepted)
    assert_each_ended_once(records)
    assert_each_ended_as_it_says(records)
    assert_answers(records)
    assert_metrics(records)
    assert_nothing_remains(records)
    assert asyncio.run(audited(line.dispatching)) == []
    for fleet in (line.dispatching, line.watching):
        assert_registry_clean(fleet, killed=line.killed(fleet))
    return records


def assert_each_ended_once(records: Records) -> None:
    for id, life in records.lives.items():
        names = "".join(f"{event.event} " for event in life)
        assert LIFE_PATTERN.fullmatch(names), f"{id}, {life[0].xid}: {names}"
        deliveries = [str(event.attempt) for event in life if event.event in ("delivered", "retry")]
        first = 1 if deliveries and life[1].event == "delayed" else 2
        assert deliveries == [str(first + place) for place in range(len(deliveries))], (id, life)
    ended = Counter(event.xid for event in records.named("done", "late", "dead"))
    ended += Counter(parse_job(letter["message"].encode()).xid for letter in records.letters_of("poison"))
    owed = Counter(job.xid for job in records.accepted)
    assert (owed - ended, ended - owed) == (Counter(), Counter()), "lost; ended more than once"


def assert_each_ended_as_it_says(records: Records) -> None:
    """Assert each end by its kind: a request that workers finish may be dead only if no report came in time."""
    assert {letter["reason"] for letter in records.letters} <= {"timeout", "failed", "poison"}
    buried = {letter["id"]: letter for letter in records.letters if "id" in letter}
    assert len(buried) == len(records.letters_of("timeout", "failed"))
    assert set(buried) == {event.id for event in records.named("dead")}
    done: dict[str, list[int]] = defaultdict(list)
    for at, report in records.reports:
        if report["verdict"] == "done":
            done[report["xid"]].append(at)
    for letter in buried.values():
        job = records.jobs[letter["xid"]]
        assert letter["message"].encode() == job.message
        kind, reason, attempts = job.kind, letter["reason"], letter["attempts"]
        match kind, reason:
            case "final", "failed":
                assert letter["error"] == f"no tea for {job.xid}"
            case "failing", "failed":
                assert (attempts, letter["error"]) == (3, f"no tea for {job.xid}")
            case _, "timeout":
                assert attempts == 3
                assert "error" not in letter
                assert all(at > letter["at"] - REPORT_MS for at in done[job.xid]), f"the report of {letter} was ignored"
            case "flaky", "failed":
                assert all(at > letter["at"] - REPORT_MS for at in done[job.xid]), f"the report of {letter} was ignored"
            case _:
                raise AssertionError(f"{kind} died of {reason}: {letter}")
    for event in records.named("done", "late"):
        assert records.jobs[event.xid].kind not in UNWILLING, event
        assert done[event.xid], f"no worker reported {event} as done"
    first = {(report["verdict"], report["xid"], report["attempt"]): at for at, report in reversed(records.reports)}
    for event in records.named("done", "failed"):
        verdicts = ("done",) if event.event == "done" else ("failed", "final")
        reports = [(verdict, event.xid, attempt) for verdict in verdicts for attempt in ("", str(event.attempt))]
        at = round(event.at * 1000)
        assert any(first.get(word, at + 1) <= at for word in reports), f"no worker had reported it: {event}"


def assert_answers(records: Records) -> None:
    """Assert one answer in each ``replyTo`` list: the worker's, or an error for a dead request."""
    dead = {letter["xid"]: letter for letter in records.letters if "xid" in letter}
    poison = {letter["message"].encode() for letter in records.letters_of("poison")}
    ended = {event.xid for event in records.named("done", "late", "dead")}
    expected: dict[str, dict[str, Any]] = defaultdict(dict)
    for job in records.jobs.values():
        if job.reply_to and job.xid in ended and job.message not in poison:
            expected[job.reply_to][job.xid] = _answer(job, dead.get(job.xid))
    for name in REPLIES:
        answers = [json.loads(answer) for answer in records.line.dispatching.held(name)]
        found = {answer["meta"].pop("id"): answer for answer in answers}
        assert len(found) == len(answers), f"{name}: answered twice"
        for answer in found.values():
            del answer["meta"]
        assert found == expected[name]


def _answer(job: Job, letter: dict[str, Any] | None) -> dict[str, Any]:
    if letter is None:
        return {"answer": job.xid}
    reports = {"words": letter["error"]} if "error" in letter else {}
    return {"error": {"reason": letter["reason"], "attempts": letter["attempts"], **reports}}


def assert_metrics(records: Records) -> None:
    """Assert that metrics agree with the events and the reports."""
    fleet, events = records.line.dispatching, Counter(event.event for event in records.events)
    taken = len(records.lives) + len(records.letters_of("poison"))
    assert taken == len(records.accepted)
    tracked = len(records.lives)
    late = _metric(records, "done:late")
    reasons = Counter(letter["reason"] for letter in records.letters)
    assert late["completed"] == events["late"]
    assert _metric(records, "dead") == reasons + Counter(count=len(records.letters))
    assert events["dead"] == reasons["timeout"] + reasons["failed"]
    assert {name: fleet.metric(name).get("count", 0) for name in ("taken", "registered", "delivered", "untracked")} == {
        "taken": taken,
        "registered": tracked,
        "delivered": tracked,
        "untracked": 0,
    }
    done = _metric(records, "done")
    assert done["count"] + late["completed"] == tracked - reasons["timeout"] - reasons["failed"]
    for name in ("done", "timeout", "failed", "retry", "touched", "expired"):
        assert _metric(records, name)["count"] == events[name], name
    assert events["expired"] == 0
    assert events["retry"] <= events["timeout"] + events["failed"]
    for name in ("done", "timeout"):
        histogram = sum(count for field, count in _metric(records, name).items() if field.startswith("histo"))
        assert histogram == events[name]
    report = Counter(report["verdict"] == "touch" for _, report in records.reports)
    counted = done["count"] + sum(_metric(records, name)["count"] for name in ("done:late", "done:unknown", "failed"))
    assert report[False] <= counted <= report.total(), "words of workers: each counts once, but for those that touched"


def assert_nothing_remains(records: Records) -> None:
    """Assert that every key is permanent or has a TTL, and that only records of dead messages remain."""
    redis = records.line.redis
    permanent, mortal = list[str](), list[str]()
    for key in redis.scan_iter(count=10_000):
        (permanent if redis.ttl(key) == -1 else mortal).append(key.decode())
    assert [key for key in permanent if not PERMANENT_KEYS.fullmatch(key)] == []
    left = [key for key in mortal if not re.fullmatch(r"demo:message:(\d+|xid:.*)|" + "|".join(REPLIES), key)]
    assert left == []
    for key in mortal:
        life = redis.ttl(key)
        expire = TRACKING["reply_expire" if key in REPLIES else "message_expire"]
        assert isinstance(expire, int)
        assert life <= expire + (MAX_EXTRA_TTL if key in REPLIES else 0)
        if key.startswith("demo:message:xid:"):
            fields = _texts(redis.hgetall(key))
            assert fields.keys() == {"id", "type", "dead"} or not fields, (key, fields)
        elif key.startswith("demo:message:"):
            fields = _texts(redis.hgetall(key))
            assert not fields or fields["state"] == "dead", (key, fields)


def _metric(records: Records, name: str) -> Counter[str]:
    fields = _texts(records.line.redis.hgetall(KEYS.metric(name)))
    return Counter({field: int(value) for field, value in fields.items() if field not in ("sum", "max")})


def _with_times(entries: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> list[tuple[int, dict[str, str]]]:
    """Return the entries of a stream, each with its time (ms)."""
    return [(int(id.split(b"-")[0]), _texts(fields)) for id, fields in entries]


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}
