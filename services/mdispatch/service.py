"""mdispatch: deliver requests with a record of each, and deliver their answers."""

import asyncio

from common.context import Context
from services.mdispatch.answers import AnswerDelivery
from services.mdispatch.dispatch import Dispatch
from services.mdispatch.settings import Settings


async def run(context: Context[Settings]) -> None:
    """Deliver requests and answers at the same time, each on a connection of its own."""
    res = context.settings.res
    answers = AnswerDelivery(context.beside("answers"), res) if res else None
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_dispatch(context, Dispatch(context, answers.remember if answers else None)))
        if answers:
            tasks.create_task(_answer(context, answers))


async def _dispatch(context: Context[Settings], dispatch: Dispatch) -> None:
    """Register and deliver requests until the run ends, those that an earlier run left first."""
    await dispatch.recover()
    while context.running:
        if await dispatch.take():
            await dispatch.deliver()


async def _answer(context: Context[Settings], answers: AnswerDelivery) -> None:
    """Deliver answers until the run ends, those that an earlier run left first."""
    await answers.deliver()
    while context.running:
        if await answers.take(context.settings.pop_timeout):
            await answers.deliver()
