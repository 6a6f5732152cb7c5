"""All numbers of a report equal those that plain Python computes from the same events."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import NoArchive
from penstock.spark.report import SLOWEST, Backlog, Report, Section, coverage, report
from penstock.spark.time_axis import DAY, MAX_BUCKETS, TimeAxis
from penstock.tracking.events import END_EVENTS
from tests.spark import SparkSession
from tests.spark.generated_events import ALLOWED, NOON, ArchivedEvent, archive, generate, in_order

SHOP = generate(1_500, 1)
SHIP = generate(200, 2, start=NOON + 600, namespace="ship")
LATER = [each for each in generate(300, 3, namespace="later") if (each.number or 0) > 200]
"""Events of an archive that began after the namespace's first 200 events."""
REASONS = ("timeout", "failed", "queueTimeout")
BORN = {each.id: each.at for each in generate(300, 3) if each.event == "registered"}
AGAIN = in_order(
    [
        *(ArchivedEvent("registered", "1", NOON * 1000), ArchivedEvent("timeout", "1", NOON * 1000 + 10_000, 3)),
        *(ArchivedEvent("dead", "1", NOON * 1000 + 10_000, 3), ArchivedEvent("registered", "1", NOON * 1000 + 60_000)),
        *(
            ArchivedEvent("done", "1", NOON * 1000 + 60_000, 1, 0.0, timeout=None),
            ArchivedEvent("registered", "1", NOON * 1000 + 90_000),
        ),
        ArchivedEvent("dead", "1", NOON * 1000 + 95_000, 1),
    ]
)
"""Events of a server that was emptied twice; the allowed time of some is unknown."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    again = [replace(each, namespace="again") for each in AGAIN]
    return archive(tmp_path_factory.mktemp("archive"), SHOP + SHIP + LATER + again)


@pytest.fixture(scope="module")
def whole(spark: "SparkSession", directory: str) -> Report:
    found = report(spark, directory)
    assert found
    return found


def section(found: Report, namespace: str) -> Section:
    return next(section for section in found.sections if section.namespace == namespace)


def in_buckets(axis: TimeAxis, events: Iterable[ArchivedEvent]) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    for each in events:
        counts.setdefault(each.event, [0] * axis.count)[int((each.at / 1000 - axis.start) // axis.step)] += 1
    return counts


def check(section: Section, axis: TimeAxis, events: list[ArchivedEvent], since: int = 0, until: int = 10**15) -> None:
    """Compare with ``events`` of the namespace; those from ``since`` to ``until`` (ms since the epoch) are reported."""
    rows = [each for each in events if since <= each.at < until]
    assert section.totals == Counter(each.event for each in rows)
    assert section.counts == in_buckets(axis, rows)
    for kind in ("done", "late"):
        times = sorted(each.seconds for each in rows if each.event == kind and each.seconds is not None)
        assert (kind in section.times) is bool(times)
        if not times:
            continue
        found = section.times[kind]
        assert (found.count, found.max) == (len(times), times[-1])
        assert math.isclose(found.mean * len(times), sum(times), abs_tol=1e-6)
        for name, value in found.percentiles.items():
            exact = np.percentile(times, int(name[1:]), method="inverted_cdf")
            assert value == pytest.approx(exact, rel=0.05)
    for kind, counts in section.histogram.items():
        shares = [min(int(each.seconds * 10 / ALLOWED), 10) for each in rows if each.event == kind and each.seconds]
        assert counts == [shares.count(place) for place in range(11)]
    check_lifecycles(section, axis, events, rows)


def check_lifecycles(section: Section, axis: TimeAxis, events: list[ArchivedEvent], rows: list[ArchivedEvent]) -> None:
    began: dict[str, int] = {}
    why: dict[str, str] = {}
    ended: list[Any] = []
    dead: list[ArchivedEvent] = []
    shown = set(map(id, rows))
    for each in events:
        if each.event == "registered":
            began[each.id] = each.at
        elif each.event in REASONS:
            why[each.id] = each.event
        if each.event in END_EVENTS and id(each) in shown:
            ended.append((began[each.id] - each.at, each.at, each.id, each.event, each.attempt, each.xid))
        if each.event == "dead" and id(each) in shown:
            dead.append(replace(each, event=why[each.id]))
    counts = in_buckets(axis, dead)
    assert section.dead == {name: counts.get(name, [0] * axis.count) for name in (*REASONS, "unknown")}
    assert [
        (-round(each.seconds * 1000), round(each.at * 1000), each.id, each.how, each.attempts, each.xid)
        for each in section.slowest
    ] == sorted(ended)[:SLOWEST]
    opened = [each.event == "registered" for each in events if each.at < rows[0].at]
    closed = [each.event in END_EVENTS for each in events if each.at < rows[0].at]
    assert (section.backlog.opening, section.backlog.known) == (sum(opened) - sum(closed), True)
    for place, start in enumerate(axis.starts):
        before = [each for each in events if each.at < (start + axis.step) * 1000 and each.at <= rows[-1].at]
        change = Counter(each.event for each in before)
        assert section.backlog.over_time[place] == change["registered"] - sum(change[kind] for kind in END_EVENTS)


def test_every_number_is_that_of_the_events(whole: Report) -> None:
    assert whole.axis == TimeAxis(NOON, 15, 101)
    assert [each.namespace for each in whole.sections] == ["again", "later", "ship", "shop"]
    assert (whole.first, whole.last) == (NOON, max(each.at for each in SHOP) / 1000)
    check(section(whole, "shop"), whole.axis, SHOP)
    check(section(whole, "ship"), whole.axis, SHIP)


def test_a_time_when_nothing_was_done_is_a_gap(whole: Report) -> None:
    assert section(whole, "ship").times["done"].over_time["p50"][0] is None
    assert section(whole, "ship").counts["done"][0] == 0


def test_what_began_before_the_interval_counts_in_full(spark: "SparkSession", directory: str) -> None:
    gave_up = next(each for each in SHOP if each.event == "failed" and each.attempt == 3)
    since, until = gave_up.at + 1, gave_up.at + 80_000
    found = report(spark, directory, ["shop"], *(datetime.fromtimestamp(at / 1000, UTC) for at in (since, until)))
    assert found
    assert found.axis.step == 1, "seconds, where there is not more than a minute or two"
    (shop,) = found.sections
    assert any(each.at - each.seconds < since / 1000 and each.how == "done" for each in shop.slowest)
    assert shop.dead["failed"][0] == 1, "what it died of was before"
    check(shop, found.axis, SHOP, since, until)


def test_an_archive_that_begins_later_does_not_know_what_was_open(whole: Report) -> None:
    later = section(whole, "later")
    changes = in_buckets(whole.axis, LATER)
    ended = np.sum([changes.get(kind, [0] * whole.axis.count) for kind in END_EVENTS], axis=0)
    change = np.cumsum(np.array(changes["registered"]) - ended)
    assert change.min() < 0
    assert later.backlog == Backlog(-change.min(), False, [*(change - change.min())])
    orphans = {each.id for each in LATER if each.event in END_EVENTS and BORN[each.id] < LATER[0].at}
    assert {each.id for each in later.slowest if each.how != "dead"}.isdisjoint(orphans)
    assert orphans


def test_an_id_that_is_given_again_is_another_message(whole: Report) -> None:
    again = section(whole, "again")
    found = [(each.how, each.seconds, each.attempts) for each in again.slowest]
    assert found == [("dead", 10, 3), ("dead", 5, 1), ("done", 0, 1)]


def test_unknown_values_are_shown_as_unknown(whole: Report) -> None:
    again = section(whole, "again")
    assert {reason: sum(line) for reason, line in again.dead.items()} == dict.fromkeys(REASONS, 0) | {
        "timeout": 1,
        "unknown": 1,
    }
    assert again.unmeasured == 2, "a time-out without its time, and one done without the time allowed"


def test_without_events_there_is_no_report(spark: "SparkSession", directory: str, tmp_path: Path) -> None:
    assert report(spark, directory, ["nobody"]) is None
    assert report(spark, directory, ["shop"], datetime.fromtimestamp(NOON + 10 * DAY, UTC)) is None
    assert {each.namespace: each.events for each in coverage(spark, directory)} == {
        "again": len(AGAIN),
        "later": len(LATER),
        "ship": len(SHIP),
        "shop": len(SHOP),
    }
    with pytest.raises(NoArchive):
        report(spark, str(tmp_path))


@given(st.floats(0, 4e9), st.floats(0, 1e9))
def test_an_axis_has_both_ends_and_not_too_many_buckets(first: float, length: float) -> None:
    axis = TimeAxis.over(first, first + length)
    assert axis.start <= first < axis.start + axis.step
    assert axis.starts[-1] <= first + length < axis.start + axis.count * axis.step
    assert 1 <= axis.count <= MAX_BUCKETS
