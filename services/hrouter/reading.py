"""Read the values of a rule as they are written in YAML; say what was expected."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from common.settings.redaction import nearest, plain

REQUIRED: Final = object()


class BadRule(ValueError):
    """A rule that cannot be used; the text says what was expected."""


def known(written: Mapping[Any, object], properties: Iterable[str], where: str = "") -> None:
    """Raise ``BadRule`` for a name that is none of ``properties``."""
    properties = tuple(properties)
    for name in written:
        if name not in properties:
            near = nearest(str(name), properties)
            raise BadRule(f"{where}unknown property {plain(str(name))}{f': did you mean {near}?' if near else ''}")


def text(written: Mapping[str, Any], name: str, default: Any = REQUIRED) -> str:
    value = written.get(name, default)
    if not isinstance(value, str) or (not value and default is REQUIRED):
        raise BadRule(f"{name}: expected a text")
    return value


def flag(written: Mapping[str, Any], name: str) -> bool | None:
    """Return the value; None if it is not written."""
    value = written.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRule(f"{name}: expected true | false")
    return value


def names(written: Mapping[str, Any], name: str) -> list[str]:
    """Return one text, or a list of them, as a list; an empty one if it is not written."""
    if name not in written:
        return []
    value = written[name]
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(each, str) and each for each in found):
        raise BadRule(f"{name}: expected a text, or a list of texts")
    return found


def table(written: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object with names as keys; an empty one if it is not written."""
    value = written.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(each, str) and each for each in value):
        raise BadRule(f"{name}: expected an object, such as {{accept: json}}")
    return value


def status(written: Mapping[str, Any], default: int, allowed: Iterable[int]) -> int:
    value = written.get("status", default)
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise BadRule(f"status: expected {_range(allowed)}")
    return value


def _range(allowed: Iterable[int]) -> str:
    return f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else ", ".join(map(str, allowed))
