"""Day of Seattle's weather as a CSV row, with the texts of its alarm and its daily report."""

from typing import Final, NamedTuple, Self

STORM: Final = 8.0
"""Minimum wind of a storm (m/s): the column is the mean of the day, and 8 is Beaufort 5."""


class Day(NamedTuple):
    """Fields of a row: rain in mm, temperatures in C, wind in m/s."""

    date: str
    rain: float
    warmest: float
    coldest: float
    wind: float
    sky: str

    @classmethod
    def read(cls, row: bytes) -> Self:
        """Parse a row. Raise ``ValueError`` if it is invalid."""
        date, rain, warmest, coldest, wind, sky = row.decode().split(",")
        return cls(date, float(rain), float(warmest), float(coldest), float(wind), sky)

    @property
    def storm(self) -> bool:
        return self.wind >= STORM

    def alarm(self) -> str:
        return f"{self.date} storm: wind {self.wind} m/s, {self.rain} mm of rain, {self.sky}"

    def report(self) -> str:
        return f"{self.date} {self.sky}, {self.coldest} to {self.warmest} C, {self.rain} mm, wind {self.wind} m/s"
