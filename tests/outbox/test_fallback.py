"""``penstock.lists`` with an outbox: pushes wait on disk while the server is away, and arrive in order, once.

What queues of ``penstock.bus`` do alike is tried here, too; the rest in ``test_outbox`` of the bus.
"""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from penstock import fallback, sync
from penstock.base.errors import Unconfirmed, WrongCall
from penstock.bus import Bus
from penstock.lists import Lists
from penstock.outbox import DiskFull, Outbox, listing
from penstock.outbox.spool import Spool
from penstock.testing.server import EmbeddedServer
from tests.outbox.outboxes import opened
from tests.reliability.command_proxy import CommandFault, CommandProxy, Kind
from tests.reliability.soak.links import FaultyProxy
from tests.support.harness import eventually

QUICK = [kind for kind in Kind if not kind.swallows]
KEYS = {"list": "orders", "queue": "bus:queue:orders:messages"}
LIMIT = 1 << 20
LARGE = b"x" * (LIMIT + 1)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(aof=True) as started:
        yield started


@pytest.fixture(params=KEYS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def line_to(kind: str, url: str, outbox: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Yield a library with an outbox, and its list or queue ``orders``, which are pushed to alike."""
    if kind == "list":
        async with Lists(url, outbox=outbox) as lists:
            yield lists, lists["orders"]
    else:
        async with Bus(url, outbox=outbox) as bus:
            queue = bus.queue("orders")
            await queue.attach(ttl=300)
            yield bus, queue


async def bodies(kind: str, server: EmbeddedServer) -> list[bytes]:
    """Return what is there, oldest first."""
    async with Redis.from_url(server.url) as redis:
        found: Any = await redis.lrange(KEYS[kind], 0, -1)
    return found[::-1] if kind == "list" else found[1::2]  # type: ignore[no-any-return]


async def push_numbers(line: Any, *numbers: int) -> None:
    for number in numbers:
        await line.push(str(number))


async def content(server: EmbeddedServer, name: str = "orders") -> list[int]:
    """Return what the list holds, oldest first."""
    async with Redis.from_url(server.url) as redis:
        return [int(each) for each in (await redis.lrange(name, 0, -1))[::-1]]


async def push(lists: Lists, *numbers: int, name: str = "orders") -> None:
    for number in numbers:
        await lists[name].push(str(number))


async def delivered(lists: Lists) -> None:
    await eventually(lambda: not lists.waiting)


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def test_while_the_server_is_away_pushes_go_to_disk_and_then_there_in_order(
    kind: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with line_to(kind, server.url, tmp_path) as (library, line):
        with capture_logs() as log:
            await push_numbers(line, 1, 2)
            assert library.waiting == 0
            await asyncio.to_thread(server.stop)
            await push_numbers(line, 3, 4)
            assert await line.push_many(["5", "6"]) == (2 if kind == "list" else [0, 0])
            assert library.waiting == 4
            await asyncio.to_thread(server.start)
            await push_numbers(line, 7)
            await delivered(library)
            await line.push_many(["8", "9"])
        assert await bodies(kind, server) == numbered(*range(1, 10))
    said = [each["event"] for each in log if each.get(kind) == "orders"]
    assert said == ["pushes wait on disk", "pushes reach the server again"]


async def test_what_waits_is_delivered_by_the_next_program_that_uses_the_outbox(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Lists(server.url, outbox=tmp_path) as lists:
        await push(lists, 1)
        server.stop()
        await push(lists, 2, 3)
    async with Lists(server.url, outbox=tmp_path) as lists:
        assert lists.waiting == 2
        await push(lists, 4)
    server.start()
    async with Lists(server.url, outbox=tmp_path) as lists:
        assert lists.waiting == 3
        await delivered(lists)
        assert await content(server) == [1, 2, 3, 4], "nothing was pushed by this program"
        server.stop()
        await push(lists, 5)
        server.start()
    async with Lists(server.url, outbox=tmp_path) as lists:
        await push(lists, 6)
    assert await content(server) == [1, 2, 3, 4, 5, 6], "the end of a program waits until all is sent"


async def test_others_have_the_loop_between_two_reads_of_what_waits_for_all_lists(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read is followed by a rest, in which no other list is read either."""
    monkeypatch.setattr(fallback, "MAX_MESSAGES", 10)
    events, read, sleep = list[str](), Spool._read, asyncio.sleep

    def noted_read(spool: Spool, most: int, size: int) -> list[bytes]:
        events.append("read")
        return read(spool, most, size)

    async def noted_sleep(seconds: float) -> None:
        events.append("rest" if seconds > 0 else "none")
        await sleep(seconds)
        events.append("over")

    async with Lists(server.url, outbox=tmp_path) as lists:
        server.stop()
        for name in ("orders", "bills"):
            await lists[name].push_many(list(map(str, range(100))))
        monkeypatch.setattr(Spool, "_read", noted_read)
        monkeypatch.setattr("penstock.outbox.turns.asyncio", SimpleNamespace(sleep=noted_sleep))
        server.start()
        await delivered(lists)
    assert await content(server) == [*range(100)]
    assert events == ["read", "rest", "over"] * (len(events) // 3)
    assert len(events) >= 3 * 20


async def test_a_program_that_never_reached_the_server_knows_no_numbers_and_loses_nothing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Lists(server.url, outbox=tmp_path) as lists:
        await push(lists, *range(5))
    server.stop()
    async with Lists(server.url, outbox=tmp_path) as lists:
        await push(lists, 5, 6)
        server.start()
        await delivered(lists)
    assert await content(server) == [*range(7)]


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize(
    ("kind", "word", "nth"),
    [
        *(("list", "EVALSHA", nth) for nth in range(3)),
        *(("list", "MULTI", nth) for nth in range(3)),
        *(("queue", "EVALSHA", nth) for nth in range(6)),
    ],
)
async def test_a_push_that_breaks_at_any_byte_arrives_once(
    server: EmbeddedServer, tmp_path: Path, kind: str, word: str, fault: Kind, nth: int
) -> None:
    """A MULTI is of a batch too large for a script, and of the first contact."""
    async with line_to(kind, server.url, tmp_path / "other") as (library, line):  # so that the server knows the scripts
        await push_numbers(line, 0)
    large = b"x" * 70_000
    with CommandProxy(server.port, CommandFault(fault, word, nth)) as proxy:
        async with line_to(kind, proxy.url, tmp_path) as (library, line):
            await push_numbers(line, 1, 2)
            await line.push_many(["3", large])
            await push_numbers(line, 4)
            await line.push_many(["5", large])
            await delivered(library)
    assert proxy.met
    assert await bodies(kind, server) == [*numbered(0, 1, 2, 3), large, *numbered(4, 5), large]


async def test_what_broke_without_a_reply_is_known_after_the_program_has_ended(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    for kind in (Kind.CUT_BEFORE, Kind.TORN_COMMAND, Kind.CUT_BEFORE_REPLY, Kind.TORN_REPLY):
        with CommandProxy(server.port, CommandFault(kind, "EVALSHA", 2)) as proxy:
            directory = tmp_path / kind.name
            async with Outbox(datadir=directory) as outbox, Lists(proxy.url, outbox=outbox) as lists:
                await push(lists, 1, 2)
                server_is_away = asyncio.Event()
                for way in lists._fallback._destinations.values():  # type: ignore[union-attr]
                    way._meet = server_is_away.wait  # type: ignore[method-assign]
                await push(lists, 3, 4)
                assert lists.waiting == 2
            async with Lists(proxy.url, outbox=directory) as lists:
                await delivered(lists)
                await push(lists, 5)
        async with Redis.from_url(server.url) as redis:
            assert await content(server) == [1, 2, 3, 4, 5], kind
            await redis.flushall()


async def test_a_server_that_has_lost_everything_gets_what_waits(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Lists(server.url, outbox=tmp_path) as lists:
        await push(lists, 1, 2, 3)
        async with Redis.from_url(server.url) as redis:
            await redis.flushall()
        await push(lists, 4, 5)
        await delivered(lists)
        assert await content(server) == [4, 5]
        server.stop()
        await push(lists, 6, 7)
        server.start()
        async with Redis.from_url(server.url) as redis:
            await delivered(lists)
            await redis.flushall()
        await push(lists, 8)
        await delivered(lists)
    assert await content(server) == [8]


async def test_a_copy_of_an_outbox_is_found_out_and_loses_nothing(server: EmbeddedServer, tmp_path: Path) -> None:
    """As of a virtual machine that was cloned."""
    async with Lists(server.url, outbox=tmp_path / "one") as lists:
        await push(lists, 0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    async with Lists(server.url, outbox=tmp_path / "one") as one, Lists(server.url, outbox=tmp_path / "two") as two:
        for number in range(1, 21):
            await push(two if number % 3 else one, number)
        await delivered(one)
        await delivered(two)
    assert sorted(await content(server)) == [*range(21)]


async def test_lists_and_servers_do_not_mix(server: EmbeddedServer, tmp_path: Path) -> None:
    async with EmbeddedServer() as other, Outbox(datadir=tmp_path) as outbox:
        async with Lists(server.url, outbox=outbox) as one, Lists(other.url, outbox=outbox) as two:
            server.stop()
            await push(one, 1, 2)
            await push(one, 3, name="bills")
            await push(two, 4, 5)
            assert (one.waiting, two.waiting) == (3, 0)
            server.start()
            await delivered(one)
        assert (await content(server), await content(server, "bills")) == ([1, 2], [3])
        assert await content(other) == [4, 5]


async def test_two_names_of_a_server_do_not_mix(server: EmbeddedServer, tmp_path: Path) -> None:
    """What waits for one name is not taken for what was pushed by the other meanwhile."""
    one, other = server.url, server.url.replace("127.0.0.1", "localhost")
    assert one != other
    async with Lists(one, outbox=tmp_path) as lists:
        await push(lists, 1)
        server.stop()
        await push(lists, 2, 3)
    server.start()
    async with Lists(other, outbox=tmp_path) as lists:
        await push(lists, 4, 5, 6)
        await delivered(lists)
    async with Lists(one, outbox=tmp_path) as lists:
        await delivered(lists)
    assert sorted(await content(server))[-5:] == [2, 3, 4, 5, 6]


async def test_a_full_disk_refuses_and_says_what_may_have_arrived(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Outbox(datadir=tmp_path) as outbox, Lists(server.url, outbox=outbox) as lists:
        await push(lists, 1)
        db = outbox._commits._store.connection
        db.execute("PRAGMA max_page_count=1")
        server.stop()
        with pytest.raises((DiskFull, Unconfirmed)):
            await lists["orders"].push("9" * 10_000_000)
        with pytest.raises(DiskFull):
            await lists["orders"].push("9" * 10_000_000)
        db.execute("PRAGMA max_page_count=1000000")
        await push(lists, 2, 3)
        server.start()
        await delivered(lists)
        await push(lists, 4)
    assert await content(server) == [1, 2, 3, 4]


@pytest.mark.parametrize("reads_limit", [True, False])
async def test_what_is_too_large_is_refused_or_a_dead_letter_and_the_rest_goes_on(
    kind: str, server: EmbeddedServer, tmp_path: Path, *, reads_limit: bool
) -> None:
    url = server.url if reads_limit else server.url.replace("//", "//least:word@")
    await _limit(server)
    async with line_to(kind, url, tmp_path) as (library, line):
        await push_numbers(line, 1)
        with pytest.raises(WrongCall, match="proto-max-bulk-len"):
            await line.push(LARGE)
        await line.push_many(["2", b"3" * LIMIT])
        assert library.waiting == 0
        await asyncio.to_thread(server.stop)
        await push_numbers(line, 4)
        await line.push_many(["5", LARGE, LARGE, "6"])
    await asyncio.to_thread(server.start)
    await _limit(server)
    async with line_to(kind, url, tmp_path) as (library, line):
        await delivered(library)
        await push_numbers(line, 7)
    arrived = [b"1", b"2", b"3" * LIMIT, *numbered(4, 5, 6, 7)]
    assert await bodies(kind, server) == arrived
    with opened(tmp_path) as store, store.transaction():
        letters = [*listing.dead(store)]
        assert [(each.keys, each.outgoing, each.size) for each in letters] == 2 * [(("orders",), True, len(LARGE))]
        assert "proto-max-bulk-len" in letters[0].error
        assert store.requeue(letters[0].number)
    await _limit(server, 2 * LIMIT)
    async with line_to(kind, url, tmp_path) as (library, line):
        await delivered(library)
    assert await bodies(kind, server) == [*arrived, LARGE]


async def _limit(server: EmbeddedServer, size: int = LIMIT) -> None:
    """Let messages have this limit, which the user ``least`` may not read."""
    async with Redis.from_url(server.url) as redis:
        await redis.config_set("proto-max-bulk-len", size)
        await redis.execute_command("ACL", "SETUSER", "least", "on", ">word", "~*", "&*", "+@all", "-config")


async def test_pushes_that_are_cancelled_confuse_nobody(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Lists(server.url, outbox=tmp_path) as lists:
        await push(lists, 1)
        server.stop()
        await push(lists, 2)
        for number in range(3, 23):
            task = asyncio.create_task(push(lists, number))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await push(lists, 23)
        server.start()
        await delivered(lists)
        await push(lists, 24)
        await delivered(lists)
    found = await content(server)
    assert found == sorted({*found})
    assert {1, 2, 23, 24} < {*found} <= {*range(1, 25)}


async def test_a_bug_hangs_nobody(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Lists(server.url, outbox=tmp_path) as lists:
        await push(lists, 1)
        (way,) = lists._fallback._destinations.values()  # type: ignore[union-attr]
        way._send = None  # type: ignore[method-assign]
        for number in (2, 3):
            with pytest.raises(TypeError):
                await push(lists, number)


@pytest.mark.parametrize("way", ["full", "wrong type", "read-only"])
async def test_a_server_that_takes_nothing_for_a_while_is_waited_for(
    kind: str, server: EmbeddedServer, tmp_path: Path, way: str
) -> None:
    async with line_to(kind, server.url, tmp_path) as (library, line), Redis.from_url(server.url) as redis:
        await push_numbers(line, 1)
        if way == "full":
            await redis.config_set("maxmemory", 1)
        elif way == "wrong type":
            await redis.rename(KEYS[kind], "aside")
            await redis.set(KEYS[kind], "x")
        else:
            await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        with capture_logs() as log:
            await push_numbers(line, 2, 3)
        (waiting,) = [each for each in log if each["event"] == "pushes wait on disk"]
        assert way != "wrong type" or KEYS[kind] in waiting["reason"]
        assert library.waiting == 2
        if way == "full":
            await redis.config_set("maxmemory", 0)
        elif way == "wrong type":
            await redis.rename("aside", KEYS[kind])
        else:
            await redis.execute_command("REPLICAOF", "NO", "ONE")
        await delivered(library)
        await push_numbers(line, 4)
    assert await bodies(kind, server) == numbered(1, 2, 3, 4)


async def test_without_async_it_is_a_directory(kind: str, server: EmbeddedServer, tmp_path: Path) -> None:
    opened = sync.Lists if kind == "list" else sync.Bus

    def line_of(library: Any) -> Any:
        if kind == "list":
            return library["orders"]
        queue = library.queue("orders")
        queue.attach(ttl=300)
        return queue

    def work() -> None:
        with opened(server.url, outbox=tmp_path) as library:
            line = line_of(library)
            line.push("1")
            server.stop()
            line.push("2")
            assert library.waiting == 1
            server.start()
            line.push_many(["3"])
        with opened(server.url, outbox=tmp_path) as library:
            line_of(library).push("4")

    await asyncio.to_thread(work)
    async with line_to(kind, server.url, tmp_path) as (async_library, _):
        await delivered(async_library)
    assert await bodies(kind, server) == numbered(1, 2, 3, 4)


async def test_several_who_push_at_once_over_a_link_that_breaks_all_the_time_lose_and_double_nothing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    rng = random.Random(4)
    many = 300

    async def produce(lists: Lists, who: int) -> None:
        for number in range(many):
            await lists["orders"].push(str(who * many + number))
            await asyncio.sleep(rng.random() * 0.002)

    with FaultyProxy(server.port) as proxy:
        async with Lists(proxy.url, outbox=tmp_path) as lists:
            producers = asyncio.gather(*(produce(lists, who) for who in range(5)))
            while not producers.done():
                await asyncio.sleep(rng.random() * 0.03)
                proxy.tear(rng)
            await producers
            proxy.cut()
            await delivered(lists)
    found: list[Any] = await content(server)
    assert sorted(found) == [*range(5 * many)]
    for who in range(5):
        mine = [number for number in found if number // many == who]
        assert mine == sorted(mine)
