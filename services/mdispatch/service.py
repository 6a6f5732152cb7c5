"""mdispatch: every request tracked from one list to the next, and its answer brought back."""

import asyncio

from common.context import Context
from services.mdispatch.answers import Answers
from services.mdispatch.dispatch import Dispatch
from services.mdispatch.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Requests one way, answers the other, each on a wire of its own."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(dispatch(context))
        if context.settings.res:
            tasks.create_task(answer(context.beside("answers")))


async def dispatch(context: Context[Settings]) -> None:
    """Take a request, register and deliver it and all that wait behind it; first of all, what an earlier run left."""
    dispatch = Dispatch(context)
    await dispatch.recover()
    while context.running:
        if await dispatch.take():
            await dispatch.deliver()


async def answer(context: Context[Settings]) -> None:
    """Take an answer, pass it and all that wait behind it on to those who asked."""
    answers = Answers(context)
    await answers.deliver()
    while context.running:
        if await answers.take(context.settings.pop_timeout):
            await answers.deliver()
