"""Where the answers are that were sent: taken by their clients, waiting, or expired.

A list that an answer has made is known until its time is over, with the number of its answers. A monitor ends it then,
and counts what is left in it as expired, the rest as taken; so answers in a list that somebody deletes count as taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.accounting.audit import parse_counters
from penstock.accounting.tracked import Invariant, describe_imbalance
from penstock.atomic import AtomicRead
from penstock.encoding import decoded, encoded
from penstock.keys import Keys

MAX_LISTS: Final = 1_000
"""Lists that are looked at, those that end first: four reads each, at one instant."""
MAX_COUNTS: Final = 20_000
"""Lists with more than one answer whose numbers are read."""
END_FIELDS: Final = {"taken": "taken", "expired": "expired", "in lasting lists": "lasting", "unseen": "unseen"}
"""What became of answers whose list is not to end any more: the names here and those of the metric's fields."""


async def audit_answers(redis: "Redis", keys: Keys) -> tuple[Invariant | None, list[str]]:
    """Return the law of the answers, and what is wrong with their lists.

    The law is None if no answer was ever sent, or too many lists have several to read their numbers.
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
    numbers = parse_counters("answers", {decoded(name): decoded(value) for name, value in fields.items()}, problems)
    rows = zip(names, *(found[place::4] for place in range(4)), strict=True)
    seen = [
        _AnswerList(decoded(name), 1 + _whole(extra), _whole(length), _whole(left))
        for name, at, extra, length, left in rows
        if at
    ]
    problems += [one.foreign for one in seen if one.number < one.length and one.left >= 0]
    if not (numbers or lists) or many > MAX_COUNTS:
        return None, problems
    law = _answers_invariant(numbers, lists + sum(map(_whole, more)), seen)
    return law, problems + ([describe_imbalance(law)] if law.difference else [])


@dataclass(frozen=True)
class _AnswerList:
    """One that is to end: how many answers it got, how many messages it holds, and its TTL (ms; below 0: none)."""

    name: str
    number: int
    length: int
    left: int

    @property
    def foreign(self) -> str:
        """What is wrong where others push to it, too."""
        holds = f"{self.name!r} holds {self.length:,} messages, at most {self.number:,} of them answers"
        gone = f"it has a TTL and is gone in {self.left / 1000:,.0f} s"
        return f"{holds}: {gone}; expected a list for answers alone: PERSIST {self.name}"


def _answers_invariant(numbers: Mapping[str, int], open: int, seen: Iterable[_AnswerList]) -> Invariant:
    """``open``: answers in lists that are to end, of which ``seen`` are those looked at."""
    looked_at = sum(one.number for one in seen)
    waiting = sum(min(one.length, one.number) for one in seen)
    parts = {name: numbers.get(field, 0) for name, field in END_FIELDS.items()}
    parts["taken"] += looked_at - waiting
    return Invariant(
        "answers", numbers.get("count", 0), {**parts, "waiting": waiting, "not looked at": open - looked_at}
    )


def _whole(reply: Any) -> int:
    """0 for what is no number, and for the length of a list that is none."""
    try:
        return int(reply)
    except (TypeError, ValueError):
        return 0
