"""What is pushed, published or sent, as bytes; and what is received."""

import json as json_
from typing import Any, Final

from penstock.base import exact_json
from penstock.base.encoding import decoded, encoded
from penstock.base.errors import WrongCall
from penstock.base.exact_json import has_number

Payload = bytes | str
_AS_TEXT: Final = json_.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ESCAPED: Final = json_.JSONEncoder(allow_nan=False, separators=(",", ":"))


def as_payload(message: Any, *, json: bool = False) -> bytes:
    """Return ``message`` as it is pushed.

    Raise ``WrongCall`` if it is neither bytes nor text and not ``json``, or if it is no JSON value.
    """
    if json:
        return as_json(message)
    if isinstance(message, bytes):
        return message
    if not isinstance(message, str):
        raise WrongCall(f"expected bytes or text, found {type(message).__name__}: pass json=True for other values")
    try:
        return message.encode()
    except UnicodeEncodeError:
        return checked(message)


def as_bytes(value: Payload) -> bytes:
    """Return ``value``, a message or a name. Raise ``WrongCall`` if it is neither bytes nor text."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise WrongCall(f"expected bytes or text, found {type(value).__name__}")
    return checked(value)


def as_json(value: Any) -> bytes:
    """Return ``value`` as JSON; lone surrogates are escaped, and a ``Number`` keeps its digits.

    Raise ``WrongCall`` if it is no JSON value.
    """
    try:
        try:
            text = _AS_TEXT.encode(value).encode()
            return exact_json.as_json(value) if has_number(value) else text
        except UnicodeEncodeError:
            return _ESCAPED.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongCall(f"expected a JSON value: {error}") from None


def checked(text: str) -> bytes:
    """Return the bytes of a name or a message; a lone surrogate stands for a byte. Raise ``WrongCall`` if it cannot."""
    if not isinstance(text, str):
        raise WrongCall(f"expected text, found {type(text).__name__}")
    try:
        return encoded(text)
    except UnicodeEncodeError as error:
        raise WrongCall(f"{text[error.start : error.end]!r} stands for no character or byte") from None


class Received:
    """What was taken or read: ``body``, as it was pushed."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body

    def __bytes__(self) -> bytes:
        return self.body

    def __str__(self) -> str:
        """Return the body as text; a byte that is not UTF-8 becomes a lone surrogate."""
        return decoded(self.body)

    def json(self) -> Any:
        """Return the body as JSON. Raise ``ValueError`` if it is none, or nested too deeply."""
        try:
            return json_.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None
