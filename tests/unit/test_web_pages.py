"""The pages of compose/web, and how its load reads answers and counts them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from compose.ending import Ending
from compose.outcome import Outcome
from compose.web.demo import judge
from compose.web.load import Step
from compose.web.pages import Pages
from penstock.accounting.audit import Audit

ROWS = Path("compose/weather/seattle-weather.csv").read_bytes().splitlines()[1:]
SOUND = Audit("web:router", 1, {}, [], [], [])


async def test_a_day_is_json_and_a_month_html() -> None:
    pages = Pages(ROWS)
    day = await pages.answer("/days/2012-01-02")
    assert (day["status"], json.loads(day["body"])["rain"]) == (200, 10.9)
    month = await pages.answer("/months/2012-02")
    assert (month["status"], month["body"].count("<tr>")) == (200, 29)
    assert "2015: 1139 mm of rain" in (await pages.answer("/report"))["body"]


@pytest.mark.parametrize("path", ["/days/2012-02-30", "/days/", "/months/12", "/report/2012", "/elsewhere", "/"])
async def test_another_path_is_404(path: str) -> None:
    assert (await Pages(ROWS).answer(path))["status"] == 404


def outcome(steps: list[Step], *, confirmed: list[str], kept: list[str], dead: int = 0, status: int = 0) -> Outcome:
    counts = {"timeout": 0, "retry": 0, "dead": dead}
    audits = {"web:router": SOUND}
    return judge(steps, Counter(confirmed), Counter(kept), audits, counts, Ending({"router": status}, {}, []))
