"""The entry point of every service."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Final, TypeVar

from common import logs
from common.alone import Alone
from common.process import Lifespan, Process
from common.settings.base import ServiceSettings
from common.settings.cli import parse
from common.supervision import Run

S = TypeVar("S", bound=ServiceSettings)
COLLECT_AFTER: Final = 10_000
"""Objects that are not yet freed after which Python looks for cycles: a batch makes thousands that have none."""


def main(settings_class: type[S], run: Run[S], lifespan: Lifespan[S] = nullcontext) -> None:
    """Read the settings of a service, run it, and exit: 0 as ordered, 1 failed, 2 settings that cannot be used."""
    settings = parse(settings_class, sys.argv[1:], os.environ, waits=True)
    logs.configure(settings.logger_level)
    gc.freeze()  # modules live as long as the process
    gc.set_threshold(COLLECT_AFTER)

    async def serve() -> int:
        if not settings.has_server:
            return await Alone(settings, lifespan).serve()
        return await Process(settings, run, lifespan).serve()

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        status = runner.run(serve())
    sys.exit(status)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop: uvloop's if it is installed, unless ``PENSTOCK_LOOP`` is ``asyncio``."""
    if os.environ.get("PENSTOCK_LOOP") != "asyncio":
        with suppress(ModuleNotFoundError):
            import uvloop

            return uvloop.new_event_loop
    return asyncio.new_event_loop
