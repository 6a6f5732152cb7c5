"""Pages of Seattle's weather: a day as JSON, a month as HTML, a report as text."""

import asyncio
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from compose.weather.day import Day
from penstock.base.exact_json import as_json

REPORT_SECONDS: Final = 0.5
"""Duration of a report, as if another server were asked."""
Reply = dict[str, Any]
"""Status, headers and body of an answer."""


def reply(status: int, kind: str, body: str) -> Reply:
    """Return an answer with ``body`` of the media type ``kind``."""
    return {"status": status, "headers": [["content-type", f"{kind}; charset=utf-8"]], "body": body}


class Pages:
    """The pages of ``rows``, which are lines of seattle-weather.csv."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        days = [Day.read(row) for row in rows]
        self.days = {day.date.replace("/", "-"): day for day in days}
        self.months = dict.fromkeys(date[:7] for date in self.days)

    async def answer(self, path: str) -> Reply:
        """Return the page at ``path``, or 404."""
        kind, _, name = path.strip("/").partition("/")
        if kind == "days" and name in self.days:
            return reply(200, "application/json", as_json(self.days[name]._asdict()).decode())
        if kind == "months" and name in self.months:
            return reply(200, "text/html", self._month(name))
        if (kind, name) == ("report", ""):
            await asyncio.sleep(REPORT_SECONDS)
            return reply(200, "text/plain", self._report())
        return reply(404, "text/plain", f"There is no page {path}.\n")

    def _month(self, name: str) -> str:
        rows = "".join(
            f"<tr><td>{date}<td>{day.coldest:g} to {day.warmest:g} C<td>{day.rain:g} mm<td>{escape(day.sky)}\n"
            for date, day in self.days.items()
            if date.startswith(name)
        )
        return f"<!doctype html><title>Seattle, {name}</title>\n<h1>Seattle, {name}</h1>\n<table>\n{rows}</table>\n"

    def _report(self) -> str:
        """Return a line for each year."""
        lines = []
        for year in dict.fromkeys(month[:4] for month in self.months):
            days = [day for date, day in self.days.items() if date.startswith(year)]
            rain, warmest = sum(day.rain for day in days), max(day.warmest for day in days)
            storms = sum(day.storm for day in days)
            lines.append(f"{year}: {rain:.0f} mm of rain, at most {warmest:g} C, storms: {storms}\n")
        return "".join(lines)
