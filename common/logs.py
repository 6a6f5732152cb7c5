"""Logging: key=value for people at a terminal, one JSON object a line for everything else; on standard error.

A line is one write, also where Python does not buffer, so that services that share a file do not mix theirs.
"""

import logging
import sys

import structlog


def configure(level: str) -> None:
    """``level`` is one of debug info warning error."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=terminal) if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
