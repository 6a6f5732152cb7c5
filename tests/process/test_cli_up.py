"""penstock up, and the composition that it runs."""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.base.errors import PenstockError, SettingsError
from penstock.composition.procfile import ProcessGroup
from tests.support.commandline import ended, penstock, running

WAITS = "python -c 'import time; print(\"ready\", flush=True); time.sleep(60)'"
"""Command that prints ``ready`` and ends on SIGTERM, as it has no handler."""


def procfile(directory: Path, **commands: str) -> Path:
    (directory / "Procfile").write_text("# a comment\n\n" + "".join(f"{n}: {c}\n" for n, c in commands.items()))
    return directory


async def line_with(process: Process, word: str) -> str:
    """Return the next line of output with ``word``; fail if the process ends or 20 s pass first."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while line := await process.stdout.readline():
            if word in line.decode():
                return line.decode()
    raise AssertionError(f"{word!r} was never said")


def alive(pid: int) -> bool:
    """Return True if ``pid`` runs and is not a zombie."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_processes_run_here_with_redis_set_and_our_python(redis_url: str, tmp_path: Path) -> None:
    procfile(tmp_path, one="echo $REDIS", two="python -c 'import sys; print(sys.executable)'", three="pwd")
    result = await penstock("up", tmp_path, redis=redis_url)
    assert result.status == 0
    said = {line.split("| ")[0].split()[1]: line.split("| ")[1] for line in result.text.splitlines()}
    assert said == {"one": redis_url, "two": sys.executable, "three": str(Path.cwd())}


async def test_a_process_that_ends_with_0_leaves_the_others_running_until_sigterm(
    redis_url: str, tmp_path: Path
) -> None:
    procfile(tmp_path, done="true", waits=WAITS, waits_too=WAITS)
    async with running("up", tmp_path, redis=redis_url) as process:
        await line_with(process, "ready")
        await line_with(process, "ready")
        process.terminate()
        assert await ended(process) == (0, "")


async def test_a_process_that_fails_stops_the_others(redis_url: str, tmp_path: Path) -> None:
    procfile(tmp_path, waits=f"echo $$; exec {WAITS}", fails="sleep 0.5; exit 3")
    async with running("up", tmp_path, redis=redis_url) as process:
        pid = int((await line_with(process, "waits")).split("| ")[1])
        status, err = await ended(process)
    assert status == 1
    assert err == "penstock: fails failed with status 3: stopping the others\n"
    assert not alive(pid)


async def test_a_process_that_does_not_stop_is_killed_by_a_second_ctrl_c(redis_url: str, tmp_path: Path) -> None:
    procfile(tmp_path, stubborn="trap '' TERM; echo ready; while true; do sleep 0.1; done")
    async with running("up", tmp_path, redis=redis_url) as process:
        await line_with(process, "ready")
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.5)
        assert process.returncode is None
        process.send_signal(signal.SIGINT)
        status, err = await ended(process)
    assert status == 1
    assert err == "penstock: stubborn did not stop cleanly: status -9\n"


async def test_an_embedded_server_serves_to_the_end_and_goes_with_it(tmp_path: Path) -> None:
    asks = "python -m penstock redis ping"
    procfile(tmp_path, asks=f"trap '{asks}; exit 0' TERM; {asks}; while true; do sleep 0.1; done")
    async with running("up", tmp_path, redis=None) as process:
        assert process.stderr is not None
        announced = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
        assert announced.startswith("penstock: an embedded server runs at redis://127.0.0.1:")
        url = announced.split()[6].rstrip(";")
        await line_with(process, "PONG")
        assert (await penstock("redis", "ping", redis=url)).text == "PONG\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes in the foreground
        await line_with(process, "PONG")
        assert await ended(process) == (0, "")
    assert (await penstock("redis", "ping", redis=url)).status == 1


async def test_a_composition_of_services_stops_without_losing_output(
    redis_url: str, redis: Any, tmp_path: Path
) -> None:
    settings = f"MPUSH_REDIS={redis_url} MPUSH_REDIS_NAMESPACE=demo MPUSH_IN=in MPUSH_PENDING=pending MPUSH_OUT=out0"
    procfile(tmp_path, mpush=f"env {settings} python -m services.mpush", reader="python -m penstock pull out0 --follow")
    async with running("up", tmp_path, redis=redis_url) as process:
        await redis.lpush("in", "hello")
        assert (await line_with(process, "hello")).split("| ")[1] == "hello\n"
        process.terminate()
        assert (await ended(process))[0] == 0
    assert await redis.llen("demo:ids") == 0


async def test_json_is_one_object_per_line(redis_url: str, tmp_path: Path) -> None:
    procfile(tmp_path, one="printf 'a\\nb \\377\\n'; exit 2")
    result = await penstock("up", tmp_path, "--json", redis=redis_url)
    *lines, last = [json.loads(line) for line in result.out.splitlines()]
    assert [(line["name"], line["line"]) for line in lines] == [("one", "a"), ("one", "b �")]
    assert last == {"statuses": {"one": 2}, "failed": ["one"]}
    assert result.status == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one: true\none: false\n", ":2: a second process is called 'one'"),
        ("one: true\njust words\n", ":2: expected a process, NAME: COMMAND, not 'just words'"),
        ("# nothing\n", ": no process in it"),
    ],
)
async def test_an_invalid_procfile_is_reported_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    await asyncio.to_thread((tmp_path / "Procfile").write_text, text)
    result = await penstock("up", tmp_path)
    assert (result.status, result.out) == (1, b"")
    assert result.error.startswith(f"penstock: {tmp_path}/Procfile{expected}")


async def test_a_folder_without_a_procfile_is_one_clear_line(tmp_path: Path) -> None:
    result = await penstock("up", tmp_path)
    assert (result.status, result.error) == (
        1,
        f"penstock: {tmp_path}/Procfile: cannot be read: No such file or directory; a composition has a Procfile\n",
    )


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_composition_is_for_programs_too(tmp_path: Path) -> None:
    said: list[Any] = []
    async with ProcessGroup(procfile(tmp_path, waits=WAITS, done="true"), write=said.append) as composition:
        await composition.start({"PATH": os.environ["PATH"]})
        await eventually(lambda: bool(said) and "done" in composition.statuses)
        assert composition.running == ["waits"]
    assert (composition.running, composition.failed) == ([], [])
    assert composition.statuses == {"done": 0, "waits": -signal.SIGTERM}
    assert [(line.name, line.data) for line in said] == [("waits", b"ready\n")]


async def test_a_child_that_does_not_stop_is_killed_with_all_it_started(tmp_path: Path) -> None:
    said: list[Any] = []
    stubborn = "trap '' TERM; sleep 61 & echo $!; wait; sleep 61"
    composition = ProcessGroup(procfile(tmp_path, stubborn=stubborn), write=said.append, stop=0.3)
    await composition.start()
    await eventually(lambda: bool(said))
    started = time.monotonic()
    await composition.stop()
    assert 0.2 < time.monotonic() - started < 30
    assert (composition.statuses, composition.failed) == ({"stubborn": -9}, ["stubborn"])
    await eventually(lambda: not alive(int(said[0].data)))


async def test_an_error_of_whoever_takes_the_output_ends_the_process(tmp_path: Path) -> None:
    def write(_: object) -> None:
        raise LookupError("no such line")

    async with ProcessGroup(procfile(tmp_path, waits=WAITS), write=write) as composition:
        await composition.start()
        with pytest.raises(LookupError, match="no such line"):
            await composition.wait(asyncio.Event())
    assert composition.running == []


async def test_a_killed_process_can_be_started_again(tmp_path: Path) -> None:
    said: list[Any] = []
    async with ProcessGroup(procfile(tmp_path, waits=WAITS), write=said.append) as composition:
        await composition.start()
        await eventually(lambda: bool(said))
        pid = await composition.kill("waits")
        assert not alive(pid)
        assert (composition.failed, composition.statuses) == (["waits"], {"waits": -signal.SIGKILL})
        await composition.start_again("waits")
        assert (composition.running, composition.failed, composition.statuses) == (["waits"], [], {})
        await eventually(lambda: len(said) == 2)
    assert (composition.failed, composition.statuses) == ([], {"waits": -signal.SIGTERM})


async def test_a_second_stop_does_nothing(tmp_path: Path) -> None:
    composition = ProcessGroup(procfile(tmp_path, one="true"))
    await composition.start()
    await composition.wait(asyncio.Event())
    await composition.stop()
    await composition.stop()
    assert composition.statuses == {"one": 0}


async def test_a_composition_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    await ProcessGroup(procfile(tmp_path, one="true")).stop()


def test_all_errors_in_a_procfile_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("one: true\nwords\nmore words\none: true\n")
    with pytest.raises(SettingsError) as error:
        ProcessGroup(tmp_path)
    assert [problem.line for problem in error.value.problems] == [2, 3, 4]
    with pytest.raises(PenstockError, match="cannot be read"):
        ProcessGroup(tmp_path / "nowhere")
