"""The types of settings, with unit and bounds, and words for what was expected."""

from functools import partial
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, StringConstraints
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from penstock.base.urls import is_url, server_url

MIN_SECRET: Final = 8
"""Minimum number of characters of a secret."""
SECRET: Final = "secret"
"""Marks a field whose value is never shown."""
IN_FILE: Final = "in file"
"""Marks a field with a list of objects, which may be in a file of its own: then its value is the name of the file."""
YEAR: Final = 31_536_000
"""Seconds; the upper bound of every long time."""


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    return value


def _one_of_one(out: object) -> object:
    return out[0] if isinstance(out, list) and len(out) == 1 else out


def _no_url(name: str) -> str:
    if is_url(name):
        raise ValueError("expected a name, found the URL of a server")
    return name


def _secret(value: object) -> object:
    """Refuse what is no secret, without a word of it."""
    if not isinstance(value, str) or len(value) < MIN_SECRET:
        raise ValueError(f"expected a text of at least {MIN_SECRET} characters")
    return value


Whole = Annotated[int, BeforeValidator(_no_bool)]
Seconds = Annotated[float, BeforeValidator(_no_bool), AllowInfNan(False)]
NUMBERS: Final[dict[Any, str]] = {int: "whole number", float: "number"}
OTHERS: Final[dict[Any, str]] = {str: "text", bool: "true | false"}
"""What to call a value whose field does not say it; see ``setting``."""
LONGEST_WAIT: Final = "longest wait"
"""Marks a field with the seconds that one command may wait on the server."""
PopTimeout = Annotated[
    Whole,
    LONGEST_WAIT,
    Field(
        description="Longest wait for a message, in seconds; a stop does not wait for it.",
        ge=5,
        le=30,
        json_schema_extra={"kind": "seconds"},
    ),
]
"""Seconds that a service waits for a message; give it a default, e.g. 10."""
Url = Annotated[str, StringConstraints(strict=True), AfterValidator(partial(server_url, files=False))]
Name = Annotated[str, StringConstraints(strict=True, min_length=1), AfterValidator(_no_url)]
"""The name of a list or a namespace: any text that is not empty."""
Secret = Annotated[str, SECRET, BeforeValidator(_secret)]
"""What others must know; best given in a file, by the variable with ``_FILE``."""
OneName = Annotated[Name, BeforeValidator(_one_of_one)]
"""A name, or a list of one name, as some props files write ``out``."""


def setting(
    kind: str, description: str, default: Any = ..., *, least: int | None = None, most: int | None = None
) -> Any:
    """Return a field. ``kind`` is its unit, e.g. ``seconds``; ``description`` is one line that names the unit again."""
    return Field(default, description=description, ge=least, le=most, json_schema_extra={"kind": kind})


def kind_of(field: FieldInfo) -> str:
    """Return what an operator may write there, for a table: ``seconds 5..30``."""
    least, most = bounds_of(field)
    return f"{_noun(field)} {least}..{most}" if least is not None else _noun(field)


def expected_of(field: FieldInfo) -> str:
    """Return what an operator may write there, for a sentence."""
    least, most = bounds_of(field)
    noun, number = _noun(field), next(filter(None, map(NUMBERS.get, _types(field))), None)
    if number:
        is_unit = noun.partition(" ")[0].endswith("s")
        return (f"a {number} of {noun}" if is_unit else f"a {noun}") + (
            "" if least is None else f" from {least} to {most}"
        )
    return noun if "|" in noun else f"a {noun}"


def _types(field: FieldInfo) -> tuple[Any, ...]:
    """Return the type of ``field``, or those of a union with None."""
    types = get_args(field.annotation)
    return tuple(getattr(each, "__origin__", each) for each in types) if NoneType in types else (field.annotation,)


def bounds_of(field: FieldInfo) -> tuple[int | None, int | None]:
    found: dict[type, Any] = {type(each): each for each in field.metadata}
    return (found[Ge].ge, found[Le].le) if Ge in found and Le in found else (None, None)


def is_secret(field: FieldInfo) -> bool:
    """Return whether ``field`` is a ``Secret``, or ``Secret | None``."""
    parts = get_args(field.annotation)
    return SECRET in field.metadata or any(SECRET in getattr(part, "__metadata__", ()) for part in parts)


def is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is list


def _noun(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("kind"):
        return str(extra["kind"])
    if get_origin(field.annotation) is Literal:
        return " | ".join(map(str, get_args(field.annotation)))
    names = [(NUMBERS | OTHERS).get(each) for each in _types(field)]
    return "list" if is_list(field) else next(filter(None, names), "value")
