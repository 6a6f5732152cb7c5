"""A sandbox runs a composition unchanged, and its processes reach only embedded servers."""

import asyncio
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from penstock.base.errors import PenstockError
from penstock.composition.files import read
from penstock.composition.procfile import stoppable
from penstock.testing.sandbox import Sandbox
from tests.support.harness import ROOT, eventually


async def test_no_server_that_the_environment_or_a_file_names_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPUSH_SERVICE_REDIS", "rediss://user:secret@far.example:6390/0")
    monkeypatch.setenv("FAR", "redis://far.example:6391/3")
    (tmp_path / "Procfile").write_text(
        "show: REDIS=redis://far.example:6392/2 OTHER=$FAR env && sleep 60\n"
        "plain: env && sleep 60\n"
        f"mpush: exec python -m services.mpush --props {tmp_path}/mpush.yaml\n"
    )
    (tmp_path / "mpush.yaml").write_text("redis: redis://far.example:6392/2\nin: in\npending: pending\nout: [out]\n")
    async with Sandbox(read(tmp_path)) as sandbox:
        await sandbox.start()
        log_tail = sandbox.processes["show"].log_tail

        async def has_reported() -> bool:
            return "OTHER=" in log_tail() and "REDIS=" in sandbox.processes["plain"].log_tail()

        await eventually(has_reported)
        ports = {host: server.port for host, server in sandbox.servers.items()}
        assert set(ports) == {"localhost:6379", "far.example:6391", "far.example:6392"}
        environ = dict(line.split("=", 1) for line in log_tail().splitlines() if "=" in line)
        assert environ["REDIS"] == f"redis://127.0.0.1:{ports['far.example:6392']}/2"
        assert environ["OTHER"] == f"redis://127.0.0.1:{ports['far.example:6391']}/3"
        assert f"REDIS=redis://127.0.0.1:{ports['localhost:6379']}/0" in sandbox.processes["plain"].log_tail()
        assert "far.example" not in log_tail() + sandbox.processes["plain"].log_tail()
        redis = sandbox.client("far.example:6392/2")
        await redis.lpush("in", "one")

        async def delivered() -> bool:
            return bool(await redis.llen("out"))

        await eventually(delivered)


async def test_a_variable_that_names_the_port_of_a_service_leads_to_it_on_a_free_one(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text(
        "ask: URL=http://localhost:8080/ready OTHER=http://localhost:9 env && sleep 60\n"
        f"hqueue: exec python -m services.hqueue --props {tmp_path}/hqueue.yaml\n"
    )
    (tmp_path / "hqueue.yaml").write_text("redis: redis://localhost\nredisNamespace: work\nlistenPort: 8080\n")
    async with Sandbox(read(tmp_path)) as sandbox:
        await sandbox.start()
        log_tail = sandbox.processes["ask"].log_tail

        async def is_served() -> bool:
            environ = dict(line.split("=", 1) for line in log_tail().splitlines() if "=" in line)
            if not environ.keys() >= {"URL", "OTHER"}:
                return False
            assert environ["OTHER"] == "http://localhost:9"
            assert environ["URL"].startswith("http://localhost:")
            assert ":8080" not in environ["URL"]
            async with httpx.AsyncClient() as http:
                with suppress(httpx.ConnectError):
                    return (await http.get(environ["URL"])).text == "ok\n"
            return False

        await eventually(is_served)


def test_a_command_that_names_a_server_is_refused_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("mover: exec python mover.py --from rediss://user:secret@far.example:6390/0\n")
    with pytest.raises(PenstockError, match="mover: its command names a server, which it would reach") as raised:
        Sandbox(read(tmp_path))
    assert "secret" not in str(raised.value)


async def test_a_composition_of_containers_alone_runs_here(tmp_path: Path) -> None:
    for name in ("compose.yaml", "composition.yaml", "mpush.yaml"):
        shutil.copy(ROOT / "compose" / "weather" / name, tmp_path)
    composition = read(tmp_path)
    assert composition.problems == ()
    async with Sandbox(composition) as sandbox:
        await sandbox.start()
        (host,) = set(sandbox.servers) - {"localhost:6379"}
        redis = sandbox.client(f"{host}/0")
        await redis.lpush("weather:in", *range(10))

        async def handled() -> bool:
            return [await redis.llen(f"weather:{name}") for name in ("archived", "report:handled")] == [10, 10]

        await eventually(handled)


@pytest.mark.parametrize("started", [False, True])
async def test_nothing_is_left_behind_if_the_fork_server_dies(tmp_path: Path, started: bool) -> None:
    shutil.copytree(ROOT / "compose" / "weather", tmp_path, dirs_exist_ok=True)
    before = psutil.Process().children()
    async with Sandbox(read(tmp_path)) as sandbox:
        if started:
            await sandbox.start()
        children = set(psutil.Process().children()) - set(before)
        (fork_server,) = [each for each in children if "penstock.testing.forkserver" in each.cmdline()]
        fork_server.kill()

        async def dead() -> bool:
            return fork_server.status() == psutil.STATUS_ZOMBIE

        await eventually(dead)
        process = sandbox.processes["mpush"]
        await process.kill()
        with pytest.raises(PenstockError, match="mpush cannot be started: "):
            await process.start()
        servers = [psutil.Process(server.pid) for server in sandbox.servers.values()]
    assert not any(server.is_running() for server in servers)


async def test_a_process_that_fails_is_started_again_and_one_that_was_stopped_is_not(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("fails: exit 3\nends: exit 0\nstays: exec sleep 60\n")
    async with Sandbox(read(tmp_path)) as sandbox:
        await sandbox.start()
        fails, ends, stays = (sandbox.processes[name] for name in ("fails", "ends", "stays"))

        async def again() -> bool:
            return fails.starts > 2

        await eventually(again)
        assert ends.starts == 1
        await asyncio.gather(stays.start(), stays.start())
        assert stays.starts == 1, "one that runs is not started twice"
        assert await stays.stop() == -15
        assert stays.pid is None


@pytest.mark.parametrize("order", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("turns", range(4))
async def test_an_order_to_end_is_not_taken_for_a_time_limit(order: signal.Signals, turns: int) -> None:
    async def work() -> None:
        signal.raise_signal(order)
        for _ in range(turns):
            await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(10)
        await asyncio.Event().wait()

    working = asyncio.create_task(stoppable(work()))
    done, _ = await asyncio.wait({working}, timeout=20)
    assert done
    assert working.cancelled()


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 40])
async def test_a_cancellation_during_shutdown_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A signal to the whole group may end the fork server, whose loss is then noticed before the order to end."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (tmp_path / "Procfile").write_text("plain: sleep 60\n")
    sandbox = Sandbox(read(tmp_path))
    await sandbox.__aenter__()
    await sandbox.start()
    children = [child for child in psutil.Process().children(recursive=True) if "sleep" in child.name()]
    ending = asyncio.create_task(sandbox.__aexit__())
    for _ in range(steps):
        await asyncio.sleep(0)
    came_in_time = ending.cancel()  # False if it has ended already
    await asyncio.wait({ending})
    assert ending.cancelled() == came_in_time
    assert not list(temporary.iterdir())
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
