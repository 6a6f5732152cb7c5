"""Logging: key=value for people at a terminal, one JSON object a line for everything else; on standard error.

Each line is one write, even if Python does not buffer, so that services that share a file do not mix their lines. A
line that cannot be written, as the disk is full or its reader has gone, is dropped: the service goes on.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from penstock.log import bounded, traceback_of

Identity = Callable[[], dict[str, str]]
"""Return the fields that every line begins with; they grow, since the id is known later than the service."""


def configure(level: str) -> None:
    """Configure logging from ``level`` on, which is one of debug, info, warning, error."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            _identified,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _bounded,
            structlog.dev.ConsoleRenderer(colors=terminal) if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=partial(_Output, sys.stderr),
        cache_logger_on_first_use=True,
    )


def logger(identity: Identity) -> FilteringBoundLogger:
    """Return a logger whose lines begin with ``identity()``; ``configure`` changes its level at any time."""
    log: FilteringBoundLogger = structlog.wrap_logger(None, cache_logger_on_first_use=False, identity=identity)
    return log


def _identified(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    identity: Identity | None = event.pop("identity", None)
    return {**identity(), **event} if identity else event


def _bounded(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Cut long texts, and render an exception without the values of variables."""
    error = event.pop("exc_info", None)
    if error and not isinstance(error, BaseException):
        error = error[1] if isinstance(error, tuple) else sys.exception()
    return bounded(event) | ({"exception": traceback_of(error)} if error else {})


class _Output(structlog.WriteLogger):
    """Writes to ``file``, or not at all."""

    def __init__(self, file: TextIO, *_: object) -> None:
        super().__init__(file)

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):  # the latter once it is closed
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg
