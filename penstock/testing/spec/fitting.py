"""The check of a well-formed test against its composition, and the processes that it starts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from shlex import join

from penstock.base.installed import services
from penstock.composition.model import Part
from penstock.testing.spec.declared import ALL, STEP_SECONDS, Expectation, Fault, Messages, Test
from penstock.testing.spec.keys import Places
from penstock.testing.spec.schema import did_you_mean

Location = tuple[int | str, ...]
Mistake = tuple[Location, str]
"""Location in the test, and error text."""


def startable(part: Part) -> Part:
    """Return ``part`` with a command, even if no process of the composition reads this props file."""
    if part.command or not part.service:
        return part
    module = services()[part.service].value.partition(":")[0].rpartition(".")[0]
    words = (module, "--props", str(part.file))
    return replace(part, command=f"exec python -m {join(words)}", module=words)


def started(test: Test, parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the processes of the test: those that it names, or else all of the composition."""
    chosen = [part for part in parts if (part.name in test.processes if test.processes else part.command)]
    given = test.environ
    return tuple(replace(startable(part), environ={**part.environ, **given.get(part.name, {})}) for part in chosen)


def unknown_processes(test: Test, parts: Iterable[Part]) -> Iterator[Mistake]:
    names = [part.name for part in parts if startable(part).command]
    for place, name in enumerate(test.processes or []):
        if name not in names:
            yield ("processes", place), f"no process is called {name}: {did_you_mean(name, names)}"
    for name in test.environ:
        if name not in names:
            yield ("environ", name), f"no process is called {name}: {did_you_mean(name, names)}"


def mistakes(test: Test, processes: Iterable[Part], places: Places, directory: Path) -> Iterator[Mistake]:
    """Yield the mistakes in ``test``, which starts ``processes``; ``directory`` is the composition's."""
    names = [part.name for part in processes]
    pushed: dict[str, list[bytes]] = {}
    for number, step in enumerate(test.steps):
        at: Location = ("then", number - 1) if number else ()
        count = 0
        for key, messages in step.push.items():
            where = (*at, "push", key)
            yield from ((where, why) for why in _unknown(key, places))
            if messages.pushed is not None:
                yield (where, "pushed is for what is expected: name the messages here")
            else:
                yield from ((where, why) for why in _unreadable(messages, directory))
                found = _loaded(messages, directory)
                count += len(found)
                pushed.setdefault(key, []).extend(found)
        within = step.within or test.within or STEP_SECONDS
        for place, fault in enumerate(step.faults):
            yield from (((*at, "faults", place), why) for why in _misdirected(fault, names, places, count))
            if fault.lasts >= within:
                yield (*at, "faults", place, "for"), f"lasts {fault.lasts:g} s, and the step may take {within:g} s"
        for key, expected in step.expect.items():
            yield from (((*at, "expect", key), why) for why in _unknown(key, places))
            yield from (((*at, "expect", key, *more), why) for more, why in _baseless(expected, pushed, directory))


def _misdirected(fault: Fault, names: list[str], places: Places, count: int) -> Iterator[str]:
    if fault.verb in ("kill", "stop", "pause", "every"):
        if fault.target not in [*names, *([ALL] if fault.every else [])]:
            yield f"the test starts no process {fault.target}: {did_you_mean(fault.target, names)}"
    elif fault.verb == "spoil":
        yield from _unknown(fault.target, places)
    else:
        try:
            places.host(fault.target)
        except ValueError as error:
            yield str(error)
    if fault.seen:
        yield from _unknown(fault.seen[0], places)
    elif count < fault.count < inf:
        yield f"never comes: {fault.count:,} messages are to be pushed before, and the step pushes {count:,}"


def _baseless(
    expected: Expectation, pushed: Mapping[str, list[bytes]], directory: Path
) -> Iterator[tuple[Location, str]]:
    for name, messages in expected.named():
        yield from (((name,), why) for why in _unreadable(messages, directory))
        if messages.pushed and messages.pushed not in pushed:
            yield (name,), f"nothing is pushed to {messages.pushed}: {did_you_mean(messages.pushed, list(pushed))}"


def _unknown(key: str, places: Places) -> Iterator[str]:
    try:
        places.find(key)
    except ValueError as error:
        yield str(error)


def _unreadable(messages: Messages, directory: Path) -> Iterator[str]:
    try:
        if not messages.load(directory, {}) and messages.lines is not None:
            yield f"{directory / messages.lines}: no line is left of it"
    except OSError as error:
        yield f"{error.filename}: {error.strerror}; expected a file, named from the composition's folder on"


def _loaded(messages: Messages, directory: Path) -> list[bytes]:
    try:
        return messages.load(directory, {})
    except OSError:
        return []
