"""Blocking twins: what they offer is what their asynchronous classes offer, described as it blocks, and no more."""

import ast
import asyncio
import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any, Final

import pytest

from penstock.base.errors import WrongCall
from penstock.sync import Bus, Jobs, Lists, Portal, Queues
from penstock.sync.calls import feed
from tests.support.stubs import MODULES, classes_of, file_of, stubs

CLASSES: Final = [(module, each) for module in MODULES for each in classes_of(module).values() if "_of" in vars(each)]
TWINS: Final = [pytest.param(module, twin, id=f"{module}-{twin.__name__}") for module, twin in CLASSES]
ASYNCHRONOUS: Final = [twin._of.replace(":", ".") for _, twin in CLASSES]
INTERNAL: Final = {
    "hqueue.Queue": {"consumer"},
    "jobs.Jobs": {"check_entered", "node", "pause_at", "play_at"},
    "jobs.Attempt": {"why"},
    "jobs.Repeats": {"send"},
    "jobs.Consumer": {"joined", "left"},
    "lists.Lists": {"push"},
    "lists.List": {"consumer", "source"},
    "lists.Work": {"consumer"},
}
"""What only the library calls. Of the bus all is internal that its twins do not name: see docs/bus.md."""


def described(module: str) -> dict[str, set[str]]:
    """Return the public names of each class in the types of a module."""
    found = dict[str, set[str]]()
    for node in ast.parse(file_of(module).read_text()).body:
        if isinstance(node, ast.ClassDef):
            names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            names |= {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
            found[node.name] = names.union(*(found.get(ast.unparse(base), set()) for base in node.bases))
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_types_of_twins_equal_the_generated_ones(module: str) -> None:
    assert file_of(module).read_text() == stubs(module), "python -m tests.support.stubs writes them anew"


@pytest.mark.parametrize(("module", "twin"), TWINS)
def test_a_twin_offers_what_is_public_and_nothing_internal(module: str, twin: Any) -> None:
    kind = resolve_name(twin._of)
    assert twin._of == f"{kind.__module__}:{kind.__qualname__}", "its objects would be given out as they are"
    bases = [each for each in twin.__bases__ if not each.__module__.startswith("penstock.sync.")]
    inherited = {name for base in bases for name in dir(base)}
    offered = {name for name in dir(twin) if name[0] != "_"}
    assert offered - inherited == {name for name in described(module)[twin.__name__] if name[0] != "_"} - inherited
    if module != "bus":
        known = {name for name in dir(kind) if name[0] != "_"}
        assert known - offered == INTERNAL.get(f"{module}.{twin.__name__}", set()), (
            "is it internal? Say so, or offer it"
        )


@pytest.mark.parametrize(("module", "twin"), TWINS)
def test_what_a_twin_offers_is_described_as_it_blocks(module: str, twin: Any) -> None:
    for name in twin._names:
        made: Any = getattr(twin, name)
        original: Any = getattr(resolve_name(twin._of), name, None)
        if isinstance(made, property):
            assert made.__doc__ == (inspect.getdoc(original) if isinstance(original, property) else None), name
            continue
        assert not inspect.iscoroutinefunction(made), name
        assert (made.__name__, made.__qualname__) == (name, f"{twin.__name__}.{name}")
        assert made.__doc__ == without_async(inspect.getdoc(original)), name
        assert made.__doc__ or name[0] == "_", name
        signature, whole = inspect.signature(made), inspect.signature(original)
        assert [*map(bare, signature.parameters.values())] == [*map(bare, whole.parameters.values())], name
        words = re.sub(r"\bAsync(Iterable|BaseTransport)\b", "", str(signature))
        assert not re.search("Async|Awaitable|Coroutine|Future|Outbox", words), words
        assert not any(each in words for each in ASYNCHRONOUS), words


def test_results_are_shown_plainly() -> None:
    queue = classes_of("bus")["Queue"]
    assert str(inspect.signature(queue.push)) == "(self, message: Any, *, json: bool = False) -> int"
    assert not hasattr(queue(None, None), "note_closed")


def without_async(words: str | None) -> str | None:
    return words and words.replace("``async ", "``")


def bare(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter with its name, kind and default alone."""
    return parameter.replace(annotation=None)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Bus", lambda: Bus("redis://localhost:1").queue("foo")),
        ("Jobs", lambda: Jobs("redis://localhost:1").producer()),
        ("Lists", lambda: Lists("redis://localhost:1")["orders"]),
        ("Queues", lambda: Queues("http://localhost:1")["a"]),
    ],
)
def test_a_call_outside_with_says_what_was_expected(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(WrongCall, match=f"^expected `with {name}"):
        call()


async def add(values: Any) -> int:
    return sum([value async for value in values])


def test_what_comes_one_by_one_is_made_in_the_thread_of_the_caller() -> None:
    threads, portal = set[str](), Portal()

    def numbers() -> Iterator[int]:
        for number in range(3_000):
            threads.add(threading.current_thread().name)
            yield number

    assert feed(add, numbers(), portal) == sum(range(3_000))
    assert threads == {threading.current_thread().name}
    portal.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_while_values_are_made_cancels_the_call(error: type[BaseException]) -> None:
    portal, ends = Portal(), list[type[BaseException]]()

    async def note(values: Any) -> None:
        try:
            await add(values)
        except BaseException as found:
            ends.append(type(found))
            raise

    def numbers() -> Iterator[int]:
        yield from range(2_000)
        raise error

    with pytest.raises(error):
        feed(note, numbers(), portal)
    assert ends == [asyncio.CancelledError]
    portal.close()


def test_an_error_of_the_call_ends_the_making() -> None:
    portal, made = Portal(), itertools.count()

    async def refuse(values: Any) -> None:
        async for value in values:
            raise LookupError(value)

    with pytest.raises(LookupError, match="0"):
        feed(refuse, made, portal)
    assert next(made) < 5_000
    portal.close()
