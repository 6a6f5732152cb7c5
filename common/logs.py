"""Logging: key=value for people at a terminal, one JSON object a line for everything else; on standard error.

Each line is one write, even if Python does not buffer, so that services that share a file do not mix their lines. A
line that cannot be written, since the disk is full or its reader has gone or stands still, is dropped, and the service
goes on.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from functools import partial

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from common.log_output import Output
from penstock.base.log import bounded, traceback_of

Identity = Callable[[], dict[str, str]]
"""Return the fields that every line begins with; they grow, since the id is known later than the service."""


def configure(level: str) -> None:
    """Configure logging from ``level`` on, which is one of debug, info, warning, error."""
    terminal = sys.stderr.isatty()
    colors = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    output = Output(sys.stderr, _dropped_at_terminal if terminal else _dropped_as_json)
    structlog.configure(
        processors=[
            _identified,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _bounded,
            structlog.dev.ConsoleRenderer(colors=colors) if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=partial(_Lines, output),
        cache_logger_on_first_use=True,
    )


def settings_level() -> int:
    """Return the level of the line with all settings: nobody at a terminal asks for a thousand characters first."""
    return logging.DEBUG if sys.stderr.isatty() else logging.INFO


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


def _dropped_at_terminal(lines: int) -> str:
    return f"log lines dropped lines={lines}"


def _dropped_as_json(lines: int) -> str:
    return json.dumps({"event": "log lines dropped", "lines": lines, "level": "warning"})


class _Lines:
    """A logger that writes each line to ``output``."""

    def __init__(self, output: Output, *_: object) -> None:
        self._output = output

    def msg(self, message: str) -> None:
        self._output.write(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg
