"""Worker that summarises months of weather: ``python -m compose.queue.worker bash|node|python``.

It runs ``summary.sh`` or ``summary.js``, or does the same in Python if what they need is not here. The variables are
QUEUE_URL, QUEUE_WORKER_TOKEN, QUEUE_LEASE and QUEUE_WORK_SECONDS, how long it pretends to work on a task (s).
"""

import asyncio
import os
import shutil
import signal
import subprocess
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from compose.queue.names import SERVICE, token, url
from penstock.hqueue import Queues

HERE: Final = Path(__file__).parent
HOT: Final = 33.0
"""A month with a day of at least this (C) fails in its first attempt."""
NEEDS: Final = {"bash": ("bash", "curl", "sed", "awk"), "node": ("node",)}
OLDEST_NODE: Final = 18
"""The first version with ``fetch``."""
PROGRAMS: Final = {"bash": "summary.sh", "node": "summary.js"}
LANGUAGES: Final = (*PROGRAMS, "python")
AGAIN_SECONDS: Final = 0.5


def what_is_missing(language: str) -> str | None:
    """Return what a worker in ``language`` needs and does not find; None if nothing."""
    for program in NEEDS.get(language, ()):
        if not shutil.which(program):
            return f"there is no {program}"
    if language == "node":
        version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
        if int(version.lstrip("v").partition(".")[0] or 0) < OLDEST_NODE:
            return f"Node {version} has no fetch"
    return None


def summary(value: Any, attempt: int, worker: str) -> dict[str, Any]:
    """Return the outcome of a task as keyword arguments of ``Outcome``: ``result``, or ``error``."""
    month, rows = value["month"], [row.split(",") for row in value["rows"].split()]
    if not rows:
        return {"error": {"type": "NoRows", "message": f"no rows of {month}"}}
    warmest = [float(row[2]) for row in rows]
    if max(warmest) >= HOT and attempt == 1:
        return {"error": {"type": "LookTwice", "message": f"{month} is hot: look twice"}}
    rainy = sum(float(row[1]) > 0 for row in rows)
    mean = round(sum(warmest) / len(rows), 2)
    return {
        "result": {
            "month": month, "days": len(rows), "mean": mean, "max": max(warmest), "rainy": rainy, "worker": worker,
        }
    }  # fmt: skip


async def work(name: str) -> None:
    """Do tasks until SIGTERM, as the worker ``name``."""
    lease, seconds = float(os.environ.get("QUEUE_LEASE", 30)), float(os.environ.get("QUEUE_WORK_SECONDS", 0))
    stop = [signal.SIGTERM, signal.SIGINT]
    async with Queues(url(), token=token("QUEUE_WORKER_TOKEN"), patience=None, stop_signals=stop) as queues:
        async for task in queues[SERVICE].tasks(worker=name, time_to_recover=lease):
            with task:
                await asyncio.sleep(seconds)
                outcome = summary(task.value, task.attempt, name)
                if "error" in outcome:
                    task.fail(outcome["error"])
                else:
                    task.finish(outcome["result"])


def main(language: str) -> None:
    missing = what_is_missing(language)
    if missing:
        print(f"{missing}: the worker is Python's", flush=True)
    elif language in PROGRAMS:
        os.execvp(NEEDS[language][0], [NEEDS[language][0], str(HERE / PROGRAMS[language])])
    asyncio.run(work(language if not missing else f"python for {language}"))


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m compose.queue.worker", description=__doc__)
    parser.add_argument("language", choices=LANGUAGES)
    main(parser.parse_args().language)
