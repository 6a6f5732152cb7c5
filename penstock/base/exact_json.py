"""Compare, hash and key by JSON values: two texts that JSON calls equal have one canonical form, all others differ.

Numbers are compared by their exact decimal value, however they are written: 1, 1.0 and 1e0 are equal, and two that only
a double would round to the same are not. A text is never equal to a number. The order of members does not matter.

Messages are parsed with orjson if it is installed (the extra ``speed``), and again, slowly, only if a value that is
wanted may have lost digits.
"""

import json
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from json.encoder import encode_basestring_ascii
from typing import Any, Final, Self

try:
    import orjson
except ModuleNotFoundError:
    orjson = None  # type: ignore[assignment]

NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?")
SHAPES: Final = bytes(ord("0" if byte in b"0123456789." else "e" if byte in b"eE+-" else " ") for byte in range(256))
"""Digits and points become 0, letters and signs of exponents e, all else blanks."""
TEXT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
LONG: Final = b"0" * 16
"""In the shape of any JSON that has a number of more than 15 digits."""
MAX_ZEROS: Final = 21
"""A whole number that ends in more zeros has an exponent in its canonical form, so that it cannot be long."""


class Number(float):
    """A number as it was written, in ``text``; as a float it may have lost digits."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number


KEEP_DIGITS: Final = {str, int, bool, type(None), Number}
MAX_EXPONENT: Final = 32
"""Characters of an exponent; a longer one is compared as a decimal number."""
MAX_INT_DIGITS: Final = 4_300
"""Python makes no whole number of more."""
quoted: Final = encode_basestring_ascii
"""Return a text as JSON."""


def parse(message: bytes) -> Any:
    """Return the value of ``message``, whose numbers may have lost digits: see ``exactly``. Raise as ``json.loads``.

    orjson takes a tenth of the time, and refuses some of what ``json`` accepts: that is parsed again.
    """
    if orjson is not None:
        try:
            return orjson.loads(message)
        except orjson.JSONDecodeError:
            pass
    return parse_slowly(message)


def parse_slowly(message: bytes | str) -> Any:
    """Return the value of ``message``, which is UTF-8, as ``json.loads`` does: whole numbers keep their digits."""
    message = _text(message)
    try:
        return json.loads(message)
    except json.JSONDecodeError:
        raise
    except ValueError:  # more digits than Python makes a whole number of
        return parse_exactly(message)


def parse_whole(message: bytes) -> Any:
    """Return the value of ``message`` as ``parse`` does, with a ``Number`` in place of what may have lost digits."""
    found = parse(message)
    return parse_exactly(message) if may_exceed_a_double(message) else found


def parse_exactly(message: bytes | str) -> Any:
    """Return the value of ``message`` with a ``Number`` for each that is no ``int``. Raise as ``json.loads``."""
    message = _text(message)
    try:
        return json.loads(message, parse_float=Number)
    except json.JSONDecodeError:
        raise
    except ValueError:  # more digits than Python makes a whole number of
        return json.loads(message, parse_int=_whole, parse_float=Number)


def exactly(message: bytes, found: Any, *path: str) -> Any:
    """Return the value at ``path`` in ``found``, which ``parse`` has made of ``message``; None if there is none.

    A number in it that may have lost digits is a ``Number``.
    """
    value = _at(found, path)
    return (
        value if type(value) in KEEP_DIGITS or not may_exceed_a_double(message) else _at(parse_exactly(message), path)
    )


def may_exceed_a_double(message: bytes) -> bool:
    """Return True if ``message`` may have a number of more than 15 digits, or with an exponent of more than two.

    A double may not tell such a number from others. Half a microsecond for a kilobyte, unless a text looks so.
    """
    return _looks_long(message) and _looks_long(TEXT.sub(b'""', message))


def _looks_long(message: bytes) -> bool:
    shape = message.translate(SHAPES)
    return LONG in shape or b"0e000" in shape or b"0ee000" in shape


def as_json(value: Any) -> bytes:
    """Return a JSON value as UTF-8, each ``Number`` as it was written, and whole numbers with all their digits."""
    if orjson is not None:
        try:
            return orjson.dumps(value)
        except TypeError:  # a Number, or an int of more than 64 bits
            pass
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) if not has_number(value) else _written(value)
    return text.encode(errors="backslashreplace")  # a lone surrogate becomes an escape of JSON


def canonical(value: Any) -> str:
    """Return a JSON value, as ``parse`` or ``exactly`` returns it, as JSON text: the same for all equal values.

    Raise ``RecursionError`` if it is nested too deeply.
    """
    return _written(value, _canonical_word, sorted)


def canonical_number(text: str, zeros: int = MAX_ZEROS) -> str:
    """Return a number of JSON in its canonical form. Raise ``ValueError`` if it is none.

    A whole number that ends in up to ``zeros`` zeros is plain, all others are written as Python writes a float.
    """
    match = NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a number, found {text[:40]!r}")
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", match[4] or "0"
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return "0"
    before = len(digits) - len(fraction)
    mantissa = f"{sign}{significant[0]}{significant[1:] and '.'}{significant[1:]}"
    if len(exponent) > MAX_EXPONENT:  # Decimal is exact, and takes no quadratic time as int does
        with localcontext(prec=len(exponent) + MAX_EXPONENT):
            exponent = f"{Decimal(exponent) + (before - 1):+f}"
        if len(exponent) > MAX_EXPONENT:
            return f"{mantissa}e{exponent}"
        before = 1
    point = before + int(exponent)
    """Where the decimal point is in ``significant``."""
    if len(significant) <= point <= len(significant) + zeros:
        return sign + significant.ljust(point, "0")
    if 0 < point < len(significant):
        return f"{sign}{significant[:point]}.{significant[point:]}"
    if -4 < point <= 0:
        return f"{sign}0.{'0' * -point}{significant}"
    return f"{mantissa}e{point - 1:+03d}"


def _word(value: Any) -> str:
    return value.text if type(value) is Number else json.dumps(value)


def _canonical_word(value: Any) -> str:
    kind, text = type(value), _word(value)
    if kind is int and len(text) <= MAX_ZEROS:
        return text
    return canonical_number(text) if kind is not bool and text[-1].isdigit() else text


def _written(value: Any, word: Callable[[Any], str] = _word, order: Callable[[Any], Any] = iter) -> str:
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is list:
        return f"[{','.join([_written(each, word, order) for each in value])}]"
    if kind is dict:
        members = order(value.items())
        return f"{{{','.join([f'{quoted(name)}:{_written(each, word, order)}' for name, each in members])}}}"
    return word(value)


def has_number(value: Any) -> bool:
    """Return True if there is a ``Number`` in ``value``."""
    kind = type(value)
    inner = value if kind is list else value.values() if kind is dict else ()
    return kind is Number or any(map(has_number, inner))


def _text(message: bytes | str) -> str:
    """Decode UTF-8, perhaps behind a byte order mark: ``json.loads`` takes UTF-16, too, which nobody else here does."""
    return message if isinstance(message, str) else message.decode("utf-8-sig", "surrogatepass")


def _whole(text: str) -> int | Number:
    return int(text) if len(text) <= MAX_INT_DIGITS else Number(text)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
