"""Check all values that were set, and report every problem instead of the first."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings

from common.settings.fields import expected_of
from common.settings.redaction import nearest, shown
from common.settings.sources import Found, Given, Names
from penstock.base.errors import Problem, SettingsError
from penstock.base.shape import property_of

Rule = Callable[..., str | None]
"""A rule over several settings: return what is wrong, or None. Its parameters are the fields that it checks, the one to
blame first; a parameter ``given`` has the names of the fields that were set. It is called if all of them are valid."""


class ItemProblems(ValueError):
    """What a validator raises for single items of a list: the place of each, from 0 on, and what is wrong with it."""

    def __init__(self, items: Sequence[tuple[int, str]]) -> None:
        super().__init__("; ".join(f"item {place + 1}: {words}" for place, words in items))
        self.items = items


Conflicts = Callable[[Mapping[str, Any]], Iterable[tuple[Sequence[str], str]]]
"""Yield for valid values the fields to blame, and what is wrong."""


def checked(
    settings: type[BaseSettings], rules: Sequence[Rule], names: Names, found: Found, conflicts: Conflicts
) -> dict[str, Any]:
    """Return the values of ``found``, each as its field's type.

    Raise ``SettingsError`` with every problem, in the order of their file.
    """
    values: dict[str, Any] = {}
    problems = list(found.problems)
    scratch = settings.model_construct()
    for name, one in found.given.items():
        if name not in settings.model_fields:
            near = nearest(name, settings.model_fields)
            problems.append(one.problem(f"unknown property{f': did you mean {near}?' if near else ''}"))
            continue
        try:
            settings.__pydantic_validator__.validate_assignment(scratch, name, one.value)
        except ValidationError as error:
            problems += _invalid(one, settings.model_fields[name], error)
        else:
            values[name] = getattr(scratch, name)
    problems += _missing(settings.model_fields, names, found)
    sound = _sound(settings.model_fields, values, found.given) if found.readable else values  # without defaults
    problems += [
        _blaming(blamed, reason, found) for blamed, reason in conflicts({**sound, "given": frozenset(found.given)})
    ]
    problems += _contradictions(rules, sound, found)
    if problems:
        raise SettingsError(sorted(problems, key=lambda one: (one.file is None, one.line or 0)))
    return values


def _invalid(one: Given, field: FieldInfo, error: ValidationError) -> Iterator[Problem]:
    for detail in error.errors(include_url=False):
        found = detail.get("ctx", {}).get("error")
        if isinstance(found, ItemProblems):
            yield from (one.item_problem(place, words) for place, words in found.items)
            continue
        hint = _hint(one, detail)
        yield one.problem(_reason(detail) or f"expected {expected_of(field)}, found {_found(detail)}{hint}")


def _hint(one: Given, detail: ErrorDetails) -> str:
    """Return what to do if YAML has read a text, such as ``no``, as another value."""
    is_yaml = (one.file or "").endswith((".yaml", ".yml"))
    read_as_another = is_yaml and detail["type"] == "string_type" and not isinstance(detail["input"], list | dict)
    return ": YAML reads some words and numbers as other values: write it in quotes" if read_as_another else ""


def _reason(detail: ErrorDetails) -> str | None:
    """Return the message of one of our own validators, or None."""
    return str(detail["ctx"]["error"]) if detail["type"] == "value_error" else None


def _found(detail: ErrorDetails) -> str:
    place = f" as item {int(detail['loc'][-1]) + 1}" if len(detail["loc"]) > 1 else ""
    lone = detail["type"] == "list_type" and isinstance(detail["input"], str)  # a comma in it may mean several
    return shown(detail["input"]) + (": put it in [brackets]" if lone else place)


def _missing(fields: Mapping[str, FieldInfo], names: Names, found: Found) -> Iterator[Problem]:
    for name, field in fields.items():
        if found.readable and field.is_required() and name not in found.given and name not in found.unread:
            place = f"in a props file or as {' or '.join(names.variables_of(name))}"
            yield Problem(f"missing: expected {expected_of(field)}, {place}", found.file, None, property_of(name))


def _sound(fields: Mapping[str, FieldInfo], values: dict[str, Any], given: Mapping[str, Given]) -> dict[str, Any]:
    """Return valid values, and the defaults of what was not set."""
    absent = {name: field for name, field in fields.items() if name not in given and not field.is_required()}
    return {name: field.get_default(call_default_factory=False) for name, field in absent.items()} | values


def _contradictions(rules: Sequence[Rule], values: Mapping[str, Any], found: Found) -> Iterator[Problem]:
    known = {**values, "given": frozenset(found.given)}
    for rule in rules:
        names = list(signature(rule).parameters)
        if all(name in known for name in names) and (reason := rule(*(known[name] for name in names))):
            yield _blaming(names, reason, found)


def _blaming(names: Sequence[str], reason: str, found: Found) -> Problem:
    """Return ``reason`` as a problem of the first of ``names`` that was set, or of the first one if none was."""
    to_blame = next((name for name in names if name in found.given), names[0])
    one = found.given.get(to_blame)
    return one.problem(reason) if one else Problem(reason, found.file, None, property_of(to_blame))
