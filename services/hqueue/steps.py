"""Run a coroutine from one reply to the next without a task, which would cost a request two more turns of the loop."""

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from redis.exceptions import ConnectionError

from penstock.core.wire import Reply

T = TypeVar("T")


class Step(Generic[T]):
    """What a coroutine that ``run_steps`` runs may await: a reply."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __await__(self) -> Generator[Reply, None, T]:
        if not self._reply.is_done:
            yield self._reply
        value: T = self._reply.value()
        return value


def run_steps(coroutine: Coroutine[Reply, None, None], _: Reply | None = None) -> None:
    """Run ``coroutine``, which awaits only ``Step``; do not wait for a reply that is there."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return
    waits_for.then = partial(run_steps, coroutine)


def in_task(coroutine: Coroutine[Any, Any, T]) -> Step[T]:
    """Run a coroutine that awaits other things in a task of its own."""
    reply, task = Reply(), asyncio.get_running_loop().create_task(coroutine)

    def ended(task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            reply.set_exception(ConnectionError("the service stops"))
        elif error := task.exception():
            reply.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))
        else:
            reply.set_result(task.result())

    task.add_done_callback(ended)
    return Step(reply)


async def from_steps(coroutine: Coroutine[Reply, None, T]) -> T:
    """Return what a coroutine returns that awaits steps, in a task that awaits other things."""
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            found = await coroutine
        except Exception as error:  # noqa: BLE001  # it is raised below
            if not result.done():
                result.set_exception(error)
        else:
            if not result.done():
                result.set_result(found)

    run_steps(work())
    return await result
