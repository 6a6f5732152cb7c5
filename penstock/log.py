"""Logs of the parts that programs import: they go where the program logs."""

import logging
import traceback
from typing import Any

import structlog


class Log:
    """Logs through structlog if the program has configured it, else through ``logging``, which writes to stderr.

    ``log.warning("lease lost", list="orders")``.
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
        if structlog.is_configured():
            getattr(structlog.get_logger(self._name), level)(event, **fields)
            return
        trace = fields.pop("exception", "")
        words = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        getattr(logging.getLogger(self._name), level)("%s", f"{words}\n{trace}" if trace else words)


def describe(error: BaseException) -> str:
    """Return type and message of ``error``, which any encoding can write, even if its ``__str__`` fails."""
    return _writable("".join(traceback.format_exception_only(error)).strip())


def _traceback(error: BaseException | None) -> dict[str, str]:
    return {} if error is None else {"exception": _writable("".join(traceback.format_exception(error)))}


def _writable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
