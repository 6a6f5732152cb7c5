"""mdispatch: every request tracked from one list to the next, and its answer brought back."""

import asyncio

from common.context import Context
from services.mdispatch.answers import Answers
from services.mdispatch.dispatch import Dispatch
from services.mdispatch.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Requests one way, answers the other, each on a wire of its own."""
    answers = Answers(context.beside("answers")) if context.settings.res else None
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_dispatch(context, Dispatch(context, answers.remember if answers else None)))
        if answers:
            tasks.create_task(_answer(context, answers))


async def _dispatch(context: Context[Settings], dispatch: Dispatch) -> None:
    """Take a request, register and deliver it and all that wait behind it; first of all, what an earlier run left."""
    await dispatch.recover()
    while context.running:
        if await dispatch.take():
            await dispatch.deliver()


async def _answer(context: Context[Settings], answers: Answers) -> None:
    """Take an answer, pass it and all that wait behind it on to those who asked."""
    await answers.deliver()
    while context.running:
        if await answers.take(context.settings.pop_timeout):
            await answers.deliver()
