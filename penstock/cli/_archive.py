"""Shared parts of the commands that read an archive: options, points in time, a Spark session."""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli._frame import Failed, Misused, complain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
DURATION: Final = re.compile(r"(\d+)([smhdw])")
MAX_READS: Final = 3
EXPECTED_TIME: Final = "how long ago, e.g. 90s 15m 2h 1d 4w, or a moment in UTC, e.g. 2026-11-21 or 2026-11-21T18:05:00"

ArchiveDirectory = Annotated[
    str,
    typer.Option(
        "--archive", metavar="DIR", help="The archive that a pipeline writes: a directory, or a URL for Spark."
    ),
]
LocalArchive = Annotated[
    str, typer.Option("--archive", metavar="DIR", help="The archive that a pipeline writes: a directory here.")
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="WHEN", help="Events since then: 90s 15m 2h 1d ago, or a date.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="WHEN", help="Events before then: 90s 15m 2h 1d ago, or a date.")
]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="The Spark master: local[N], or spark://host:7077.")
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory of the Spark driver.")]


def parse_time(text: str | None, option: str) -> datetime | None:
    """Return the time that ``--since`` or ``--until`` means, in UTC. Raise ``Misused``, naming ``option``."""
    if text is None:
        return None
    try:
        if ago := DURATION.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        given = datetime.fromisoformat(text)
        return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Misused(f"--{option} {text!r}: expected {EXPECTED_TIME}") from None


def require_archive(directory: str) -> None:
    """Raise ``NoArchive`` before Spark starts, if ``directory`` is on this machine and has no events."""
    from penstock.base.errors import NoArchive
    from penstock.spark.archive import EVENTS, RECENT, without_scheme

    path = Path(without_scheme(directory))
    elsewhere = "://" in without_scheme(directory) or {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys()
    if not elsewhere and not any((path / root).is_dir() for root in (RECENT[EVENTS], EVENTS)):
        what = f"{directory}/{EVENTS}" if path.is_dir() else directory
        raise NoArchive(f"{what}: there is no archive; expected the directory that a pipeline writes")


@contextmanager
def spark_session(master: str, memory: str, *, payloads: bool = False) -> "Iterator[SparkSession]":
    """Yield a session for one command. ``payloads``: whether it reads the messages themselves.

    Raise ``Unsuitable`` without Spark or Java, ``Failed`` for errors of Spark.
    """
    from penstock.spark.reasons import reason_of_error, stop
    from penstock.spark.session import BY_ROW, session

    spark = session(master, memory, **(BY_ROW if payloads else {}))
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield spark
    except (Py4JError, PySparkException, ConnectionError) as error:
        raise Failed(f"Spark: {reason_of_error(error)}") from error
    finally:
        stop(spark)


def retry_reads() -> "Iterator[AbstractContextManager[None]]":
    """Yield a context to read the archive in, and another one if a pipeline published files during the read."""
    from py4j.protocol import Py4JError

    whole = False

    @contextmanager
    def reading(*, again: bool) -> Iterator[None]:
        nonlocal whole
        try:
            yield
            whole = True
        except Py4JError as error:
            if not again or "FileNotFoundException" not in str(error):
                raise
            complain("files of the archive were published meanwhile: reading it again", 1)

    for left in reversed(range(MAX_READS)):
        if not whole:
            yield reading(again=left > 0)
