"""Times of a cron expression in a time zone, in nights that change the clock as Debian's cron has them."""

import re
from collections.abc import Callable
from datetime import datetime
from math import ceil
from random import Random
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from penstock.base.errors import WrongCall
from penstock.base.extras import extra

if TYPE_CHECKING:
    from croniter import croniter

MAX_YEARS: Final = 100
"""How far ahead a time is looked for."""
DAY: Final = 86_400.0
MAX_SHIFT: Final = 10_800.0
"""Seconds; a clock that is changed by more was wrong, to Debian's cron, and the new time holds at once."""
SECOND, YEAR = 5, 6
"""Places of the fields that may follow the five."""
DRAWN: Final = re.compile(r"([hr])(?:\((\d+)-(\d+)\))?(?:/(\d+))?", re.ASCII | re.IGNORECASE)
RANGES: Final = ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6), (0, 59), (1970, 2099))
"""What is drawn from by default; each month has the day."""
_one: Final = re.compile(r"(?<![\w-])(\w+)-\1(?:/\d+)?(?![\w-])", re.ASCII)
"""A range of one, which croniter reads as all."""
_wild: Final = re.compile(r"\*|[^-,]+/")
"""What minutes or hours begin with that have no fixed times: ``*``, ``*/2``, ``0/2``."""


def _parser() -> "type[croniter]":
    with extra("jobs"):
        from croniter import croniter
    return croniter


class Schedule:
    """When a cron expression is due. Raise ``ValueError``, or what ``ZoneInfo`` does, for one that cannot be."""

    def __init__(self, cron: str, zone: str) -> None:
        found = _parser()(_one.sub(r"\1", cron), 0.0, max_years_between_matches=MAX_YEARS, implement_cron_bug=True)
        self._zone, self._cron = ZoneInfo(zone), found
        self._is_fixed = not any(_wild.match(field) for field in found.expressions[:2])

    def after(self, moment: float) -> float | None:
        """Return the first time after ``moment`` (both s since the epoch); None if there is none.

        A plan without ``*`` in its minutes and hours runs when the clock first shows its time, or skips it; others run
        whenever the clock shows it.
        """
        at, offset = moment, self._offset(moment)
        wall = moment + offset
        changed = self._change(moment - MAX_SHIFT, moment) if self._is_fixed else None
        if changed is not None:  # the clock may show again what it has shown
            wall = max(wall, changed + self._offset(changed - 1) - 1)
        while (due := self._next(wall)) is not None:
            changed = self._change(at, due - offset)
            if changed is None:
                return due - offset
            former, at, offset = offset, changed, self._offset(changed)
            is_followed = self._is_fixed and abs(offset - former) <= MAX_SHIFT
            if is_followed and former < offset and due < changed + offset:
                return changed
            wall = changed + (max(former, offset) if is_followed else offset) - 1
        return None

    def _next(self, wall: float) -> float | None:
        """Return the next time that matches, on a clock that is never changed."""
        from croniter import CroniterBadDateError

        try:
            return float(self._cron.get_next(float, start_time=wall))
        except CroniterBadDateError:
            return None

    def _offset(self, at: float) -> float:
        """Return how far the clock of the zone is ahead of UTC (s)."""
        found = datetime.fromtimestamp(at, self._zone).utcoffset()
        return found.total_seconds() if found is not None else 0.0

    def _change(self, start: float, end: float) -> float | None:
        """Return when the clock is changed first after ``start``, and not after ``end``; None if it is not."""
        offset = self._offset(start)
        while start < end:
            day = min(start + DAY, end)
            if self._offset(day) != offset:
                before, after = int(start), ceil(day)
                while after - before > 1:
                    middle = (before + after) // 2
                    if self._offset(middle) == offset:
                        before = middle
                    else:
                        after = middle
                return float(after)
            start = day
        return None


def drawn(cron: str, name: str) -> str:
    """Return an expression with a number for each ``R``, at random, and each ``H``, which the ``name`` decides."""
    sources: dict[str, Callable[[int, int], int]] = {"r": Random().randint, "h": Random(name).randint}

    def number(place: int, field: str) -> str:
        found = DRAWN.fullmatch(field)
        if not found or place >= len(RANGES):
            return field
        kind, first, last, step = found.groups()
        low, high = (int(first), int(last)) if first else RANGES[place]
        if not step:
            return str(sources[kind.lower()](low, high))
        begun = sources[kind.lower()](low, min(low + int(step) - 1, high))
        return f"{begun}-{last}/{step}" if first else f"{begun}/{step}"

    return " ".join(number(place, field) for place, field in enumerate(cron.split()))


def check_cron(cron: str) -> None:
    """Raise ``WrongCall`` for what is no expression, or may begin with seconds, as those of Quartz and Node do."""
    if not isinstance(cron, str):
        raise WrongCall(f"cron={cron!r}: expected a text")
    fields = cron.split()
    if (meant := _meant(fields)) is None:
        try:
            _parser()(" ".join(fields), hash_id=b"-")
        except ValueError as error:
            raise WrongCall(f"cron={cron!r}: {error}") from None
        return
    if len(meant) == SECOND + 1 and meant[SECOND] == "0":
        del meant[SECOND:]
    else:
        meant[SECOND] = meant[SECOND].replace("*", "0-59")
    if len(meant) == SECOND + 1 and _meant(meant):
        meant.append("*")
    text = f"cron={cron!r}: it seems to begin with seconds, and minutes come first: expected {' '.join(meant)!r}"
    certain = [*fields, "*"]
    if len(fields) == SECOND + 1 and _parser().is_valid(" ".join(certain)) and not _meant(certain):
        text += f", or with its seconds last {' '.join(certain)!r}"
    raise WrongCall(text)


def _meant(fields: list[str]) -> list[str] | None:
    """Return the fields in our order if they may have seconds first, else None.

    Six may have, unless that cannot be read, or each second is due. Of seven only those that cannot be read otherwise,
    or would be due in each second of a minute.
    """
    if len(fields) not in (SECOND + 1, YEAR + 1) or (set(fields[:SECOND]) == {"*"} and fields[SECOND][0] == "*"):
        return None
    is_valid = _parser().is_valid
    if len(fields) == YEAR + 1 and fields[SECOND] != "*" and is_valid(" ".join(fields), hash_id=b"-"):
        return None
    meant = [*fields[1 : SECOND + 1], fields[0], *fields[SECOND + 1 :]]
    return meant if is_valid(" ".join(meant), hash_id=b"-") else None
