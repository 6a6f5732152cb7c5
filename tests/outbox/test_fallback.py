"""``penstock.lists`` with an outbox: pushes wait on disk while the server is away, and arrive in order, once."""

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
from penstock.lists import Lists
from penstock.outbox import DiskFull, Outbox, listing
from penstock.outbox.spool import Spool
from penstock.testing.server import EmbeddedServer
from tests.outbox.outboxes import opened
from tests.reliability.command_proxy import CommandFault, CommandProxy, Kind
from tests.reliability.soak.links import FaultyProxy
from tests.support.harness import eventually

QUICK = [kind for kind in Kind if not kind.swallows]
LEDGER = "orders:from:*"
LIMIT = 1 << 20
LARGE = b"x" * (LIMIT + 1)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(aof=True) as started:
        yield started


@asynccontextmanager
async def lists_to(url: str, outbox: Path | Outbox) -> AsyncIterator[Lists]:
    async with Lists(url, outbox=outbox) as lists:
        yield lists


async def content(server: EmbeddedServer, name: str = "orders") -> list[int]:
    """Return what the list holds, oldest first."""
    async with Redis.from_url(server.url) as redis:
        return [int(each) for each in (await redis.lrange(name, 0, -1))[::-1]]


async def push(lists: Lists, *numbers: int, name: str = "orders") -> None:
    for number in numbers:
        await lists[name].push(str(number))


async def delivered(lists: Lists) -> None:
    await eventually(lambda: not lists.waiting)


async def test_while_the_server_is_away_pushes_go_to_disk_and_then_to_the_list_in_order(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with lists_to(server.url, tmp_path) as lists:
        with capture_logs() as log:
            await push(lists, 1, 2)
            assert lists.waiting == 0
            server.stop()
            await push(lists, 3, 4)
            assert await lists["orders"].push_many(["5", "6"]) == 2
            assert lists.waiting == 4
            server.start()
            await push(lists, 7)
            await delivered(lists)
            await push(lists, 8)
        assert await content(server) == [*range(1, 9)]
        assert [line["event"] for line in log] == ["pushes wait on disk", "pushes reach the server again"]


async def test_what_waits_is_delivered_by_the_next_program_that_uses_the_outbox(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with lists_to(server.url, tmp_path) as lists:
        await push(lists, 1)
        server.stop()
        await push(lists, 2, 3)
    async with lists_to(server.url, tmp_path) as lists:
        assert lists.waiting == 2
        await push(lists, 4)
    server.start()
    async with lists_to(server.url, tmp_path) as lists:
        assert lists.waiting == 3
        await delivered(lists)
        assert await content(server) == [1, 2, 3, 4], "nothing was pushed by this program"
        server.stop()
        await push(lists, 5)
        server.start()
    async with lists_to(server.url, tmp_path) as lists:
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

    async with lists_to(server.url, tmp_path) as lists:
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
    async with lists_to(server.url, tmp_path) as lists:
        await push(lists, *range(5))
    server.stop()
    async with lists_to(server.url, tmp_path) as lists:
        await push(lists, 5, 6)
        server.start()
        await delivered(lists)
    assert await content(server) == [*range(7)]


@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize("kind", QUICK, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("word", ["EVALSHA", "MULTI"])
async def test_a_push_that_breaks_at_any_byte_arrives_once(
    server: EmbeddedServer, tmp_path: Path, word: str, kind: Kind, nth: int
) -> None:
    """A MULTI is of a batch too large for a script, and of the first contact."""
    large = "x" * 70_000
    with CommandProxy(server.port, CommandFault(kind, word, nth)) as proxy:
        async with lists_to(proxy.url, tmp_path) as lists:
            await push(lists, 1, 2)
            await lists["orders"].push_many(["3", large])
            await push(lists, 4)
            await lists["orders"].push_many(["5", large])
            await delivered(lists)
    assert proxy.met
    async with Redis.from_url(server.url) as redis:
        found = (await redis.lrange("orders", 0, -1))[::-1]
    assert found == [b"1", b"2", b"3", large.encode(), b"4", b"5", large.encode()]


async def test_what_broke_without_a_reply_is_known_after_the_program_has_ended(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    for kind in (Kind.CUT_BEFORE, Kind.TORN_COMMAND, Kind.CUT_BEFORE_REPLY, Kind.TORN_REPLY):
        with CommandProxy(server.port, CommandFault(kind, "EVALSHA", 2)) as proxy:
            directory = tmp_path / kind.name
            async with Outbox(datadir=directory) as outbox, lists_to(proxy.url, outbox) as lists:
                await push(lists, 1, 2)
                server_is_away = asyncio.Event()
                for way in lists._fallback._destinations.values():  # type: ignore[union-attr]
                    way._meet = server_is_away.wait  # type: ignore[method-assign]
                await push(lists, 3, 4)
                assert lists.waiting == 2
            async with lists_to(proxy.url, directory) as lists:
                await delivered(lists)
                await push(lists, 5)
        async with Redis.from_url(server.url) as redis:
            assert await content(server) == [1, 2, 3, 4, 5], kind
            await redis.flushall()


async def test_a_server_that_has_lost_everything_gets_what_waits(server: EmbeddedServer, tmp_path: Path) -> None:
    async with lists_to(server.url, tmp_path) as lists:
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
    async with lists_to(server.url, tmp_path / "one") as lists:
        await push(lists, 0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    async with lists_to(server.url, tmp_path / "one") as one, lists_to(server.url, tmp_path / "two") as two:
        for number in range(1, 21):
            await push(two if number % 3 else one, number)
        await delivered(one)
        await delivered(two)
    assert sorted(await content(server)) == [*range(21)]


async def test_lists_and_servers_do_not_mix(server: EmbeddedServer, tmp_path: Path) -> None:
    async with EmbeddedServer() as other, Outbox(datadir=tmp_path) as outbox:
        async with lists_to(server.url, outbox) as one, lists_to(other.url, outbox) as two:
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
    async with lists_to(one, tmp_path) as lists:
        await push(lists, 1)
        server.stop()
        await push(lists, 2, 3)
    server.start()
    async with lists_to(other, tmp_path) as lists:
        await push(lists, 4, 5, 6)
        await delivered(lists)
    async with lists_to(one, tmp_path) as lists:
        await delivered(lists)
    assert sorted(await content(server))[-5:] == [2, 3, 4, 5, 6]


async def test_a_full_disk_refuses_and_says_what_may_have_arrived(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Outbox(datadir=tmp_path) as outbox, lists_to(server.url, outbox) as lists:
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


async def test_what_is_too_large_and_waits_is_a_dead_letter_and_the_rest_goes_on(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with lists_to(server.url, tmp_path) as lists:
        await push(lists, 1)
        server.stop()
        await push(lists, 2)
        await lists["orders"].push_many(["3", LARGE, LARGE, "4"])
        await push(lists, 5)
    server.start()
    async with Redis.from_url(server.url) as redis:
        await redis.config_set("proto-max-bulk-len", LIMIT)
        async with lists_to(server.url, tmp_path) as lists:
            await delivered(lists)
            await push(lists, 6)
            assert await content(server) == [1, 2, 3, 4, 5, 6]
        with opened(tmp_path) as store, store.transaction():
            letters = [*listing.dead(store)]
            assert [(each.keys, each.outgoing, each.size) for each in letters] == 2 * [(("orders",), True, len(LARGE))]
            assert "proto-max-bulk-len" in letters[0].error
            assert store.requeue(letters[0].number)
        await redis.config_set("proto-max-bulk-len", 2 * LIMIT)
        async with lists_to(server.url, tmp_path) as lists:
            await push(lists, 7)
            await delivered(lists)
        assert (await redis.lrange("orders", 0, -1))[:3] == [b"7", LARGE, b"6"]


async def test_a_user_who_may_not_read_the_limit_learns_it_from_the_server(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Redis.from_url(server.url) as redis:
        await redis.config_set("proto-max-bulk-len", LIMIT)
        await redis.execute_command("ACL", "SETUSER", "least", "on", ">word", "~*", "&*", "+@all", "-config")
    async with lists_to(server.url.replace("//", "//least:word@"), tmp_path) as lists:
        await push(lists, 1)
        with pytest.raises(WrongCall, match="proto-max-bulk-len"):
            await lists["orders"].push(LARGE)
        await lists["orders"].push_many(["2", b"3" * LIMIT])
        await push(lists, 4)
        assert lists.waiting == 0
    async with Redis.from_url(server.url) as redis:
        assert await redis.lrange("orders", 0, -1) == [b"4", b"3" * LIMIT, b"2", b"1"]


async def test_pushes_that_are_cancelled_confuse_nobody(server: EmbeddedServer, tmp_path: Path) -> None:
    async with lists_to(server.url, tmp_path) as lists:
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
    async with lists_to(server.url, tmp_path) as lists:
        await push(lists, 1)
        (way,) = lists._fallback._destinations.values()  # type: ignore[union-attr]
        way._send = None  # type: ignore[method-assign]
        for number in (2, 3):
            with pytest.raises(TypeError):
                await push(lists, number)


async def test_a_key_of_another_type_is_waited_for(server: EmbeddedServer, tmp_path: Path) -> None:
    async with lists_to(server.url, tmp_path) as lists, Redis.from_url(server.url) as redis:
        await redis.set("orders", "x")
        with capture_logs() as log:
            await push(lists, 1)
        assert "orders" in log[0]["reason"]
        await redis.delete("orders")
        await push(lists, 2)
        await delivered(lists)
    assert await content(server) == [1, 2]


async def test_without_async_it_is_a_directory(server: EmbeddedServer, tmp_path: Path) -> None:
    def work() -> None:
        with sync.Lists(server.url, outbox=tmp_path) as lists:
            lists["orders"].push("1")
            server.stop()
            lists["orders"].push("2")
            server.start()
            lists["orders"].push("3")
        with sync.Lists(server.url, outbox=tmp_path) as lists:
            lists["orders"].push("4")

    await asyncio.to_thread(work)
    async with lists_to(server.url, tmp_path) as lists:
        await delivered(lists)
    assert await content(server) == [1, 2, 3, 4]


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
        async with lists_to(proxy.url, tmp_path) as lists:
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
