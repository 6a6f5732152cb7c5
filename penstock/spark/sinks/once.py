"""Exactly-once commits of staged rows, a few at a time.

First a ledger records which staged lists belong to the batch. Then a script applies rows and removes them in one step.
After a crash the next commit goes on with the rows that are left. The rows of a repeated batch, which may be divided
differently, are deleted.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis import Redis
from redis.exceptions import ResponseError

from penstock.base.errors import DataLost, PenstockError
from penstock.core.script import translate_error
from penstock.spark.cluster import beside
from penstock.spark.options import run, script
from penstock.spark.staging import Part

DECIDE: Final = script("decide")

Apply = Callable[[bytes, int], int]
"""Apply and remove the first rows of a staged list of a given length; return how many are left."""


def apply_once(
    redis: "Redis", out: bytes, ledger: bytes, parts: Sequence[Part], batch: int, life: int, apply: Apply
) -> None:
    """Apply ``parts``, staged for ``out``, once for each ``batch`` of ``ledger``, which expires after ``life`` seconds.

    Finish an interrupted earlier commit first. Raise ``DataLost`` if staged rows are gone.
    """
    try:
        _finish(redis, out, ledger, apply)
        staged, counts = [part for part, _ in parts], [count for _, count in parts]
        if run(redis, DECIDE, ledger=ledger, parts=staged, batch=batch, life=life, counts=counts):
            _finish(redis, out, ledger, apply)
    except ResponseError as error:
        raise operator_error(error, f"batch {batch}") from None


def _finish(redis: "Redis", out: bytes, ledger: bytes, apply: Apply) -> None:
    names: Any = redis.hget(ledger, "staged")
    for staged in re.findall(re.escape(beside(redis, out)) + rb":spark-staged:[0-9a-f]{32}", names or b""):
        left: Any = redis.llen(staged)
        while left:
            left = apply(staged, left)


def operator_error(error: Exception, what: str) -> Exception:
    """Return the error of a script that publishes or applies ``what``, worded for an operator."""
    word, _, text = str(error).partition(" ")
    if word == "VALUE":
        return PenstockError(f"{what}: {text}")
    if word == "UNSTAGED":
        return DataLost(
            f"{what}: nothing of it is written: {text}, which its task had staged, is gone or incomplete: the server "
            "was restarted or emptied, or a day has passed. Run it again; a query does so from its checkpoint"
        )
    return translate_error(error) if isinstance(error, ResponseError) else error
