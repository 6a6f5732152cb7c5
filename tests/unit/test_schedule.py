"""When cron expressions are due: ten years of six zones, against Debian's cron, which walks real minutes."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from penstock.base.errors import WrongCall
from penstock.jobs.schedule import Schedule, check_cron, drawn

ZONES = (
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Beirut", "Africa/Casablanca",
)  # fmt: skip
BEGIN, END = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2020, 2030))
HALF_HOUR = 1_800
"""Seconds; the clocks of all of these zones are changed at a multiple of it."""
LONG_SHIFT = 180
"""Minutes; Debian's cron takes a larger change for a correction of the clock."""


def allowed(field: str, first: int, last: int) -> set[int]:
    """Return the numbers of a field; ``croniter`` has no part in it."""
    found = set[int]()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = (f"{first}-{last}" if span == "*" else span).partition("-")
        found.update(range(int(low), int(high or low) + 1, int(step or 1)))
    return found


def matching(cron: str) -> Callable[[int], bool]:
    """Return what says whether an expression matches a minute that a clock shows (minutes since the epoch)."""
    fields = cron.split()
    spans = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
    minutes, hours, days, months, weekdays = (allowed(field, *span) for field, span in zip(fields, spans, strict=True))
    is_either = not fields[2].startswith("*") and not fields[4].startswith("*")

    def matches(wall: int) -> bool:
        if wall % 60 not in minutes or wall // 60 % 24 not in hours:
            return False
        shown = datetime.fromtimestamp(wall * 60, UTC)
        day, weekday = shown.day in days, shown.isoweekday() % 7 in weekdays
        return shown.month in months and (day or weekday if is_either else day and weekday)

    return matches


def debian(cron: str, clock: Iterable[tuple[int, int]], step: int = 1) -> list[int]:
    """Return when Debian's cron (cron.c) runs a job, in each ``step`` of minutes.

    ``clock`` has real times (s), and the minutes that the clock shows then.
    """
    matches, is_wild = matching(cron), any(field.startswith("*") for field in cron.split()[:2])
    found, virtual = list[int](), None
    for at, wall in clock:
        if virtual is None or not -LONG_SHIFT < wall - virtual <= LONG_SHIFT:
            virtual = wall - step  # the clock was corrected
        missed = [wall] if is_wild else range(virtual + step, wall + 1, step)
        virtual = max(virtual, wall)
        if any(map(matches, missed)):
            found.append(at)
    return found


def ours(cron: str, zone: str, after: float, until: float) -> list[int]:
    schedule, found = Schedule(cron, zone), list[int]()
    while (due := schedule.after(after)) is not None and due < until:
        found.append(int(due))
        assert due > after
        after = due
    return found


@pytest.fixture(scope="module")
def offsets() -> Callable[[str], list[int]]:
    known = dict[str, list[int]]()

    def of(zone: str) -> list[int]:
        """Return by how many seconds the clock of a zone is ahead of UTC, for each half hour of the ten years."""
        if zone not in known:
            info = ZoneInfo(zone)
            known[zone] = [
                int((datetime.fromtimestamp(at, info).utcoffset() or timedelta(0)).total_seconds())
                for at in range(BEGIN, END, HALF_HOUR)
            ]
        return known[zone]

    return of


@pytest.mark.parametrize("zone", ZONES)
def test_ten_years_are_those_of_debians_cron(zone: str, offsets: Callable[[str], list[int]]) -> None:
    clock = [(at, (at + offset) // 60) for at, offset in zip(range(BEGIN, END, HALF_HOUR), offsets(zone), strict=True)]
    for cron in ("30 2 * * 0", "0 0,3 1 3,4,9-11 6"):
        expected = debian(cron, clock, step=30)
        assert expected
        assert ours(cron, zone, BEGIN - 1, END) == expected, (zone, cron)


@pytest.mark.parametrize("zone", ZONES)
def test_each_minute_around_a_change_of_the_clock_is_that_of_debians_cron(
    zone: str, offsets: Callable[[str], list[int]]
) -> None:
    """Hours around each change in ten years, with plans of fixed hours, of ranges, of each hour and of some minutes."""
    found = offsets(zone)
    changes = [BEGIN + place * HALF_HOUR for place in range(1, len(found)) if found[place] != found[place - 1]]
    assert len(changes) >= 18
    for change in changes:
        first, last = change - 4 * 3_600, change + 5 * 3_600
        clock = [(at, (at + found[(at - BEGIN) // HALF_HOUR]) // 60) for at in range(first, last, 60)]
        for cron in (
            "17 * * * *", "*/20 2 * * *", "5 */2 * * *", "45 0-3 * * *", "10,40 1,2 * * *", "0-59/20 0-23 * * *",
            "59 23 * * *", "0 3 * * *", "29 0 * * *", "15 2 * * *",
        ):  # fmt: skip
            assert ours(cron, zone, first - 1, last) == debian(cron, clock), (zone, cron, change)


def local(cron: str, zone: str, after: str, many: int) -> list[str]:
    """Return the times that are due first ``after`` a local time."""
    schedule, at = Schedule(cron, zone), datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)).timestamp()
    found = list[str]()
    for _ in range(many):
        due = schedule.after(at)
        assert due is not None
        at = due
        found.append(datetime.fromtimestamp(at, ZoneInfo(zone)).isoformat())
    return found


def test_a_time_is_due_after_any_moment_of_the_hour_that_comes_twice() -> None:
    """A plan that is set within it, or whose consumer was away, is due tomorrow: it ran before."""
    second = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo("Europe/Berlin"), fold=1).timestamp()
    for after in (second, second + 1_000.5, second + 3_600):
        assert Schedule("30 2 * * *", "Europe/Berlin").after(after) == second + 86_400 + 1_200


def test_a_day_that_a_zone_has_skipped_is_a_correction() -> None:
    """As to Debian's cron, which makes up for less than three hours; Samoa had no 30 December 2011."""
    assert local("30 2 * * *", "Pacific/Apia", "2011-12-29T00:00", 2) == [
        "2011-12-29T02:30:00-10:00", "2011-12-31T02:30:00+14:00",
    ]  # fmt: skip


def test_days_of_month_and_of_week_are_as_in_debians_cron() -> None:
    """Either is enough if both are given; with an asterisk first, both must be."""
    assert [each[:10] for each in local("0 0 13 * 5", "UTC", "2026-11-01T00:00", 4)] == [
        "2026-11-06", "2026-11-13", "2026-11-20", "2026-11-27",
    ]  # fmt: skip
    assert [each[:10] for each in local("0 0 */2 * MON", "UTC", "2026-11-01T00:00", 2)] == ["2026-11-09", "2026-11-23"]


def test_names_are_read_in_any_case_and_short_forms_too() -> None:
    for cron in ("0 0 * JAN Sun", "0  0 * jan sUN", "0 0 * 1 7", "0 0 * 1 0"):
        assert local(cron, "UTC", "2026-11-01T00:00", 1) == ["2027-01-03T00:00:00+00:00"]
    assert local("@Daily", "UTC", "2026-11-01T00:00", 1) == ["2026-11-02T00:00:00+00:00"]
    assert local("@hourly", "Europe/Berlin", "2026-10-25T02:30", 1) == ["2026-10-25T02:00:00+01:00"]


def test_a_range_of_one_is_one() -> None:
    for cron in ("0 2-2 * * *", "0-0/5 2 * * *", "0 2 1-1 2-2 *"):
        found = local(cron, "UTC", "2027-01-31T12:00", 1)
        assert found == ["2027-02-01T02:00:00+00:00"]
    assert local("0 2 * * sun-sun", "UTC", "2027-01-31T12:00", 1) == ["2027-02-07T02:00:00+00:00"]


def test_what_is_due_years_later_is_found_and_what_never_is_too() -> None:
    assert local("0 0 29 2 *", "Europe/Berlin", "2096-03-01T00:00", 1) == ["2104-02-29T00:00:00+01:00"]
    assert local("0 0 1 1 * 0 2099", "UTC", "2026-03-01T00:00", 1) == ["2099-01-01T00:00:00+00:00"]
    assert Schedule("0 0 30 2 *", "UTC").after(0) is None
    last = Schedule("5 4 28 11 * 30 2026", "Europe/Berlin")
    due = datetime(2026, 11, 28, 4, 5, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    assert last.after(due - 0.5) == due
    assert last.after(due) is None


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 0 2 * * *", "0 2 * * *"),
        ("0 30 2 * * 1-5", "30 2 * * 1-5"),
        ("0 0 2 ? * MON-FRI", "0 2 ? * MON-FRI"),
        ("0 0 2 * * ? 2027", "0 2 * * ? 0 2027"),
        ("0 0 2 ? * 1 *", "0 2 ? * 1 0 *"),
        ("0 */5 * * * *", "*/5 * * * *"),
        ("*/5 * * * * *", "* * * * * 0-59/5"),
        ("30 0 2 * * 1", "0 2 * * 1 30"),
        ("5 0 2 * * 1", "0 2 * * 1 5 *"),
        ("* 0 2 * * *", "0 2 * * * 0-59"),
        ("0 0 2 L * ?", "0 2 L * ?"),
    ],
)
def test_seconds_first_are_refused_with_what_was_meant(cron: str, expected: str) -> None:
    with pytest.raises(WrongCall) as refused:
        check_cron(cron)
    assert f"expected {expected!r}" in str(refused.value)
    check_cron(expected)


@pytest.mark.parametrize("cron", ["5 0 2 * * 1", "30 2 * * * 0", "0 0 2 * * */2"])
def test_what_may_have_its_seconds_first_or_last_can_be_said_for_certain(cron: str) -> None:
    with pytest.raises(WrongCall, match=r"with its seconds last ") as refused:
        check_cron(cron)
    assert repr(f"{cron} *") in str(refused.value)
    check_cron(f"{cron} *")


@pytest.mark.parametrize(
    "cron", ["0 2 * * * 30", "* * * * * */5", "* * * * * *", "0 0 2 12 * 5 2026", "0 2 1 jan * 5", "0 2 * * * 0-59/10"]
)
def test_seconds_and_a_year_may_follow_the_five_fields(cron: str) -> None:
    check_cron(cron)


@pytest.mark.parametrize(
    "cron", ["", "* * *", "60 * * * *", "x", "0 0 * * 8", "R(0-99) * * * *", "@reboot", "0 0 2 * * * * *"]
)
def test_what_is_no_expression_is_refused(cron: str) -> None:
    with pytest.raises(WrongCall, match="cron="):
        check_cron(cron)


def test_h_is_decided_by_the_name_and_r_is_drawn() -> None:
    assert drawn("H H(0-5) * * *", "one") == drawn("h  h(0-5) * * *", "one")
    assert len({drawn("H H * * *", f"{number}") for number in range(20)}) > 10
    assert len({drawn("R R * * *", "one") for _ in range(20)}) > 10
    assert drawn("5 2 * mar *", "one") == "5 2 * mar *"
    for _ in range(200):
        minute, hour, day, month, weekday = drawn("R(10-19) R/6 R R R(1-5)", "one").split()
        begun, step = hour.split("/")
        assert int(begun) < 6 == int(step)
        assert int(minute) in range(10, 20)
        assert int(day) in range(1, 29)
        assert int(month) in range(1, 13)
        assert int(weekday) in range(1, 6)
        check_cron(f"{minute} {hour} {day} {month} {weekday}")
