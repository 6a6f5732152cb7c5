"""How the demo of compose/jobs judges: what is right has no differences, and each damage is named."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import pytest

from compose.ending import Ending
from compose.jobs.outcome import Found, judge
from compose.months import rows_by_month
from penstock.accounting.tracked import TrackedAudit
from penstock.jobs import Completion, DeadJob

MONTHS = ("2012-01", "2012-02")
NEVER = "1812-01"
NOW = datetime.now(UTC)


def figures(month: str, begun: float) -> dict[str, Any]:
    """Return what both groups say of a month."""
    rows = [row.split(",") for row in rows_by_month()[month]]
    warmest = [float(row[2]) for row in rows]
    statistics = {
        "days": len(rows), "mean": round(fmean(warmest), 2), "max": max(warmest),
        "rainy": sum(float(row[1]) > 0 for row in rows), "worker": "service-1", "from": begun, "until": begun + 1,
    }  # fmt: skip
    return {
        "request": month,
        "statistics": statistics,
        "snow": {"snow": sum(row[5] == "snow" for row in rows), "worker": "node-2"},
    }


def sound() -> Found:
    """Return what is found after a run in which all was as promised."""
    error = {"name": "ValueError", "message": f"no rows of {NEVER}"}
    completed = [Completion("months", month, group, NOW) for month in MONTHS for group in ("statistics", "snow")]
    completed += [Completion("months", NEVER, "statistics", NOW, error), Completion("months", NEVER, "snow", NOW)]
    events = {
        "months 2012-01": Counter(registered=1, delivered=2, done=1),
        "months 2012-02": Counter(registered=1, delivered=2, failed=1, retry=1, done=1),
        f"months {NEVER}": Counter(registered=1, delivered=3, failed=2, retry=2, dead=1),
        "tally tally@1": Counter(registered=1, delivered=1, done=1),
    }
    never = {"request": NEVER, "statistics": {"error": error}, "snow": {"snow": 0, "worker": "node-2"}}
    errors = [{"attempt": number, "at": 1.0, "error": error} for number in (1, 2, 3)]
    dead = DeadJob("1-1", 0, "months", NEVER, "statistics", "1-0", 3, 1.0, errors, {"rows": b""}, [])
    return Found(
        MONTHS,
        NEVER,
        killed_process="slow",
        tallies=1,
        snow="Python",
        completed=completed,
        killed="2012-01",
        killed_worker="slow-3",
        has_killed=True,
        out=[figures("2012-01", 1.0), figures("2012-02", 2.0), never],
        events=events,
        dead=[dead],
        results={"tally@1": 2},
        pending={"months, hfxbus:csr:snow": 0},
        audit=TrackedAudit("figures:worker", 4, {}, [], [], []),
        ending=Ending({"slow": -9, "statistics": 0}, {}, []),
    )


def test_a_run_as_promised_has_no_differences() -> None:
    assert judge(sound()).differences == []
    assert judge(sound()).figures()["holds"] is True


def lose_month(found: Found) -> None:
    del found.out[0]  # type: ignore[attr-defined]


def complete_twice(found: Found) -> None:
    found.completed.append(found.completed[1])


def end_twice(found: Found) -> None:
    Counter.update(found.events["months 2012-02"], done=1)


def lie(found: Found) -> None:
    found.out[0]["statistics"]["rainy"] += 1


def lie_of_snow(found: Found) -> None:
    found.out[1]["snow"]["snow"] += 1


def run_together(found: Found) -> None:
    found.out[1]["statistics"]["from"] = 1.5


def claim_nothing(found: Found) -> None:
    found.events["months 2012-01"]["delivered"] = 1


def kill_nothing(found: Found) -> None:
    found.has_killed = False


def done_by_the_dead(found: Found) -> None:
    found.out[0]["statistics"]["worker"] = "slow-3"


def retry_nothing(found: Found) -> None:
    found.events["months 2012-02"].update(delivered=-1, failed=-1)


def bury_nothing(found: Found) -> None:
    found.dead.clear()  # type: ignore[attr-defined]


def tally_too_much(found: Found) -> None:
    found.results["tally@1"] = 4  # type: ignore[index]


def tally_nothing(found: Found) -> None:
    found.results.clear()  # type: ignore[attr-defined]


def leave_one(found: Found) -> None:
    found.pending["months, hfxbus:csr:snow"] = 1  # type: ignore[index]


def end_badly(found: Found) -> None:
    found.ending.statuses["statistics"] = 1


def survive(found: Found) -> None:
    found.ending.statuses["slow"] = 0


def break_sums(found: Found) -> None:
    assert found.audit
    found.audit.problems.append("registered 4 is not done 3")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lose_month, ["2012-01: came out 0 times"]),
        (complete_twice, ["2012-01: snow has completed it 2 times"]),
        (end_twice, ["months 2012-02: has ended 2 times in the history"]),
        (lie, ["2012-01: statistics says {"]),
        (lie_of_snow, ["2012-02: snow says {"]),
        (run_together, ["2012-01 and 2012-02 ran at the same time"]),
        (claim_nothing, ["2012-01: was not claimed, though its process was killed"]),
        (kill_nothing, ["no process was killed in a job"]),
        (done_by_the_dead, ["slow-3 has done jobs, though it was killed in its first one"]),
        (retry_nothing, ["no job was tried again"]),
        (bury_nothing, ["dead: expected 1812-01 with its value and 3 errors, found []"]),
        (tally_too_much, ["tally@1: returned 4"]),
        (tally_nothing, ["tally: was done 1 times, with 0 results"]),
        (leave_one, ["months, hfxbus:csr:snow: 1 jobs are not done"]),
        (end_badly, ["statistics: exit status 1"]),
        (survive, ["slow: exit status 0"]),
        (break_sums, ["figures:worker: registered 4 is not done 3"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_each_damage_is_named(damage: Callable[[Found], None], expected: list[str]) -> None:
    found = sound()
    damage(found)
    lines = judge(found).differences
    assert len(lines) == len(expected), lines
    for line, begins in zip(lines, expected, strict=True):
        assert line.startswith(begins)
