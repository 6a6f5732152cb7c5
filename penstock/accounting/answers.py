"""Audit of answers: each answer that was sent was taken by its client, waits, or has expired.

The lists that answers created are known until their TTL ends, each with its number of answers. A monitor then counts
what is left in a list as expired and the rest as taken; so the answers in a list that was deleted count as taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from penstock.accounting.invariants import Invariant, parse_counters
from penstock.base.encoding import counted, decoded, encoded, parse_whole
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead

MAX_LISTS: Final = 1_000
"""Lists that are inspected, those that end first: four reads each, in one atomic read."""
MAX_COUNTS: Final = 20_000
"""Lists with more than one answer whose counts are read."""
END_FIELDS: Final = {"taken": "taken", "expired": "expired", "in lasting lists": "lasting", "unseen": "unseen"}
"""Words for what became of answers in lists that have expired or never do, with the fields of the metric."""


async def audit_answers(redis: "Redis", keys: Keys) -> tuple[Invariant | None, list[str]]:
    """Return the invariant of the answers, and the problems of their lists.

    The invariant is None if no answer was ever sent, or if too many lists have several to read their counts.
    """
    async with AtomicRead(redis) as snapshot:
        snapshot.hlen(encoded(keys.answers_more))
        snapshot.zrange(encoded(keys.answers), 0, MAX_LISTS - 1)
        many, names = await snapshot.execute()
    async with AtomicRead(redis) as snapshot:
        snapshot.hgetall(encoded(keys.metric("answers")))
        snapshot.zcard(encoded(keys.answers))
        snapshot.hvals(encoded(keys.answers_more)) if many <= MAX_COUNTS else snapshot.time()
        for name in names:
            snapshot.zscore(encoded(keys.answers), name)
            snapshot.hget(encoded(keys.answers_more), name)
            snapshot.llen(name)
            snapshot.pttl(name)
        fields, lists, more, *found = await snapshot.execute(raise_on_error=False)
    for reply in (fields, lists, more):
        if isinstance(reply, Exception):
            raise reply
    problems: list[str] = []
    numbers = parse_counters("answers", fields, problems)
    rows = zip(names, *(found[place::4] for place in range(4)), strict=True)
    inspected = [
        _AnswerList(decoded(name), 1 + (parse_whole(extra) or 0), parse_whole(length) or 0, parse_whole(ttl) or 0)
        for name, end, extra, length, ttl in rows
        if end
    ]
    problems += [one.problem for one in inspected if one.answers < one.length and one.ttl >= 0]
    if not (numbers or lists) or many > MAX_COUNTS:
        return None, problems
    law = _invariant(numbers, lists + sum(parse_whole(extra) or 0 for extra in more), inspected)
    return law, problems + ([law.problem] if law.difference else [])


@dataclass(frozen=True)
class _AnswerList:
    """A list of answers that has an end: the answers it got, the messages it holds, and its TTL (ms; below 0: none)."""

    name: str
    answers: int
    length: int
    ttl: int

    @property
    def problem(self) -> str:
        """The problem in words, if the list holds more messages than answers."""
        holds = f"{self.name!r} holds {counted(self.length, 'message')}, at most {self.answers:,} of them answers"
        gone = f"it has a TTL and is gone in {self.ttl / 1000:,.0f} s"
        return f"{holds}: {gone}; expected a list for answers alone: PERSIST {self.name}"


def _invariant(numbers: Mapping[str, int], open: int, inspected: Iterable[_AnswerList]) -> Invariant:
    """Return the invariant; ``open`` is the number of answers in lists that have an end."""
    known = sum(one.answers for one in inspected)
    waiting = sum(min(one.length, one.answers) for one in inspected)
    parts = {name: numbers.get(field, 0) for name, field in END_FIELDS.items()}
    parts["taken"] += known - waiting
    parts |= {"waiting": waiting, "not looked at": open - known}
    return Invariant("answers", numbers.get("count", 0), parts)
