"""Delivers the outcomes of tasks to the lists and webhooks that want them, from an outbox in the server."""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

import structlog

from penstock.base.errors import Forgotten, Unopenable, WrongType
from penstock.core.backoff import Backoff
from penstock.core.link import is_full, passes
from penstock.core.tasks import begin
from services.hqueue.outcome import Contents, contents_of, status_of
from services.hqueue.served import Served
from services.hqueue.steps import from_steps

MAX_TASKS: Final = 100
"""Maximum number of outcomes that an instance delivers at a time."""
MARGIN: Final = 5.0
"""Seconds for which an outcome is ours, besides those that a webhook may take."""
LOOK_SECONDS: Final = 5.0
"""Longest time until an outcome is seen of which no news came."""
TROUBLE_SECONDS: Final = 1.0
PASS_SECONDS: Final = 0.2
"""Head start of other instances, for ``YIELD_SECONDS`` after this one has passed an outcome on."""
YIELD_SECONDS: Final = 60.0
OPEN_SECONDS: Final = 0.1
"""Time until it is seen that the server is there."""
WAITS: Final = Backoff((), 1.0, 300.0)
"""Waits between attempts (s)."""
_log: Final = structlog.get_logger("penstock.hqueue")


class Delivering:
    """Runs from ``start`` to ``close``; ``hear`` says that there may be something to deliver."""

    def __init__(self, served: Served) -> None:
        self._served, self._store = served, served.store
        self._news = asyncio.Event()
        self._yields_until = 0.0
        self._tasks = set[asyncio.Task[None]]()
        self._runner: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runner = begin(self._run(), _log)

    def hear(self) -> None:
        self._news.set()

    async def close(self) -> None:
        """End all deliveries: another instance takes up what is under way once it is not ours any more."""
        ending = [task for task in (self._runner, *self._tasks) if task]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _run(self) -> None:
        span = self._served.settings.webhook_timeout + MARGIN
        while True:
            self._news.clear()
            if not self._store.is_open:
                await asyncio.sleep(OPEN_SECONDS)
                continue
            if time.monotonic() < self._yields_until:
                await asyncio.sleep(PASS_SECONDS)
            free, after = MAX_TASKS - len(self._tasks), None
            try:
                if free:
                    after, found = await from_steps(self._store.claim(free, span))
                    for id, queue in found:
                        task = asyncio.create_task(self._deliver(id, queue))
                        self._tasks.add(task)
                        task.add_done_callback(self._ended)
            except Exception as error:  # noqa: BLE001  # it goes on: the outbox is in the server
                _note("outcomes wait", error)
                await asyncio.sleep(TROUBLE_SECONDS)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if after is None else min(after, LOOK_SECONDS)):
                    await self._news.wait()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if len(self._tasks) == MAX_TASKS:
            self._news.set()
        self._tasks.discard(task)

    async def _deliver(self, id: str, queue: str) -> None:
        """Deliver one outcome; if that fails in a way that nobody foresaw, again once it is not ours any more."""
        try:
            record, *found = await from_steps(self._store.show(queue, id))
            task: dict[str, Any] = json.loads(record) if record else {}
            turn, outcome, wait = int(task.get("round", 0)), "over", 0.0
            if task.get("delivery") == "waiting":
                wait = WAITS.delay_after(int(task.get("tries", 0)) + 1)
                try:
                    outcome, wait = await self._attempt(id, queue, turn, task, found, wait)
                except (Forgotten, Unopenable) as error:  # another instance may have keys that this one lacks
                    outcome = "refused" if isinstance(error, Forgotten) else "passed"
                    _log.warning("an outcome cannot be opened", task=id, queue=queue, reason=str(error))
            if outcome == "passed":
                self._yields_until = time.monotonic() + YIELD_SECONDS
            if outcome != "replied":
                await from_steps(self._store.sent(queue, id, turn, outcome, wait))
        except Exception as error:  # noqa: BLE001  # it goes on: the outbox is in the server
            _note("an outcome waits", error, task=id, queue=queue)

    async def _attempt(
        self, id: str, queue: str, turn: int, task: dict[str, Any], found: list[Any], wait: float
    ) -> tuple[str, float]:
        """Return how an attempt ended, and the seconds until the next one: ``wait``, unless a host asks for more."""
        quoted, _, service = queue.partition("/")
        sealed = self._served.seals.keyring is not None
        status = {"deliveryId": f"{id}.{turn}", "service": service} | status_of(id, task)
        del status["delivery"]
        has_list = True
        if "replyTo" in task and not task.get("replied"):
            contents = Contents() if sealed else await from_steps(self._contents(id, queue, task, found))
            try:
                word = await from_steps(self._store.reply(queue, id, turn, task["replyTo"], contents.as_json(status)))
                has_list = word != "full"
            except WrongType as error:
                _note("an outcome has no list", error, task=id, queue=queue)
                has_list = False
        if not task.get("hook") or task.get("posted"):
            return ("replied", 0.0) if has_list else ("failed", wait)
        contents = await from_steps(self._contents(id, queue, task, found))
        url = contents.webhook or ""
        posted = await self._served.webhooks.post(url, unquote(quoted), status["deliveryId"], contents.as_json(status))
        if posted.outcome == "passed":
            return "passed", wait
        if posted.outcome == "failed" or (posted.outcome == "refused" and not has_list):
            return "failed", max(wait, posted.wait or 0.0)
        return posted.outcome, wait if not has_list else posted.wait or 0.0

    async def _contents(self, id: str, queue: str, task: dict[str, Any], found: list[Any]) -> Contents:
        lock = await self._served.seals.of(unquote(queue.partition("/")[0]), *found)
        return contents_of(queue, id, task, found, lock)


def _note(event: str, error: Exception, **more: Any) -> None:
    if passes(error) or is_full(error):
        _log.warning(event, reason=str(error) or type(error).__name__, **more)
    else:
        _log.error(event, reason=str(error) or type(error).__name__, exc_info=error, **more)
