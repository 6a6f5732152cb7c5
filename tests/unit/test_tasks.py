"""Tasks with an owner: nothing that ends one by surprise is silent, and no module begins one without."""

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator

import pytest
from redis.exceptions import ConnectionError
from structlog.testing import capture_logs

from penstock.base.errors import Unavailable
from penstock.bus import Bus
from penstock.core.consumer import Consumer
from penstock.core.tasks import ENDED, Tasks, begin
from penstock.hqueue import Queues
from penstock.hqueue.task import Task
from penstock.lists import Lists
from tests.support.harness import ROOT

URL = "redis://127.0.0.1:1"
BEGINS = ("create_task", "ensure_future")
LONGER = {
    "common/isolation.py": "between the attempts of one message",
    "penstock/spark/cluster.py": "in a thread, where nothing is awaited",
    "penstock/spark/sources/pages.py": "the same",
}
"""Who waits longer and longer without ``penstock.core.link``, and why."""
FILES = [path for folder in ("penstock", "common", "services") for path in sorted((ROOT / folder).rglob("*.py"))]


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_an_error_that_nobody_expected_is_logged_with_its_trace_and_heard() -> None:
    heard = list[Exception]()
    error = KeyError("slip")
    with capture_logs() as logs:
        tasks = Tasks(hears=heard.append)
        await asyncio.wait({tasks.begin(fail(error))})
        await asyncio.sleep(0)
    assert heard == [error]
    [line] = logs
    assert (line["event"], line["log_level"], line["task"]) == (ENDED, "error", "fail")
    assert "in fail" in line["exception"]
    assert not tasks


@pytest.mark.parametrize("error", [Unavailable("away"), ConnectionError("lost"), None], ids=str)
async def test_an_end_that_whoever_waits_expects_is_not_logged(error: Exception | None) -> None:
    with capture_logs() as logs:
        task = begin(fail(error) if error else asyncio.sleep(0))
        await asyncio.wait({task})
        await asyncio.sleep(0)
    assert logs == []


async def test_tasks_are_cancelled_but_the_one_that_asks_for_it() -> None:
    tasks = Tasks()
    others = [tasks.begin(asyncio.Event().wait()) for _ in range(2)]
    assert await tasks.begin(cancel(tasks)) == "went on"
    assert all(task.cancelled() for task in others)
    assert not tasks


async def cancel(tasks: Tasks) -> str:
    await tasks.cancel()
    await asyncio.sleep(0)
    return "went on"


async def of_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, heard = Bus(URL), list[Exception]()
    bus.on("error", heard.append)
    await asyncio.wait({bus.spawn(fail(KeyError("slip")))})
    for error in heard:
        raise error


async def of_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lists, "_cut_silent", lambda _: fail(KeyError("slip")))
    async with Lists(URL) as lists:
        while lists.consumers.tasks:
            await asyncio.sleep(0)


async def of_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consumer, "_keep", lambda _: fail(KeyError("slip")))
    async with Queues("http://127.0.0.1:1") as queues:
        queues.stop()
        consumer = queues["a"].consumer(None, 60, 1, Task)
        assert await consumer.batch() == []
        while consumer._keeping:
            await asyncio.sleep(0)
        with pytest.raises(KeyError) as heard:
            await consumer.batch()
    raise heard.value  # once: the end does not raise it again


@pytest.mark.parametrize("owner", [of_bus, of_lists, of_consumer])
async def test_who_uses_an_owner_hears_of_an_end_that_nobody_expected(
    owner: Callable[[pytest.MonkeyPatch], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bus emits ``error``, lists raise at their end, and a consumer at its next batch."""
    with pytest.raises(KeyError, match="slip"):
        await owner(monkeypatch)


def test_every_task_has_an_owner() -> None:
    """It is begun by ``Tasks`` or a group of tasks, awaited where it is begun, or something is called at its end."""
    found = {
        f"{path.relative_to(ROOT)}: {ast.unparse(call)}"
        for path in FILES
        if any(name in (text := path.read_text()) for name in BEGINS)
        for call in without_owner(ast.parse(text))
    }
    assert found == {
        "penstock/core/link.py: asyncio.create_task(self._keep())",  # `changed` hears of each error
    }


def without_owner(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that begin a task of which nobody hears."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            awaited = [ast.unparse(each) for each in ast.walk(function) if isinstance(each, ast.Await)]
            text, groups = ast.unparse(function), {*names_of_groups(function)}
            for statement in ast.walk(function):
                if isinstance(statement, ast.stmt) and not hasattr(statement, "body"):
                    is_heard = any(name in text for name in heard_in(statement, awaited))
                    yield from (call for call in calls(statement) if not is_heard and owner_of(call) not in groups)


def test_only_the_core_waits_longer_and_longer() -> None:
    core = ROOT / "penstock" / "core"
    others = {path: path.read_text() for path in FILES if core not in path.parents}
    grows = {path: ast.parse(text) for path, text in others.items() if re.search(r"delay_after|\*\*|\*=", text)}
    found = {path for path, tree in grows.items() if any(longer_waits(tree))}
    assert {str(path.relative_to(ROOT)) for path in found} == {*LONGER}, "use `again` of penstock.core.link"


def longer_waits(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that wait for a delay that grows: of a ``Backoff``, a power, or what is multiplied."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            changes = [each for each in ast.walk(function) if isinstance(each, ast.AugAssign)]
            grown = [ast.unparse(each.target) for each in changes if isinstance(each.op, ast.Mult)]
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and re.search(r"sleep|rest|pause|timeout|wait", ast.unparse(call.func)):
                    given = " ".join(map(ast.unparse, call.args))
                    if any(re.search(rf"(?<!\w){re.escape(word)}", given) for word in ("delay_after", "**", *grown)):
                        yield call


def heard_in(statement: ast.stmt, awaited: list[str]) -> Iterator[str]:
    """Yield why whoever is called, or waits, hears of the tasks that ``statement`` begins."""
    yield from (ast.unparse(each) for each in ast.walk(statement) if isinstance(each, ast.Await))
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for name in (name for target in targets for name in ast.unparse(target).strip("()").split(", ")):
            yield from (words for words in awaited if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", words))
            yield f"{name}.add_done_callback("


def calls(statement: ast.stmt) -> Iterator[ast.Call]:
    for each in ast.walk(statement):
        if isinstance(each, ast.Call) and getattr(each.func, "attr", getattr(each.func, "id", "")) in BEGINS:
            yield each


def owner_of(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def names_of_groups(function: ast.AST) -> Iterator[str]:
    for each in ast.walk(function):
        for item in each.items if isinstance(each, ast.AsyncWith) else ():
            if isinstance(item.optional_vars, ast.Name) and "TaskGroup" in ast.unparse(item.context_expr):
                yield item.optional_vars.id
        if isinstance(each, ast.arg) and each.annotation and "TaskGroup" in ast.unparse(each.annotation):
            yield each.arg
