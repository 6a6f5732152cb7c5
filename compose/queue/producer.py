"""Producer that adds a task for each month in a list: ``python -m compose.queue.producer``.

``penstock push months:in 2012-01`` adds one. Its name is the month, so a repeated call adds no second one. Outcomes go
to the webhook in the variable QUEUE_WEBHOOK (January, April and so on), to a list (February, and January if there is no
webhook), or to whoever asks for them (March). The other variables are REDIS, QUEUE_URL and QUEUE_PRODUCER_TOKEN.
"""

import asyncio
import os
import signal

from compose.months import rows_by_month
from compose.queue.names import REPLIES, SERVICE, SOURCE, token, url
from penstock.hqueue import NewTask, Queues, TaskOptions
from penstock.lists import Lists


def way_of(month: str, webhook: str | None) -> TaskOptions:
    """Return where the outcome of ``month`` goes."""
    place = int(month[-2:]) % 3 if month[-2:].isdigit() else 2
    if place == 1 and webhook:
        return {"webhook": webhook}
    return {} if place == 0 else {"reply_to": REPLIES}


def task_of(month: str, rows: list[str], webhook: str | None, mark: str) -> NewTask:
    """Return the task for ``month``; its value has the rows with spaces between, which no row has itself."""
    options = way_of(month, webhook)
    options["id"], options["token"], options["non_retryable"] = month, f"asked for {month}{mark}", ["NoRows"]
    return NewTask({"month": month, "rows": " ".join(rows)}, **options)


async def main() -> None:
    known, webhook = rows_by_month(), os.environ.get("QUEUE_WEBHOOK") or None
    mark = os.environ.get("QUEUE_MARK", "")
    stop = [signal.SIGTERM, signal.SIGINT]
    redis = os.environ.get("REDIS", "redis://localhost:6379/0")
    async with (
        Queues(url(), token=token("QUEUE_PRODUCER_TOKEN")) as queues,
        Lists(redis, patience=None, stop_signals=stop) as lists,
    ):
        async for message in lists[SOURCE].messages():
            with message:
                month = str(message)
                await queues[SERVICE].add_many([task_of(month, known.get(month, []), webhook, mark)])


if __name__ == "__main__":
    asyncio.run(main())
