"""Logging: key=value for people at a terminal, one JSON object a line for everything else; on standard error.

Each line is one write, even if Python does not buffer, so that services that share a file do not mix their lines.
"""

import logging
import sys
from collections.abc import Callable

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

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
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=terminal) if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def logger(identity: Identity) -> FilteringBoundLogger:
    """Return a logger whose lines begin with ``identity()``; ``configure`` changes its level at any time."""
    log: FilteringBoundLogger = structlog.wrap_logger(None, cache_logger_on_first_use=False, identity=identity)
    return log


def _identified(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    identity: Identity | None = event.pop("identity", None)
    return {**identity(), **event} if identity else event
