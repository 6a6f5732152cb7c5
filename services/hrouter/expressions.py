"""Expressions of rules: RE2 over bytes, and the text that every match of one begins with."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from penstock.base.extras import MissingExtra, extra

MAX_MEMORY: Final = 64 << 20
"""Bytes that one expression, or one set of them, may take."""
META: Final = frozenset("\\.+*?()|[]{}^$")
TOKEN: Final = re.compile(r"\\[^\n]|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|.", re.DOTALL)
"""An escape, a class, or one character."""
EVERYTHING: Final = frozenset({"", "^", ".*", "^.*"})


class BadExpression(ValueError):
    """An expression that RE2 refuses; the text is RE2's message."""


@cache
def _library() -> Any:
    """Return RE2's module. Raise ``BadExpression`` if it is not installed."""
    try:
        with extra("web"):
            import re2
    except MissingExtra as error:
        raise BadExpression(str(error)) from None
    return re2


@cache
def _options() -> Any:
    re2 = _library()
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # paths and headers are bytes
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    return options


def compiled(expression: str) -> Any:
    """Return the expression ready to search bytes. Raise ``BadExpression``."""
    re2 = _library()
    try:
        return re2.compile(expression.encode("latin-1"), _options())
    except UnicodeEncodeError:
        raise BadExpression("a character outside of latin-1: write it percent-encoded, as clients send it") from None
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode("latin-1") if isinstance(reason, bytes) else str(reason)
        raise BadExpression(text + _hint(text)) from None


def _hint(reason: str) -> str:
    if reason.startswith("invalid perl operator"):
        return " (RE2 has no look-around and no atomic groups)"
    if reason.startswith("invalid escape sequence") and reason[-1:].isdigit():
        return " (RE2 has no back-references)"
    return ""


def compiled_set(expressions: list[str]) -> Callable[[bytes], Sequence[int] | None]:
    """Return a function that returns the places of all expressions that match, in any order; None if none does.

    Raise ``BadExpression`` if they take more than ``MAX_MEMORY`` together.
    """
    re2 = _library()
    found = re2.Set.SearchSet(_options())
    for expression in expressions:
        found.Add(expression.encode("latin-1"))
    try:
        found.Compile()
    except re2.error:
        raise BadExpression(f"all expressions together take more than {MAX_MEMORY >> 20} MiB") from None
    match: Callable[[bytes], Sequence[int] | None] = found.Match
    return match


def escaped(text: str) -> str:
    """Return the expression for ``text`` at the beginning of a path."""
    return "^" + "".join(f"\\{letter}" if letter in META else letter for letter in text)


def beginning_of(expression: str) -> tuple[str, bool]:
    """Return the text that every match begins with, and True if all that begins with it matches.

    The text may be shorter than possible. It is empty, and False is returned, if nothing is known.
    """
    if expression in EVERYTHING:
        return "", True
    tokens: list[str] = TOKEN.findall(expression)
    if tokens[0] != "^" or _has_alternatives(tokens):
        return "", False
    found: list[str] = []
    for place, token in enumerate(tokens[1:], start=1):
        letter = _literal(token)
        if letter is None:
            rest = "".join(tokens[place:])
            if rest == ".*":
                return "".join(found), True
            return "".join(found[:-1] if token in ("*", "?", "{") else found), False
        found.append(letter)
    return "".join(found), True


def _literal(token: str) -> str | None:
    """Return the character that ``token`` stands for; None if it stands for anything else."""
    if len(token) == 2 and token[0] == "\\":
        return None if token[1].isalnum() else token[1]
    return token if len(token) == 1 and token not in META else None


def _has_alternatives(tokens: list[str]) -> bool:
    """Return True if a ``|`` stands outside of all groups."""
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "|" and depth == 0:
            return True
    return False


def is_slow(expression: str) -> bool:
    """Return True if the expression begins with ``.*``, for which a match reads the whole path in any case."""
    return expression.removeprefix("^").startswith(".*") and expression not in EVERYTHING
