"""Staged rows take effect once, a few at a time: what a batch's rows are is decided first, in a ledger.

A script applies some of the rows that were decided on, and takes them away with it. Whoever comes after a crash goes on
with what is left; the rows of a repeated batch, which may be divided differently, are deleted.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis import Redis
from redis.exceptions import ResponseError

from penstock.errors import DataLost, PenstockError
from penstock.script import translate_error
from penstock.spark.options import run, script
from penstock.spark.staging import Part

DECIDE: Final = script("decide")

Apply = Callable[[bytes, int], int]
"""Applies the first rows of a staged list of so many, takes them away, and says how many are left."""


def apply_once(
    redis: "Redis", out: bytes, ledger: bytes, parts: Sequence[Part], batch: int, life: int, apply: Apply
) -> None:
    """Apply ``parts``, staged for ``out``, once for each ``batch`` of ``ledger``, which lives for ``life`` seconds.

    What an earlier commit decided on, and did not finish, comes first. Raises ``DataLost`` where staged rows are gone.
    """
    try:
        _finish(redis, out, ledger, apply)
        staged, counts = [part for part, _ in parts], [count for _, count in parts]
        if run(redis, DECIDE, ledger=ledger, parts=staged, batch=batch, life=life, counts=counts):
            _finish(redis, out, ledger, apply)
    except ResponseError as error:
        raise told(error, f"batch {batch}") from None


def _finish(redis: "Redis", out: bytes, ledger: bytes, apply: Apply) -> None:
    names: Any = redis.hget(ledger, "staged")
    for staged in re.findall(re.escape(out) + rb":spark-staged:[0-9a-f]{32}", names or b""):
        left: Any = redis.llen(staged)
        while left:
            left = apply(staged, left)


def told(error: Exception, what: str) -> Exception:
    """The error of a script that publishes or applies ``what``, in the words of an operator."""
    word, _, text = str(error).partition(" ")
    if word == "VALUE":
        return PenstockError(f"{what}: {text}")
    if word == "GONE":
        return DataLost(
            f"{what}: nothing of it is written: {text}, which its task had staged, is gone or incomplete: the server "
            "was restarted or emptied, or a day has passed. Run it again; a query does so from its checkpoint"
        )
    return translate_error(error) if isinstance(error, ResponseError) else error
