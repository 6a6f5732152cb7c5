"""A reader of test files, which checks them against their composition."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from penstock.base import yaml_documents
from penstock.base.errors import PenstockError, Problem, SettingsError
from penstock.base.validation import describe_error
from penstock.composition.declared import line_of
from penstock.composition.files import read
from penstock.composition.model import Composition
from penstock.testing.spec import Case
from penstock.testing.spec.declared import File, Test
from penstock.testing.spec.fitting import Location, mistakes, started, unknown_processes
from penstock.testing.spec.keys import Places

TESTS_FOLDER: Final = "tests"
"""The folder of the test files in the composition's."""
HIDDEN_STEPS: Final = ("tests", "list", "one", "messages", "[key]")
"""Parts of the location of a mistake that are not in the file, or are of no use to its author."""


def find(given: Path) -> list[Path]:
    """Return the test files of a composition, or of all compositions in a folder, or ``given`` if it is one.

    Raise ``PenstockError`` if there are none.
    """
    if given.is_file() and given.absolute().parent.name == TESTS_FOLDER:
        return [given]
    for pattern in (f"{TESTS_FOLDER}/*.y*ml", f"*/{TESTS_FOLDER}/*.y*ml"):
        if found := sorted(given.glob(pattern)):
            return found
    expected = f"expected a composition with {TESTS_FOLDER}/*.yaml in it, a folder of such, or one of these files"
    raise PenstockError(f"{given}: {'no tests are here' if given.exists() else 'is not there'}; {expected}")


def read_all(files: list[Path]) -> list[Case]:
    """Return the tests of ``files``. Raise ``SettingsError`` with all problems in them and in their compositions."""
    problems, found, compositions = list[Problem](), list[Case](), dict[Path, Composition]()
    for file in dict.fromkeys(files):
        directory = file.absolute().parent.parent if file.parent == Path() else file.parent.parent
        if directory not in compositions:
            compositions[directory] = read(directory)
            problems += compositions[directory].problems
        found += _cases(file, directory, compositions[directory], problems)
    if problems:
        raise SettingsError(problems)
    return found


def _cases(file: Path, directory: Path, composition: Composition, problems: list[Problem]) -> Iterator[Case]:
    """Yield the tests of a file; add what is wrong with them to ``problems``."""
    node, tests = _declared(file, problems)
    names = [test.name for test in tests]
    for number, test in enumerate(tests):
        at: Location = ("tests", number)
        wrong = list(unknown_processes(test, composition.parts))
        processes = started(test, composition.parts)
        places = Places(composition.parts, processes)
        if not processes:
            wrong.append((("name",), "there is no process to start: expected a Procfile, or name props files"))
        if test.name in names[:number]:
            wrong.append((("name",), f"another test is called {test.name!r}"))
        if not wrong:
            wrong += mistakes(test, processes, places, directory)
        problems += [_problem(file, node, (*at, *more), why) for more, why in wrong]
        line = line_of(node, at) or 1
        yield Case(test, replace(composition, parts=processes), places, directory, file, line)


def _declared(file: Path, problems: list[Problem]) -> tuple[Any, list[Test]]:
    """Return the YAML nodes of a file, which give line numbers, and its tests."""
    try:
        text = file.read_text()
        node = yaml.compose(text, Loader=yaml_documents.BoundedLoader)
        content = yaml_documents.load_yaml(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words, line = yaml_documents.describe_yaml_error(error)
        problems.append(Problem(f"not YAML: {words}", str(file), line))
        return None, []
    problems += [Problem("is there twice", str(file), line, key) for key, line in _doubled(node)]
    try:
        declared = File.model_validate(content)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            extra = (detail["ctx"]["key"],) if detail["type"] == "unknown_key" else ()
            problems.append(_problem(file, node, (*detail["loc"], *extra), describe_error(detail)))
        return node, []
    usual = {"processes": declared.processes, "within": declared.within}
    return node, [
        test.model_copy(
            update={
                **{name: value for name, value in usual.items() if getattr(test, name) is None},
                "environ": declared.environ | test.environ,
            }
        )
        for test in declared.tests
    ]


def _problem(file: Path, node: Any, at: Location, why: str) -> Problem:
    names = [step for step in at if isinstance(step, str) and step not in HIDDEN_STEPS]
    return Problem(why, str(file), line_of(node, at), ".".join(names) or None)


def _doubled(node: Any) -> Iterator[tuple[str, int]]:
    """Yield each duplicate key with its line: YAML would silently take the last one."""
    if isinstance(node, yaml.MappingNode):
        seen = set[str]()
        for key, value in node.value:
            if key.value in seen:
                yield key.value, key.start_mark.line + 1
            seen.add(key.value)
            yield from _doubled(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _doubled(value)
