"""What producers and consumers of a queue have written to their journal, checked by content and id."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis

from penstock.testing.forkserver import ForkServer
from tests.reliability.replica import Replica
from tests.support.harness import until

_numbers = count(1)


class Event(NamedTuple):
    time: int
    who: str
    kind: str
    words: list[str]


class Got(NamedTuple):
    """A message that was handled, in the ``begin``-th consumption of its process."""

    time: int
    who: str
    begin: int
    id: int
    body: str


class Account:
    """The journal of all workers of one queue."""

    def __init__(self, journal: Path) -> None:
        self.path = journal
        self.accepted = dict[str, int]()
        """Bodies whose push was confirmed, and their ids."""
        self.accepted_at = dict[str, int]()
        self.tried = set[str]()
        self.got = list[Got]()
        """All that was handled, in the order of time."""
        self.acked = list[tuple[int, int]]()
        """When which id was confirmed, in the order of time."""
        begins = dict[str, int]()
        for time, who, kind, words in self._events():
            if kind == "try":
                self.tried |= {f"{who}:{number}" for number in range(int(words[0]), int(words[0]) + int(words[1]))}
            elif kind == "ok":
                self.accepted[f"{who}:{words[0]}"] = int(words[1])
                self.accepted_at[f"{who}:{words[0]}"] = time
            elif kind == "begin":
                begins[who] = begins.get(who, 0) + 1
            elif kind == "got":
                self.got.append(Got(time, who, begins[who], int(words[0]), words[1]))
            elif kind == "acked":
                self.acked.append((time, int(words[0])))

    def _events(self) -> list[Event]:
        if not self.path.exists():
            return []
        lines = [line.split(" ") for line in self.path.read_text().splitlines()]
        return sorted(Event(int(time), who, kind, words) for time, who, kind, *words in lines)

    @property
    def consumptions(self) -> list[list[Got]]:
        """Return what each consumption handled."""
        each = dict[tuple[str, int], list[Got]]()
        for got in self.got:
            each.setdefault((got.who, got.begin), []).append(got)
        return [*each.values()]

    def assert_nothing_is_lost(self, since: int = 0) -> None:
        """Each message accepted ``since`` then was handled under its id, and nothing was pushed twice."""
        ids = {got.body: got.id for got in self.got}
        accepted = {body: id_ for body, id_ in self.accepted.items() if self.accepted_at[body] >= since}
        lost = {body: id_ for body, id_ in accepted.items() if ids.get(body) != id_}
        assert not lost, f"{len(lost)} of {len(self.accepted)} lost: {[*lost.items()][:10]}"
        bodies = dict[int, str]()
        for got in self.got:
            assert ids[got.body] == got.id, f"{got.body} was pushed twice: {ids[got.body]} and {got.id}"
            if since and got.body not in accepted:
                continue
            assert bodies.setdefault(got.id, got.body) == got.body, f"id {got.id} was given twice"
        assert ids.keys() <= self.tried

    def assert_nothing_comes_after_its_ack(self, but: int = 0) -> None:
        """No message was handled once its ack was confirmed, ``but`` for some."""
        times, highest = [time for time, _ in self.acked], list[int]()
        for _, id_ in self.acked:
            highest.append(max(id_, highest[-1] if highest else 0))
        late = [got for got in self.got if (at := bisect_left(times, got.time)) and highest[at - 1] >= got.id]
        assert len(late) <= but, late[:10]

    def assert_no_gaps(self, last_id: int) -> None:
        """All ids up to ``last_id`` were handled, and each consumption had them one after the other."""
        missing = {*range(1, last_id + 1)} - {got.id for got in self.got}
        assert not missing, f"{len(missing)} ids of {last_id} were not handled: {sorted(missing)[:10]}"
        for each in self.consumptions:
            gaps = [(one.id, other.id) for one, other in pairwise(each) if other.id != one.id + 1]
            assert not gaps, (each[0].who, gaps[:10])

    def assert_producers_kept_their_order(self, since: int = 0) -> None:
        order = dict[str, list[tuple[int, int]]]()
        for body, id_ in self.accepted.items():
            if self.accepted_at[body] < since:
                continue
            producer, number = body.split(":")
            order.setdefault(producer, []).append((int(number), id_))
        for pairs in order.values():
            ids = [id_ for _, id_ in sorted(pairs)]
            assert ids == sorted(ids)

    def assert_reliable(self, last_id: int) -> None:
        """All guarantees of a reliable queue whose server has lost nothing."""
        self.assert_nothing_is_lost()
        self.assert_nothing_comes_after_its_ack()
        self.assert_no_gaps(last_id)
        self.assert_producers_kept_their_order()


class Workers:
    """Producers and consumers of the queue ``foo`` with one journal."""

    def __init__(self, fork_server: ForkServer, directory: Path, *urls: str, **settings: object) -> None:
        self._fork_server, self._directory, self._urls = fork_server, directory, ",".join(urls)
        self._settings = {"queue": "foo"} | settings
        self.journal = directory / "journal"
        self.all = list[Program]()

    def account(self) -> Account:
        return Account(self.journal)

    def key(self, name: str) -> str:
        return f"bus:queue:{self._settings['queue']}:{name}"

    def last_id(self, redis: "Redis") -> int:
        return int(redis.get(self.key("msgid")) or 0)

    def drained(self, redis: "Redis") -> Account:
        """Consume the rest, and acknowledge it; return the account of all."""
        with self.worker("consume"):
            until(lambda: not redis.llen(self.key("messages")))
            until(lambda: not self.last_id(redis) or self.account().got[-1].id == self.last_id(redis), every=0.1)
        assert not redis.exists(self.key("messages"), self.key("toack"))
        return self.account()

    @contextmanager
    def worker(self, role: str, **settings: object) -> Iterator["Program"]:
        """Run one; at the end let it stop, unless it was killed."""
        who = f"{role[0]}{next(_numbers)}"
        given = {"redis": self._urls, "journal": self.journal, "who": who, "role": role} | self._settings | settings
        with Program(
            self._fork_server, self._directory / f"{who}.log", "tests.reliability.bus_worker", **given
        ) as started:
            self.all.append(started)
            yield started
            if started.running:
                until(lambda: "attached" in started.log_text())
                assert started.stop() == 0
                assert "Traceback" not in started.log_text(), started.log_text()

    def until_handled(self, more: int = 200) -> None:
        """Wait until more messages have been handled."""
        before = self.handled()
        until(lambda: self.handled() >= before + more, every=0.05)

    def handled(self) -> int:
        return self.journal.read_bytes().count(b" got ") if self.journal.exists() else 0


class Program(Replica):
    """A module of the tests as a process."""

    def __init__(self, fork_server: ForkServer, log: Path, module: str, **settings: Any) -> None:
        super().__init__(fork_server, "", log)
        self.module, self.who = module, str(settings.get("who", module))
        self._environment = {name.upper(): str(value) for name, value in settings.items()}
