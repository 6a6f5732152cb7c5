"""What a call to another site raises: errors of the other end, and those of the way there."""

from typing import Any, Final

from penstock.base import errors
from penstock.base.errors import PenstockError, Refused, Unauthorized, Unavailable, Unconfirmed, WrongCall

_FROM_TEXT: Final = frozenset(
    {errors.Full, errors.Gone, errors.Occupied, errors.Fenced, Unavailable, Unauthorized, Unconfirmed, WrongCall}
)
"""Classes whose only argument is their text."""


class Lost(PenstockError):
    """The channel ended before the answer to a call."""


class Silent(Unavailable):
    """The other site did not answer a call within the bus's patience."""


def error_of(found: Any) -> PenstockError:
    """Return the exception that the other end names: of its class, if that is one of ours."""
    if isinstance(found, PenstockError):
        return found
    name, _, text = str(found).partition(": ")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PenstockError) and kind in _FROM_TEXT:
        return kind(text)
    return Refused(str(found))
