"""penstock queue add, fetch, ack, info, tail, rewind, dead and retry."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from penstock.base.keys import Keys
from penstock.cli import app
from penstock.core.tokens import add_token
from tests.http.queue_service import NAMESPACE, QueueService, new_name, queue_service
from tests.support.commandline import ROOT, Result

SECONDS = 30
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueService]:
    with queue_service(tmp_path_factory.mktemp("hqueue") / "log") as started:
        yield started


@pytest.fixture
def name() -> str:
    return new_name()


class Queue:
    """Runs ``penstock queue`` with the URL of a service."""

    def __init__(self, url: str, columns: int = 80, **environment: str | None) -> None:
        self._environment = {"PENSTOCK_QUEUE_URL": url, "COLUMNS": str(columns), **environment}

    async def __call__(self, *words: str) -> Result:
        """Run it to its end, in a thread of this process."""
        return await asyncio.to_thread(self._run, words)

    def _run(self, words: tuple[str, ...]) -> Result:
        result = CliRunner().invoke(app, ["queue", *words], env=self._environment, prog_name="penstock")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout_bytes, result.stderr_bytes)

    @asynccontextmanager
    async def running(self, *words: str) -> AsyncIterator[Process]:
        """Run it as a process, for pipes and signals."""
        environment = os.environ | {key: value for key, value in self._environment.items() if value is not None}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", "queue", *words,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd=ROOT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
def queue(service: QueueService) -> Queue:
    return Queue(service.url)


def fits(result: Result, width: int = 80) -> bool:
    return all(len(line) <= width for line in result.text.splitlines())


async def test_a_task_is_added_fetched_and_acknowledged(queue: Queue, name: str) -> None:
    added = await queue("add", name, '{"a": [1, null]}', "--key", "k", "--attempts", "2")
    assert (added.status, added.error) == (0, "")
    id = added.text.strip()
    fetched = await queue("fetch", name)
    assert (fetched.status, fetched.text) == (0, '{"a": [1, null]}\n')
    assert f"task {id} of {name}, attempt 1, until " in fetched.error
    again = (await queue("fetch", name, "--json")).json
    assert (again["taskId"], again["attempt"], again["value"]) == (id, 1, {"a": [1, None]})
    acknowledged = await queue("ack", name, '"fine"')
    assert (acknowledged.status, acknowledged.text) == (0, f"the task of {name} is done\n")
    assert (await queue("fetch", name)).status == 1


async def test_the_attempt_may_be_named_by_its_token(queue: Queue, name: str) -> None:
    await queue("add", name, "1")
    token = (await queue("fetch", name, "--worker", "w", "--json")).json["taskToken"]
    assert (await queue("ack", name, "--task-token", token, "--json")).json == {"acknowledged": True, "state": "done"}
    late = await queue("ack", name, "--task-token", token)
    assert late.status == 1
    assert "409" in late.error
    assert "another worker may have the task" in late.error


async def test_errors_of_a_worker_and_dead_tasks(queue: Queue, name: str) -> None:
    for error in ("no tea", '{"type": "Out", "message": "of   milk\\n and more of what is too long for a table"}'):
        await queue("add", name, "1")
        await queue("fetch", name)
        assert (await queue("ack", name, "--error", error, "--no-retry")).text == f"the task of {name} is dead\n"
    dead = await queue("dead", name)
    assert dead.status == 0
    assert fits(dead)
    assert "no tea" in dead.text
    assert "│ failed │ Out: of milk and more" in dead.text
    lines = [json.loads(line) for line in (await queue("dead", name, "--json")).text.splitlines()]
    assert [(line["state"], line["attempt"], line["reason"]) for line in lines] == [("dead", 1, "failed")] * 2
    assert lines[0]["error"] == {"type": "Error", "message": "no tea"}
    assert "these are the oldest 1: --limit shows more" in (await queue("dead", name, "--limit", "1")).text
    one = await queue("retry", name, lines[0]["taskId"])
    assert (one.status, one.text) == (0, f"task {lines[0]['taskId']} of {name} waits again\n")
    twice = await queue("retry", name, lines[0]["taskId"])
    assert twice.status == 1
    assert f"task {lines[0]['taskId']} is not dead" in twice.error
    assert (await queue("retry", name, "--all", "--json")).json == {"retried": 1}
    assert (await queue("dead", name)).text == f"{name} has no dead tasks\n"
    unknown = await queue("retry", name, "999999")
    assert unknown.status == 1


async def test_what_a_queue_has(queue: Queue, name: str) -> None:
    for _ in range(4):
        await queue("add", name, "1")
    await queue("add", name, "1", "--delay", "60")
    await queue("fetch", name)
    await queue("ack", name)
    await queue("fetch", name, "--worker", "a worker with a name that is long " * 3)
    shown = await queue("info", name)
    assert shown.status == 0
    assert fits(shown)
    cells = {row[0]: row[1] for row in rows(shown) if len(row) == 2}
    assert {name: cells[name] for name in ("waiting", "delayed", "blocked", "held", "ended")} == {
        "waiting": "2", "delayed": "1", "blocked": "0", "held": "1", "ended": "1",
    }  # fmt: skip
    found = (await queue("info", name, "--json")).json
    assert (found["service"], found["waiting"], found["index"]) == (name, 2, 5)


def rows(result: Result) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.text.splitlines() if line[:1] == "│"]


async def test_tasks_that_have_ended_wait_again(queue: Queue, name: str) -> None:
    for _ in range(2):
        await queue("add", name, "1")
        await queue("fetch", name)
        await queue("ack", name)
    assert (await queue("rewind", name, "1")).text == f"waiting again in {name}: 1 task\n"
    assert (await queue("rewind", name, "0", "--json")).json == {"rewound": 1}


async def test_lines_of_standard_input_become_tasks_as_they_come(queue: Queue, name: str) -> None:
    async with queue.running("add", name, "-") as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b'1\n\n"two"\n')
        ids = [int(await process.stdout.readline()) for _ in range(2)]  # while the input is still open
        out, err = await process.communicate(b"3")
    assert (process.returncode, err) == (0, b"")
    assert [*ids, int(out)] == [ids[0], ids[0] + 1, ids[0] + 2]
    assert [(await queue("fetch", name, "--worker", each)).text for each in "abc"] == ["1\n", '"two"\n', "3\n"]


async def test_a_line_that_is_no_json_is_named_and_those_before_were_added(queue: Queue, name: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(100)) + b"tea\n"
    async with queue.running("add", name, "-", "--json") as process:
        out, err = await process.communicate(lines)
    assert process.returncode == 2
    assert len(out.splitlines()) == 100
    assert b"100 tasks were added" in err
    assert b"line 101: expected JSON, found tea" in err
    assert (await queue("info", name, "--json")).json["waiting"] == 100


async def test_tail_shows_changes_until_ctrl_c(queue: Queue, name: str) -> None:
    await queue("add", name, "0")
    await queue("fetch", name)
    async with queue.running("tail", name, "--every", "0.1", "--json") as process:
        assert process.stdout

        async def until(state: str, index: int) -> Any:
            assert process.stdout
            while True:
                found = json.loads(await process.stdout.readline())
                if (found["state"], found["index"]) == (state, index):
                    return found

        await followed(process, name)
        await queue("add", name, "1")
        await until("waiting", 2)
        await queue("ack", name, "--error", "no tea", "--no-retry")
        assert (await until("dead", 1))["reason"] == "failed"
        await queue("fetch", name)
        assert (await until("held", 2))["attempt"] == 1
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def followed(process: Process, name: str) -> None:
    """Wait until tail has looked for the first time: it shows no task that was there before."""
    assert process.stderr
    assert await process.stderr.readline() == f"following {name}; ctrl-C ends it\n".encode()


async def test_tail_as_text_and_for_a_reader_that_goes_away(queue: Queue, name: str) -> None:
    async with queue.running("tail", name, "--every", "0.1") as process:
        assert process.stdout
        await followed(process, name)
        await queue("add", name, "1")
        _, id, index, state, attempt = (await process.stdout.readline()).decode().rstrip("\n").split("\t")
        assert (id.isdigit(), index, state, attempt) == (True, "1", "waiting", "attempt 0")
        process.stdout._transport.close()  # type: ignore[attr-defined]
        assert await process.wait() == 0


async def test_wrong_calls_are_2_and_say_what_was_expected(name: str) -> None:
    queue = Queue("http://127.0.0.1:1")
    for words, expected in {
        ("add", name, "tea"): "VALUE: expected JSON, found tea; a text is written '\"tea\"'",
        ("add", name, "-", "--id", "x"): "--id is for one task",
        ("add", "a/b", "1"): "is no name of a queue",
        ("retry", name): "expected the id of a task, or --all",
        ("retry", name, "1", "--all"): "expected the id of a task, or --all",
        ("retry", name, "x"): "is no id of a task",
        ("ack", name, "--no-retry"): "--delay and --no-retry belong to --error",
        ("ack", name, "1", "--error", "x"): "a task has one outcome",
        ("info", name, "--url", "localhost:8080"): "not the URL of hqueue",
        ("info", name, "--token", "pst_s3cr3t"): "--token: expected @FILE or env:NAME",
        ("info", name, "--token", "env:NOWHERE"): "the variable NOWHERE is empty or not set",
        ("info", name, "--token", "@/nowhere"): "/nowhere cannot be read",
    }.items():
        result = await queue(*words)
        assert (result.status, result.text) == (2, "")
        assert expected in result.error
        assert "s3cr3t" not in result.error


async def test_a_service_that_is_away_is_1_and_named(name: str) -> None:
    for words in (["info", name], ["add", name, "1"], ["dead", name], ["tail", name]):
        result = await Queue("http://127.0.0.1:1")(*words)
        assert result.status == 1
        assert result.error == (
            "penstock: cannot reach http://127.0.0.1:1: connection refused; "
            "start hqueue there, or name another with --url URL or PENSTOCK_QUEUE_URL\n"
        )


async def test_the_token_comes_from_the_environment_or_a_file_and_is_never_shown(tmp_path: Any) -> None:
    with queue_service(tmp_path / "log", tokens=True) as service:
        async with Redis.from_url(service.redis_url) as redis:
            token, _ = await add_token(redis, Keys(NAMESPACE), "ann", ("add", "info"), None)
        (tmp_path / "token").write_text(f"{token}\n")
        url = service.url
        shown = [await Queue(url)("info", "a"), await Queue(url, PENSTOCK_QUEUE_TOKEN="pst_other")("info", "a")]
        assert [each.status for each in shown] == [1, 1]
        assert "401" in shown[0].error
        assert "penstock token add" in shown[0].error
        assert (await Queue(url, PENSTOCK_QUEUE_TOKEN=token)("add", "a", "1")).status == 0
        assert (await Queue(url, PENSTOCK_QUEUE_TOKEN_FILE=str(tmp_path / "token"))("info", "a")).status == 0
        assert (await Queue(url, MINE=token)("info", "a", "--token", "env:MINE")).status == 0
        denied = await Queue(url)("fetch", "a", "--token", f"@{tmp_path}/token")
        assert denied.status == 1
        assert "403" in denied.error
        both = await Queue(url, PENSTOCK_QUEUE_TOKEN=token, PENSTOCK_QUEUE_TOKEN_FILE=str(tmp_path / "token"))(
            "info", "a"
        )
        assert both.status == 2
        assert token not in "".join(each.text + each.error for each in (*shown, denied, both))
