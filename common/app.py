"""The entry point of every service."""

import asyncio
import os
import sys
from contextlib import nullcontext
from typing import TypeVar

from common import logs
from common.process import Lifespan, Process
from common.settings.base import ServiceSettings
from common.settings.cli import parse
from common.supervision import Run

S = TypeVar("S", bound=ServiceSettings)


def main(service: str, settings_class: type[S], run: Run[S], lifespan: Lifespan[S] = nullcontext) -> None:
    """Read the settings of ``service``, run it, and exit: 0 as ordered, 1 failed, 2 settings that cannot be used."""
    settings = parse(service, settings_class, sys.argv[1:], os.environ, waits=True)
    logs.configure(settings.logger_level)

    async def serve() -> int:
        return await Process(service, settings, run, lifespan).serve()

    sys.exit(asyncio.run(serve()))
