"""Logs of the parts that programs import: they go where the program logs."""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, Final

SELDOM_SECONDS: Final = 60.0
"""Between two lines of one kind of which others decide how many there are."""
MAX_TEXT: Final = 2_000
"""Characters of a text that are logged: what renders lines may take quadratic time."""
MAX_FRAMES: Final = 20
"""Frames of a traceback that are logged, the innermost ones."""
MAX_PARTS: Final = 4 * MAX_FRAMES
"""Parts of a traceback and of those that it began with."""


class Log:
    """Logs through structlog if the program has configured it, else through ``logging``, which writes to stderr.

    ``log.warning("lease lost", list="orders")``. A call never raises, whatever the text or the output: a line that
    nobody can write is dropped.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **fields: Any) -> None:
        """Log what is normal."""
        self._log("info", event, fields)

    def warning(self, event: str, error: BaseException | None = None, /, **fields: Any) -> None:
        """Log what somebody may have to look at; of ``error`` the traceback, without the values of variables."""
        self._log("warning", event, fields | _traceback(error))

    def error(self, event: str, error: BaseException | None = None, /, **fields: Any) -> None:
        """As ``warning``, for what somebody has to mend."""
        self._log("error", event, fields | _traceback(error))

    def _log(self, level: str, event: str, fields: dict[str, Any]) -> None:
        bound = bounded(fields)
        with suppress(Exception):  # the disk is full, or who reads it has gone: the work goes on
            try:
                self._write(level, event, dict(bound))
            except UnicodeError:  # an output of few characters
                self._write(level, event, {name: _ascii(value) for name, value in bound.items()})

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        structlog: Any = sys.modules.get("structlog")  # a program that has configured it has imported it
        if structlog and structlog.is_configured():
            getattr(structlog.get_logger(self._name), level)(event, **fields)
            return
        trace = fields.pop("exception", "")
        words = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        getattr(logging.getLogger(self._name), level)("%s", f"{words}\n{trace}" if trace else words)


class Seldom:
    """Lines of which others decide how many there could be: at most one of each event in ``SELDOM_SECONDS``.

    A line has ``times``, how often that has happened since the line before, if it is not the first time. ``write`` is
    e.g. ``log.warning``.
    """

    def __init__(self, write: Callable[..., object]) -> None:
        self._write = write
        self._events = dict[str, tuple[float, int]]()
        """When each was last written, and how often it happened since."""

    def __call__(self, event: str, kind: str = "", /, **fields: Any) -> None:
        """Log ``event``, of which each ``kind`` is one; give few of both, as each is remembered."""
        now, name = time.monotonic(), f"{event} {kind}"
        since, times = self._events.get(name, (-inf, 0))
        if now - since < SELDOM_SECONDS:
            self._events[name] = since, times + 1
            return
        self._events[name] = now, 0
        self._write(event, **fields, **({"times": times + 1} if times else {}))


def bounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with texts that any encoding of Unicode can write, and that are not long."""
    return {
        name: cut(value) if isinstance(value, str) and name != "exception" else value for name, value in fields.items()
    }


def _ascii(value: Any) -> Any:
    return value.encode("ascii", "backslashreplace").decode() if isinstance(value, str) else value


def cut(text: str) -> str:
    """Return the beginning of ``text``, and how much is missing; lone surrogates are escaped."""
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}... ({len(text):,} characters)"
    return _writable(text)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of ``error``, without the values of variables, and with long texts cut."""
    parts = traceback.format_exception(type(error), error, error.__traceback__, limit=-MAX_FRAMES)
    if len(parts) > MAX_PARTS:
        parts = ["...\n", *parts[-MAX_PARTS:]]
    return "".join(part if len(part) <= MAX_TEXT else f"{cut(part)}\n" for part in map(_writable, parts))


def describe(error: BaseException) -> str:
    """Return type and message of ``error``, which any encoding can write, even if its ``__str__`` fails."""
    return _writable("".join(traceback.format_exception_only(error)).strip())


def _traceback(error: BaseException | None) -> dict[str, str]:
    return {} if error is None else {"exception": traceback_of(error)}


def _writable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
