"""Convert between text and the bytes that Redis stores, without loss; parse numbers, and count in words."""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any


def encoded(name: str) -> bytes:
    """Return the bytes of ``name``; a lone surrogate stands for a byte that is not UTF-8, as in ``sys.argv``."""
    return name.encode(errors="surrogateescape")


def decoded(reply: Any) -> str:
    """Return a name, word or number in a reply as text; ``encoded`` restores its bytes."""
    return reply.decode(errors="surrogateescape") if isinstance(reply, bytes) else str(reply)


def is_unicode(text: str) -> bool:
    """Return False for a text with a lone surrogate, which orjson refuses, and which nothing can be named by."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def counted(number: int, noun: str) -> str:
    """Return ``1 message`` or ``2,000 messages``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def decoded_fields(fields: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return a hash as text; empty for None."""
    return {decoded(name): decoded(value) for name, value in (fields or {}).items()}


def decoded_scores(reply: Any) -> dict[str, float]:
    """Return scores by member: pairs in RESP3, one after the other in RESP2; none for None."""
    flat = reply or []
    pairs = flat if flat and isinstance(flat[0], list | tuple) else zip(flat[::2], flat[1::2], strict=True)
    return {decoded(member): float(score) for member, score in pairs}


def parse_number(value: Any, least: float = -inf) -> float | None:
    """Return ``value`` as a number; None unless it is finite and at least ``least``."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) and number >= least else None


def parse_whole(value: Any) -> int | None:
    """Return ``value`` as a whole number, rounded towards 0; None if it is not a finite number."""
    number = parse_number(value)
    return None if number is None else int(number)
