"""Producer of a job for each month in a list: ``python -m compose.jobs.producer``.

``penstock push figures:in 2012-01`` makes one. It waits until both groups have done the job, and pushes what they say
to another list in the transaction that settles the month. If it is killed, the month is done again. The variables are
REDIS, and FIGURES_PATIENCE, how long it waits for the groups (s).
"""

import asyncio
import json
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from compose.jobs.names import GROUPS, MONTHS, OUT, PREFIX, PRODUCER, SOURCE, TALLY, claim_after, seconds, url
from compose.months import rows_by_month
from penstock.errors import PenstockError
from penstock.jobs import Completion, FinishTimeout, Jobs, Producer
from penstock.lists import Lists, Message

AT_A_TIME: Final = 16
"""Months under way."""
PATIENCE: Final = 3600.0
TALLY_SECONDS: Final = 1.0


async def outcome_of(producer: Producer, request: str, rows: Sequence[str], patience: float) -> dict[str, Any]:
    """Have a month done; return by group its result or error."""
    job = producer.job(request).set("rows", " ".join(rows).encode())
    sent = await producer.send(MONTHS, job, wait_for=GROUPS, key=request[:4])
    done: dict[str, Completion] = {}
    try:
        done = await sent.finished(patience)
    except FinishTimeout as error:
        done = error.completed
    for group in GROUPS:
        job.get(group)
    values = dict(zip(GROUPS, await job.pull(), strict=True))
    errors = {group: done[group].error if group in done else "not completed" for group in GROUPS}
    return {group: values[group] if errors[group] is None else {"error": errors[group]} for group in GROUPS}


async def produce(lists: Lists, producer: Producer) -> None:
    """Take months one after the other."""
    known, patience = rows_by_month(), seconds("FIGURES_PATIENCE", PATIENCE)
    async for message in lists[SOURCE].messages(prefetch=1):
        with suppress(PenstockError), message:
            await _do(message, producer, known, patience)


async def _do(message: Message, producer: Producer, known: dict[str, list[str]], patience: float) -> None:
    request = str(message)
    found = await outcome_of(producer, request, known.get(request[:7], []), patience)
    message.also_push(OUT, json.dumps({"request": request, **found}))


async def main() -> None:
    async with (
        Jobs(url(), prefix=PREFIX, patience=None) as jobs,
        Lists(url(), patience=None, lease=claim_after()) as lists,
    ):
        await jobs.repeats.set(TALLY, TALLY, every=TALLY_SECONDS)
        producer = jobs.producer(PRODUCER)
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(produce(lists, producer)) for _ in range(AT_A_TIME)]

            def stop() -> None:
                for loop in loops:
                    loop.cancel()  # what is under way goes back to the list

            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop)


if __name__ == "__main__":
    asyncio.run(main())
