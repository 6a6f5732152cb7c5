"""Assertions about a line once nothing is in flight: every request has ended once, and all records agree.

They compare with what the test itself knows: what was pushed, what workers reported, the answers and dead letters.
"""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from penstock.tracking.events import Entry, Event
from tests.reliability.fleet import assert_registry_clean, audited
from tests.reliability.jobs import REPLIES, UNWILLING, Job, parse_job
from tests.reliability.tracked_line import TRACKING, Line
from tests.reliability.tracked_worker import KEYS, SAID

LIFE: Final = re.compile(
    "registered (delayed delivered )?"
    "((touched )*(timeout |(failed )+)retry ){0,2}"
    "((touched )*(failed )*(done|late)|(touched )*(timeout |(failed )+)(late|dead)) "
)
"""All possible lives of a message, as the names of its events."""
LEEWAY: Final = 60
"""Seconds that the server keeps a list of answers that no monitor has ended."""
GRACE: Final = 2_000
"""Milliseconds that a report of a worker may wait while all processes are killed, one after the other."""
PERMANENT: Final = re.compile(
    r"(demo|watcher):(id|lists|owners|holdings|shape|metrics:[a-z:]+)|penstock:registered|demo:(message:(id|pushed|looks|answers|answers:more)|policy|events(:marks)?|dead)|"
    + SAID
)
"""Keys without a TTL, by docs/keys.md."""


class Books:
    """All records of the requests of a line."""

    def __init__(self, line: Line, accepted: Iterable[bytes], unsure: Iterable[bytes] = ()) -> None:
        self.line, fleet = line, line.dispatching
        self.accepted, self.unsure = list(map(parse_job, accepted)), list(map(parse_job, unsure))
        self.jobs = {job.xid: job for job in [*self.accepted, *self.unsure]}
        entries = [Entry(*entry) for entry in fleet.redis.xrange(KEYS.events)]
        self.events = [event for entry in entries for event in entry.events()]
        self.lives: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            self.lives[event.id].append(event)
        self.letters: list[dict[str, Any]] = [json.loads(letter) for letter in fleet.held(KEYS.dead)]
        self.words = _read(fleet.redis.xrange(SAID))

    def named(self, *names: str) -> list[Event]:
        return [event for event in self.events if event.event in names]

    def letters_of(self, *reasons: str) -> list[dict[str, Any]]:
        return [letter for letter in self.letters if letter["reason"] in reasons]


def assert_all_ended(line: Line, accepted: Sequence[bytes], unsure: Sequence[bytes] = ()) -> Books:
    """Assert all of the following; requests in ``unsure`` may have been pushed, too."""
    books = Books(line, accepted, unsure)
    assert_each_ended_once(books)
    assert_each_ended_as_it_says(books)
    assert_answers(books)
    assert_metrics(books)
    assert_nothing_remains(books)
    assert asyncio.run(audited(line.dispatching)) == []
    for fleet in (line.dispatching, line.watching):
        assert_registry_clean(fleet, killed=line.killed(fleet))
    return books


def assert_each_ended_once(books: Books) -> None:
    for id, life in books.lives.items():
        names = "".join(f"{event.event} " for event in life)
        assert LIFE.fullmatch(names), f"{id}, {life[0].xid}: {names}"
        deliveries = [str(event.attempt) for event in life if event.event in ("delivered", "retry")]
        first = 1 if deliveries and life[1].event == "delayed" else 2
        assert deliveries == [str(first + place) for place in range(len(deliveries))], (id, life)
    ended = Counter(event.xid for event in books.named("done", "late", "dead"))
    ended += Counter(parse_job(letter["message"].encode()).xid for letter in books.letters_of("poison"))
    owed, maybe = (Counter(job.xid for job in jobs) for jobs in (books.accepted, books.unsure))
    assert (owed - ended, ended - owed - maybe) == (Counter(), Counter()), "lost; ended more than once"


def assert_each_ended_as_it_says(books: Books) -> None:
    """Assert each end by its kind: a request that workers finish may be dead only if no report came in time."""
    assert {letter["reason"] for letter in books.letters} <= {"timeout", "failed", "poison"}
    buried = {letter["id"]: letter for letter in books.letters if "id" in letter}
    assert len(buried) == len(books.letters_of("timeout", "failed"))
    assert set(buried) == {event.id for event in books.named("dead")}
    done: dict[str, list[int]] = defaultdict(list)
    for at, said in books.words:
        if said["verdict"] == "done":
            done[said["xid"]].append(at)
    for letter in buried.values():
        job = books.jobs[letter["xid"]]
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
                assert all(at > letter["at"] - GRACE for at in done[job.xid]), f"the word for {letter} was not heard"
            case "flaky", "failed":
                assert all(at > letter["at"] - GRACE for at in done[job.xid]), f"the word for {letter} was not heard"
            case _:
                raise AssertionError(f"{kind} died of {reason}: {letter}")
    for event in books.named("done", "late"):
        assert books.jobs[event.xid].kind not in UNWILLING, event
        assert done[event.xid], f"no worker said that {event} is done"
    first = {(said["verdict"], said["xid"], said["attempt"]): at for at, said in reversed(books.words)}
    for event in books.named("done", "failed"):
        verdicts = ("done",) if event.event == "done" else ("failed", "final")
        words = [(verdict, event.xid, attempt) for verdict in verdicts for attempt in ("", str(event.attempt))]
        at = round(event.at * 1000)
        assert any(first.get(word, at + 1) <= at for word in words), f"no worker had said it: {event}"


def assert_answers(books: Books) -> None:
    """Assert one answer in each ``replyTo`` list: the worker's, or an error for a dead request."""
    dead = {letter["xid"]: letter for letter in books.letters if "xid" in letter}
    poison = {letter["message"].encode() for letter in books.letters_of("poison")}
    ended = {event.xid for event in books.named("done", "late", "dead")}
    expected: dict[str, dict[str, Any]] = defaultdict(dict)
    for job in books.jobs.values():
        if job.reply_to and job.xid in ended and job.message not in poison:
            expected[job.reply_to][job.xid] = _answer(job, dead.get(job.xid))
    for name in REPLIES:
        answers = [json.loads(answer) for answer in books.line.dispatching.held(name)]
        found = {answer["meta"].pop("id"): answer for answer in answers}
        assert len(found) == len(answers), f"{name}: answered twice"
        for answer in found.values():
            del answer["meta"]
        assert found == expected[name]


def _answer(job: Job, letter: dict[str, Any] | None) -> dict[str, Any]:
    if letter is None:
        return {"answer": job.xid}
    words = {"words": letter["error"]} if "error" in letter else {}
    return {"error": {"reason": letter["reason"], "attempts": letter["attempts"], **words}}


def assert_metrics(books: Books) -> None:
    """Assert that metrics agree with the events and the reports."""
    fleet, events = books.line.dispatching, Counter(event.event for event in books.events)
    taken = len(books.lives) + len(books.letters_of("poison"))
    if not books.unsure:
        assert taken == len(books.accepted)
    tracked = len(books.lives)
    late = _metric(books, "done:late")
    reasons = Counter(letter["reason"] for letter in books.letters)
    assert late["completed"] == events["late"]
    assert _metric(books, "dead") == reasons + Counter(count=len(books.letters))
    assert events["dead"] == reasons["timeout"] + reasons["failed"]
    assert {name: fleet.metric(name).get("count", 0) for name in ("taken", "registered", "delivered", "untracked")} == {
        "taken": taken,
        "registered": tracked,
        "delivered": tracked,
        "untracked": 0,
    }
    done = _metric(books, "done")
    assert done["count"] + late["completed"] == tracked - reasons["timeout"] - reasons["failed"]
    for name in ("done", "timeout", "failed", "retry", "touched", "expired"):
        assert _metric(books, name)["count"] == events[name], name
    assert events["expired"] == 0
    assert events["retry"] <= events["timeout"] + events["failed"]
    for name in ("done", "timeout"):
        histogram = sum(count for field, count in _metric(books, name).items() if field.startswith("histo"))
        assert histogram == events[name]
    said = Counter(said["verdict"] == "touch" for _, said in books.words)
    counted = done["count"] + sum(_metric(books, name)["count"] for name in ("done:late", "done:unknown", "failed"))
    assert said[False] <= counted <= said.total(), "words of workers: each counts once, but for those that touched"


def assert_nothing_remains(books: Books) -> None:
    """Assert that every key is permanent or has a TTL, and that only records of dead messages remain."""
    redis = books.line.redis
    permanent, mortal = list[str](), list[str]()
    for key in redis.scan_iter(count=10_000):
        (permanent if redis.ttl(key) == -1 else mortal).append(key.decode())
    assert [key for key in permanent if not PERMANENT.fullmatch(key)] == []
    left = [key for key in mortal if not re.fullmatch(r"demo:message:(\d+|xid:.*)|" + "|".join(REPLIES), key)]
    assert left == []
    for key in mortal:
        life = redis.ttl(key)
        expire = TRACKING["reply_expire" if key in REPLIES else "message_expire"]
        assert isinstance(expire, int)
        assert life <= expire + (LEEWAY if key in REPLIES else 0)
        if key.startswith("demo:message:xid:"):
            fields = _texts(redis.hgetall(key))
            assert fields.keys() == {"id", "type", "dead"} or not fields, (key, fields)
        elif key.startswith("demo:message:"):
            fields = _texts(redis.hgetall(key))
            assert not fields or fields["state"] == "dead", (key, fields)


def _metric(books: Books, name: str) -> Counter[str]:
    fields = _texts(books.line.redis.hgetall(KEYS.metric(name)))
    return Counter({field: int(value) for field, value in fields.items() if field not in ("sum", "max")})


def _read(entries: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> list[tuple[int, dict[str, str]]]:
    """Return the entries of a stream, each with its time (ms)."""
    return [(int(id.split(b"-")[0]), _texts(fields)) for id, fields in entries]


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}
