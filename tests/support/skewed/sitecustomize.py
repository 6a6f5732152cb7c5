"""Wrong clock: it is CLOCK_SKEW seconds off in every process with this folder in PYTHONPATH; durations are right."""

import datetime
import os
import time
from typing import Any

SKEW = float(os.environ["CLOCK_SKEW"])
right_time, right_time_ns = time.time, time.time_ns


class WrongDateTime(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return super().fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return super().fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


time.time = lambda: right_time() + SKEW
time.time_ns = lambda: right_time_ns() + int(SKEW * 1e9)
datetime.datetime = WrongDateTime  # type: ignore[misc]
