"""The base of all objects in a test file: known keys, hints for unknown ones, and field types."""

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from penstock.base.extras import extra

with extra("test"):
    from jsonpath_ng.exceptions import JSONPathError
    from jsonpath_ng.ext.parser import parse


class Declared(BaseModel):
    """An object with these keys and no others."""

    model_config = ConfigDict(strict=True, validate_by_name=False, validate_by_alias=True)

    @classmethod
    def in_full(cls, value: Any) -> Any:
        """Return the long form of ``value``."""
        return value

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        value = cls.in_full(value)
        known = [field.alias or name for name, field in cls.model_fields.items()]
        if not isinstance(value, dict):
            raise PydanticCustomError("wrong_form", "expected some of {known}", {"known": ", ".join(known)})
        for key in value:
            if key not in known:
                hint = did_you_mean(str(key), known)
                raise PydanticCustomError("unknown_key", "unknown key: {hint}", {"hint": hint, "key": str(key)})
        return value


def did_you_mean(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


@lru_cache(200)
def json_path(text: str) -> Any:
    """Return a finder for a JSON path. Raise ``ValueError`` if ``text`` is not one."""
    try:
        return parse(text)
    except JSONPathError as error:
        raise ValueError(f"{text!r} is no JSON path: {error}") from None


def _message(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, bytes):
        return value
    raise ValueError(f"a message is a text: put {value!s} in quotes")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _path(text: str) -> str:
    json_path(text)
    return text


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _number(value: object) -> str:
    return "list" if isinstance(value, list) else "one"


Message = Annotated[bytes, BeforeValidator(_message)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Patterns = Annotated[
    Annotated[list[Pattern], Tag("list")] | Annotated[Pattern, Tag("one")],
    Discriminator(_number),
]
Paths = dict[Annotated[str, AfterValidator(_path)], Any]
"""Values by JSON path."""
EachPaths = Annotated[
    Annotated[list[Paths], Tag("list")] | Annotated[Paths, Tag("one")],
    Discriminator(_number),
]
Seconds = Annotated[float, Field(gt=0, le=3600)]
Count = Annotated[int, Field(ge=0)]
Environ = dict[str, Annotated[str, BeforeValidator(_text)]]
