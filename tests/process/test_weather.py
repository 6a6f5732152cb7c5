"""The weather composition, run as by a user, also with defects: the demo must report every difference."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from redis.asyncio import Redis

from compose.weather import demo
from compose.weather.demo import read_outcome
from tests.support.demos import ROOT, begun, demonstrate
from tests.support.harness import until

ROWS = (ROOT / "compose/weather/seattle-weather.csv").read_bytes().splitlines()[1:]
LISTS = ["weather:archive", "weather:alarm", "weather:report", "weather:storms", "weather:reports"]
DEMO = ("-m", "compose.weather.demo")
PROCESSES = ["mpush", "archive", "alarm", "report"]

FAULTY = """
import os, signal, sys, redis
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
server = redis.Redis.from_url(os.environ["REDIS"])
server.set("faulty:pid", os.getpid())
for number in range(int(sys.argv[2])):
    _, row = server.brpop(["weather:in"])
    for leg in ("archive", "alarm", "report"):
        copies = {("alarm", 3): 0, ("report", 5): 2}.get((leg, number), 1)
        server.lpush(f"weather:{leg}", *[row] * copies) if copies else None
signal.pause()
"""
"""Fan-out that loses one copy and duplicates another; its arguments are the exit status and the number of messages."""

MAIN = "import sys; from pathlib import Path; from compose.weather import demo; demo.main(Path(sys.argv.pop()))"


@pytest.fixture
def faulty(tmp_path: Path) -> Callable[[int, int], Path]:
    """Return a function that writes a Procfile with ``FAULTY`` in place of mpush and returns its folder."""

    def written(status: int, messages: int) -> Path:
        (tmp_path / "faulty.py").write_text(FAULTY)
        lines = (ROOT / "compose/weather/Procfile").read_text().splitlines()[1:]
        fanout = f"fanout: exec python {tmp_path}/faulty.py {status} {messages}"
        (tmp_path / "Procfile").write_text("\n".join([fanout, *lines]))
        return tmp_path

    return written


def test_the_demo_carries_every_row_to_every_list_on_a_server_of_its_own() -> None:
    done = demonstrate(None, *DEMO, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    output = json.loads(done.stdout)
    assert (output["holds"], output["differences"]) == (True, [])
    assert list(output["lists"]) == LISTS
    for name, figures in output["lists"].items():
        amount = 9 if name == "weather:storms" else 1461
        clean = {"lost": 0, "doubled": 0, "foreign": 0, "inOrder": True}
        assert figures == {"sent": amount, "got": amount} | clean
    assert output["exitStatus"] == dict.fromkeys(PROCESSES, 0)
    assert output["audit"]["problems"] == []
    assert output["metrics"]["delivered"] == {"count": "4383"} | dict.fromkeys(LISTS[:3], "1461")


async def test_the_demo_on_a_given_server_leaves_its_lists_to_look_at_and_runs_again(
    redis: "Redis", redis_url: str
) -> None:
    await redis.mset({"weather:forecast": "somebody's", "other": "somebody's"})
    for _ in range(2):
        done = demonstrate(redis_url, *DEMO)
        assert done.returncode == 0, done.stderr + done.stdout
        assert 'redis> hgetall weather:metrics:delivered\n1) "' in done.stdout
        assert '"4383"\n' in done.stdout
        assert "Nothing lost, nothing doubled. Each ended with status 0" in done.stdout
        assert await redis.llen("weather:archived") == len(ROWS)
    assert await redis.mget("weather:forecast", "other") == [b"somebody's"] * 2


@pytest.mark.parametrize("key", ["weather:archive", "weather:pending:3", "weather:metrics:taken", "weather:archived"])
async def test_the_demo_refuses_a_server_with_data_of_another_composition(
    redis: "Redis", redis_url: str, key: str
) -> None:
    await redis.lpush(key, "theirs")
    done = demonstrate(redis_url, *DEMO)
    assert done.returncode == 1
    assert key in done.stderr
    assert await redis.keys() == [key.encode()]
    assert await redis.lrange(key, 0, -1) == [b"theirs"]


async def test_the_demo_refuses_while_the_composition_runs(redis: "Redis", redis_url: str) -> None:
    await redis.set("weather:demo", "")
    await redis.hset("weather:7", "pid", "1")
    done = demonstrate(redis_url, *DEMO)
    assert done.returncode == 1
    assert "weather:7" in done.stderr
    assert await redis.hget("weather:7", "pid") == b"1"


def test_the_demo_says_so_where_there_is_no_server() -> None:
    done = demonstrate("redis://127.0.0.1:1/0", *DEMO)
    assert done.returncode == 1
    assert "demo: " in done.stderr
    assert "Traceback" not in done.stderr


async def swap(redis: "Redis") -> None:
    """Replace a message by another: all counts stay the same."""
    await redis.lset("weather:report:handled", 0, ROWS[700].decode())


async def miscount(redis: "Redis") -> None:
    await redis.hincrby("weather:metrics:delivered", "weather:alarm", -1)


async def forget(redis: "Redis") -> None:
    await redis.lpush("weather:pending:1", ROWS[0])


BROKEN: list[tuple[Callable[["Redis"], Awaitable[None]], list[str]]] = [
    (swap, [f"weather:report: lost 1, e.g. {ROWS[-1]!r}", f"weather:report: doubled 1, e.g. {ROWS[700]!r}"]),
    (
        miscount,
        [
            "weather: weather:alarm: taken 1,461 is not",
            "weather:alarm: 1,460 of 1,461 counted as delivered",
            "weather: delivered: count is 4,383, its lists add up to 4,382",
        ],
    ),
    (forget, ["weather:pending:1: 1 left behind"]),
]


async def test_each_damage_after_a_run_is_reported_and_nothing_else(redis: "Redis", redis_url: str) -> None:
    sound = await demo.run(redis_url, ROWS)
    assert sound.differences == []
    kept = {key: await redis.dump(key) for key in await redis.keys()}
    for damage, expected in BROKEN:
        await damage(redis)
        differences = (await read_outcome(redis, ROWS, sound.ending.statuses)).differences
        for words in expected:
            assert any(line.startswith(words) for line in differences), (words, differences)
        names = {words.split(": ")[0] for words in expected}
        assert {line.split(": ")[0] for line in differences} <= names
        await redis.flushall()
        for key, value in kept.items():
            await redis.restore(key, 0, value or b"")


def test_the_demo_exits_1_and_says_what_differs(faulty: Callable[[int, int], Path]) -> None:
    done = demonstrate(None, "-c", MAIN, str(faulty(0, len(ROWS))))
    assert done.returncode == 1
    assert f"differs: weather:alarm: lost 1, e.g. {ROWS[3]!r}\n" in done.stdout
    assert "Nothing lost" not in done.stdout


def test_a_demo_ordered_to_stop_as_its_server_starts_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with begun(None, *DEMO) as started:
        until(lambda: psutil.Process(started.pid).children(), every=0.001)
        started.terminate()
        assert started.wait(timeout=60) == 130
    assert not [*tmp_path.iterdir()]
