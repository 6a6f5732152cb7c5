"""Tables of a report, for the terminal and for the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.spark.report import MEASURED, Report, Section
from penstock.spark.rollups import PERCENTILES
from penstock.tracking.events import END_EVENTS

KINDS: Final = ("registered", "done", "late", "timeout", "failed", "retry", "dead", "expired")
"""Kinds of events, in the order of the columns."""
NONE: Final = "-"
TEXTS: Final = frozenset({"namespace", "event", "share", "reason", "id", "xid", "queue", "service", "how", "fault"})
MOMENTS: Final = frozenset({"from (UTC)", "ended (UTC)"})
"""Columns with a date and time; columns in neither set are numbers."""
UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True)
class Table:
    """A table whose cells are text, or whole numbers that the caller formats."""

    title: str
    columns: Sequence[str]
    rows: list[list[int | str]]

    @property
    def kinds(self) -> list[str]:
        """Return ``text``, ``moment`` or ``number`` for each column."""
        return ["text" if name in TEXTS else "moment" if name in MOMENTS else "number" for name in self.columns]


def compared(report: Report) -> Table:
    """Return a row for each namespace."""
    columns = ("namespace", *KINDS, "done a second", "p50 s", "p95 s", "p99 s", "open at the end")
    rows: list[list[int | str]] = []
    for section in report.sections:
        done = section.times.get("done")
        rows.append(
            [
                section.namespace,
                *(section.totals.get(kind, 0) for kind in KINDS),
                rate(section.totals.get("done", 0), report),
                *(map(seconds, done.percentiles.values()) if done else [NONE] * 3),
                section.backlog.over_time[-1],
            ]
        )
    return Table("namespaces", columns, rows)


def events(section: Section, report: Report) -> Table:
    kinds = [*KINDS, *sorted(section.totals.keys() - {*KINDS})]
    rows: list[list[int | str]] = [
        [kind, section.totals.get(kind, 0), rate(section.totals.get(kind, 0), report)] for kind in kinds
    ]
    return Table("events", ("event", "count", "a second"), rows)


def times(section: Section) -> Table:
    rows: list[list[int | str]] = [
        [kind, found.count, *map(seconds, (found.mean, *found.percentiles.values(), found.max))]
        for kind, found in section.times.items()
    ]
    return Table("from delivery to the end", ("event", "count", "mean s", "p50 s", "p95 s", "p99 s", "max s"), rows)


def over_time(section: Section, report: Report, *columns: str) -> Table:
    """Return a row for each bucket. ``columns``: kinds of events, those of ``spent``, ``dead of REASON``, ``open``."""
    lines: dict[str, Sequence[int | str]] = {f"dead of {reason}": line for reason, line in section.dead.items()}
    lines |= {"open": section.backlog.over_time, **section.counts}
    for kind, found in section.times.items():
        times = ([seconds(each) for each in line] for line in found.over_time.values())
        lines |= dict(zip(spent(kind), times, strict=True))
    none = [0] * report.axis.count
    rows = zip(map(clock, report.axis.starts), *(lines.get(name, none) for name in columns), strict=True)
    return Table(f"in each {span(report.axis.step)}", ("from (UTC)", *columns), [[*row] for row in rows])


def spent(kind: str) -> list[str]:
    """Return the columns of ``over_time`` with the percentiles of ``kind``."""
    return [f"{kind} {name} s" for name in PERCENTILES]


def histogram(section: Section) -> Table:
    names = [f"{10 * tenth} to {10 * tenth + 10} %" for tenth in range(10)] + ["all of it or more"]
    rows: list[list[int | str]] = [
        [name, *(section.histogram[kind][place] for kind in MEASURED)] for place, name in enumerate(names)
    ]
    return Table("of the time allowed", ("share", *MEASURED), rows)


def dead(section: Section) -> Table:
    rows: list[list[int | str]] = [[reason, sum(counts)] for reason, counts in section.dead.items()]
    return Table("dead letters", ("reason", "count"), rows)


def slowest(section: Section) -> Table:
    rows: list[list[int | str]] = [
        [
            *(word or NONE for word in (each.id, each.xid, each.queue, each.service)),
            NONE if each.attempts is None else each.attempts,
            *(seconds(each.seconds), clock(each.at), each.how),
        ]
        for each in section.slowest
    ]
    columns = ("id", "xid", "queue", "service", "attempts", "seconds", "ended (UTC)", "how")
    return Table("slowest messages, from registration to the end", columns, rows)


def key_figures(section: Section) -> list[tuple[str, str, str]]:
    """Return what a reader wants to know first: a name, a value, and a remark or an empty text."""
    totals, done, backlog = section.totals, section.times.get("done"), section.backlog
    ended = sum(totals.get(kind, 0) for kind in END_EVENTS)
    counts = {kind: totals.get(kind, 0) for kind in ("done", "dead")}
    p50, p99 = (seconds(done.percentiles[name]) for name in ("p50", "p99")) if done else (NONE, NONE)
    return [
        ("registered", f"{totals.get('registered', 0):,}", ""),
        *(
            (kind, f"{count:,}", f"{100 * count / ended:.2f} % of ended" if ended else "")
            for kind, count in counts.items()
        ),
        ("timed out", f"{totals.get('timeout', 0):,}", "attempts"),
        ("half done within", f"{p50} s" if done else NONE, f"p99: {p99} s" * bool(done)),
        ("open at the end", f"{backlog.over_time[-1]:,}", "" if backlog.known else "at least"),
    ]


def backlog(section: Section) -> str:
    """Describe the backlog at the beginning and the end."""
    found = section.backlog
    at_least = "" if found.known else "at least "
    why = "" if found.known else " (the archive does not reach back to the first message)"
    return f"{at_least}{found.opening:,} open at the beginning, {at_least}{found.over_time[-1]:,} at the end{why}"


def interval(report: Report) -> str:
    """Describe the interval that was asked for."""
    since, until = (None if moment is None else clock(moment) for moment in (report.since, report.until))
    words = [f"from {since}" if since else "", f"to {until}" if until else ""]
    return " ".join(filter(None, words)) + " UTC" if since or until else "all of the archive"


def rate(count: int, report: Report) -> str:
    """Return the mean rate (1/s) over all buckets."""
    return f"{count / (report.axis.step * report.axis.count):,.3f}"


def seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:,.3f}"


def clock(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S}"


def span(step: int) -> str:
    """Describe the size of a bucket."""
    size, name = next(each for each in UNITS if step % each[0] == 0)
    return name if step == size else f"{step // size} {name}s"
