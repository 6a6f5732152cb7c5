"""The socket of the service outbox, in the process of a test: what programs say, and what they are answered."""

import asyncio
import base64
import json
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.base.ports import free_port
from penstock.outbox import Outbox
from services.outbox.lines import MAX_LINE
from services.outbox.listening import CannotListen
from services.outbox.service import CannotOpen, Site
from services.outbox.settings import Settings
from tests.outbox.outboxes import stored
from tests.support.harness import eventually

ODD = [b"", b"\0", bytes(range(256)), b"\xff\xfe\xc3\x28", b"a\r\nb\n", "Größe ✓ 🌧".encode(), b'{"text":"x"}', b"x"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


@asynccontextmanager
async def site(path: Path, **settings: Any) -> AsyncIterator[Outbox]:
    """Yield the outbox of a site without a server; it gets its own messages with the key rain."""
    address = f"127.0.0.1:{free_port()}"
    given = {"subscribe": [f"rain@{address}"], "bind": address, "datadir": str(path.parent / "datadir"), **settings}
    made: Any = Settings(socket=str(path), **given)
    async with Site().lifespan(made) as outbox:
        if made.subscribe:
            await eventually(lambda: outbox.subscribers("rain"))
        yield outbox


class Program:
    """A program that is connected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, *lines: object) -> None:
        """Write ``lines`` in one go; what is not bytes as JSON."""
        self._writer.write(
            b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
        )

    async def hear(self) -> Any:
        """Return the next line; None once the service has closed the connection."""
        async with asyncio.timeout(60):
            line = await self._reader.readline()
        return json.loads(line) if line else None

    async def leave(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


Connect = Callable[..., Awaitable[Program]]


@pytest.fixture
async def connect(path: Path) -> AsyncIterator[Connect]:
    """Yield a function that connects a program, which says some lines at once."""
    programs = list[Program]()

    async def connected(*first: object) -> Program:
        programs.append(Program(*await asyncio.open_unix_connection(str(path), limit=2 * MAX_LINE)))
        programs[-1].say(*first)
        return programs[-1]

    yield connected
    for program in programs:
        await program.leave()


def rain(text: str, **more: Any) -> dict[str, Any]:
    return {"publish": "rain", "text": text, **more}


def data_of(told: dict[str, Any]) -> bytes:
    """Return the data of a message that was handed over."""
    return base64.b64decode(told["base64"]) if "base64" in told else str(told["text"]).encode()


async def taken(program: Program, count: int) -> list[bytes]:
    """Return the data of the next messages, each of which is finished at once."""
    found = []
    for _ in range(count):
        told = await program.hear()
        program.say({"done": told["message"]})
        found.append(data_of(told))
    return found


async def test_any_bytes_arrive_unchanged_and_in_order(path: Path, connect: Connect) -> None:
    async with site(path) as outbox:
        publisher = await connect()
        publisher.say(*({"publish": ["rain", "snow"], "base64": base64.b64encode(data).decode()} for data in ODD))
        publisher.say(rain("Größe ✓ 🌧"))
        assert [await publisher.hear() for _ in range(9)] == [{"stored": number} for number in range(1, 10)]
        taker = await connect({"take": 1})
        assert await taken(taker, 9) == [*ODD, "Größe ✓ 🌧".encode()]
        await outbox.drain()


async def test_the_largest_message_passes_and_a_larger_one_is_refused(path: Path, connect: Connect) -> None:
    async with site(path) as outbox:
        most = outbox.max_bytes
        publisher = await connect(rain("x" * most), rain("x" * (most + 1)), rain("behind"))
        assert await publisher.hear() == {"stored": 1}
        assert await publisher.hear() == {"refused": 2, "reason": "tooLarge"}
        assert await publisher.hear() is None
        taker = await connect({"take": 5})
        assert await taken(taker, 1) == [b"x" * most]
        await outbox.drain()


async def test_only_what_is_finished_is_removed(path: Path, connect: Connect) -> None:
    """What a program leaves goes to the next one, the oldest first, also after a restart."""
    async with site(path) as outbox:
        publisher = await connect(*(rain(str(number)) for number in range(6)))
        for _ in range(6):
            await publisher.hear()
        one = await connect({"take": 3})
        assert [data_of(await one.hear()) for _ in range(3)] == [b"0", b"1", b"2"]
        one.say({"done": 2})
        assert data_of(await one.hear()) == b"3"
        one.say({"done": 99})
        assert await one.hear() == {"error": "message 99 is not in hand"}
        assert await one.hear() is None
        two = await connect({"take": 1})
        assert await taken(two, 2) == [b"0", b"2"]
        assert data_of(await two.hear()) == b"3"
        await eventually(lambda: stored(outbox.datadir, lambda store: store.counts().incoming) == 3)
    async with site(path) as outbox:
        assert sorted(await taken(await connect({"take": 9}), 3)) == [b"3", b"4", b"5"]
        await eventually(lambda: stored(outbox.datadir, lambda store: store.counts().incoming) == 0)


async def test_what_failed_is_handed_over_again_and_the_rest_goes_on(path: Path, connect: Connect) -> None:
    async with site(path) as outbox:
        publisher = await connect(rain("bad"), rain("good"))
        assert [await publisher.hear(), await publisher.hear()] == [{"stored": 1}, {"stored": 2}]
        taker = await connect({"take": 1})
        told = await taker.hear()
        taker.say({"failed": told["message"], "reason": "no paper"})
        assert (told["keys"], told["attempts"], told["text"]) == (["rain"], 1, "bad")
        assert await taken(taker, 1) == [b"good"]
        again = await taker.hear()
        assert (again["id"], again["attempts"], again["text"]) == (told["id"], 2, "bad")
        taker.say({"done": again["message"]})
        await outbox.drain()


async def test_a_source_publishes_each_number_once(path: Path, connect: Connect) -> None:
    async with site(path) as outbox:
        first = await connect({"source": "till"}, rain("a", number=1), rain("b", number=5))
        assert [await first.hear() for _ in range(3)] == [{"source": "till", "last": 0}, {"stored": 1}, {"stored": 5}]
        again = await connect({"source": "till"}, rain("b", number=5), rain("c", number=6), rain("c", number=6))
        assert await again.hear() == {"source": "till", "last": 5}
        assert [await again.hear() for _ in range(3)] == [{"stored": 5}, {"stored": 6}, {"stored": 6}]
        other = await connect({"source": "other"}, rain("d", number=1))
        assert [await other.hear(), await other.hear()] == [{"source": "other", "last": 0}, {"stored": 1}]
        first.say(rain("late", number=7))
        assert await first.hear() == {"refused": 7, "reason": "another connection publishes as this source"}
        assert await first.hear() is None
        assert await taken(await connect({"take": 4}), 4) == [b"a", b"b", b"c", b"d"]
        await outbox.drain()


async def test_the_last_number_survives_a_restart_and_what_was_refused_is_not_counted(
    path: Path, connect: Connect
) -> None:
    async with site(path, unsubscribed="dead"):
        program = await connect({"source": "till"}, rain("a", number=1))
        program.say({"publish": "snow", "text": "b", "number": 2}, rain("c", number=3))
        assert [await program.hear(), await program.hear()] == [{"source": "till", "last": 0}, {"stored": 1}]
        assert await program.hear() == {"refused": 2, "reason": "noSubscriber"}
        assert await program.hear() is None
    async with site(path, unsubscribed="drop"):
        program = await connect({"source": "till"}, {"publish": "snow", "text": "b", "number": 2})
        assert [await program.hear(), await program.hear()] == [{"source": "till", "last": 1}, {"stored": 2}]


async def test_a_message_without_a_subscriber_waits_for_one(path: Path, connect: Connect) -> None:
    async with site(path) as outbox:
        program = await connect(rain("first"), {"publish": "snow", "text": "flake"}, rain("behind"))
        assert await program.hear() == {"stored": 1}
        await asyncio.sleep(0.3)  # timing: nothing may happen
        assert stored(outbox.datadir, lambda store: store.counts().incoming) <= 1
        await outbox.subscribe(outbox.advertise, "snow")
        assert [await program.hear(), await program.hear()] == [{"stored": 2}, {"stored": 3}]
        assert await taken(await connect({"take": 3}), 3) == [b"first", b"flake", b"behind"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"rain", "expected a JSON object a line, found 'rain'"),
        (b"[" * 100_000, "expected a JSON object a line"),
        (b"\xff{}", "expected a JSON object a line"),
        ({}, "expected publish or source, or take first"),
        ({"done": 1}, "expected publish or source, or take first on a connection; found 'done'"),
        ({"publish": ["rain", ""], "text": ""}, "publish: expected a key"),
        ({"publish": "rain"}, "either as text or as base64"),
        ({"publish": "rain", "text": "a", "base64": ""}, "either as text or as base64"),
        ({"publish": "rain", "base64": "a"}, "base64: this is none"),
        (b'{"publish":"rain","text":"\\ud800"}', "half of a surrogate pair"),
        ({"source": ""}, "source: expected a text of 1 to 200 characters"),
        ({"take": 0}, "take: expected a whole number from 1 to 500"),
        ({"take": True}, "take: expected a whole number from 1 to 500"),
        (b"x" * (MAX_LINE + 1), "a line has more than 33,554,432 bytes"),
    ],
)
async def test_what_is_not_understood_ends_the_connection(
    path: Path, connect: Connect, line: object, words: str
) -> None:
    async with site(path, subscribe=[]):
        program = await connect(line)
        assert words in (await program.hear())["error"]
        assert await program.hear() is None


async def test_what_waits_for_a_subscriber_is_not_published_once_its_program_has_gone(
    path: Path, connect: Connect
) -> None:
    async with site(path, subscribe=[]) as outbox:
        for text in ("gone", "gone, too"):
            await (await connect(rain(text))).leave()
        stays = await connect({"source": "till"}, rain("stays", number=1))
        assert await stays.hear() == {"source": "till", "last": 0}
        stays._writer.write_eof()
        await eventually(lambda: sum("Programs.serve" in repr(each) for each in asyncio.all_tasks()) == 1)
        await outbox.subscribe(outbox.advertise, "rain")
        assert await stays.hear() == {"stored": 1}
        assert await taken(await connect({"take": 10}), 1) == [b"stays"]
        await outbox.drain()


async def test_a_program_answers_only_for_what_it_has_in_hand(path: Path, connect: Connect) -> None:
    async with site(path):
        taker = await connect({"take": 1}, {"done": 1})
        assert await taker.hear() == {"error": "message 1 is not in hand"}
        publisher = await connect({"source": "till"}, rain("no number"))
        assert await publisher.hear() == {"source": "till", "last": 0}
        assert "number: expected a whole number" in (await publisher.hear())["error"]


async def test_nothing_is_to_be_taken_where_it_goes_to_a_list(path: Path, connect: Connect) -> None:
    lists = {"redis": "redis://nowhere", "redis_namespace": "site", "out": "out"}
    async with site(path, subscribe=[], **lists):
        taker = await connect({"take": 1})
        assert await taker.hear() == {"error": "take: what comes goes to the list that out names"}


async def test_only_the_user_of_the_service_may_connect(path: Path, connect: Connect) -> None:
    async with site(path, subscribe=[]):
        assert (await asyncio.to_thread(path.stat)).st_mode == stat.S_IFSOCK | 0o600
    assert not await asyncio.to_thread(path.exists)


async def test_a_datadir_that_cannot_be_made_is_named(path: Path) -> None:
    await asyncio.to_thread(path.write_text, "a file")
    with pytest.raises(CannotOpen, match=rf"datadir {path}/datadir cannot be used: Not a directory"):
        async with site(path.parent / "other", subscribe=[], datadir=f"{path}/datadir"):
            pass


async def test_a_socket_that_a_dead_process_left_is_replaced_and_no_other(path: Path, connect: Connect) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with site(path, subscribe=[]):
        with pytest.raises(CannotListen, match="another process listens at"):
            async with site(path, subscribe=[], datadir=str(path.parent / "other")):
                pass
        assert await (await connect({"source": "till"})).hear() == {"source": "till", "last": 0}
    await asyncio.to_thread(path.write_text, "a file of the user's")
    with pytest.raises(CannotListen, match="is no socket"):
        async with site(path, subscribe=[]):
            pass
    assert await asyncio.to_thread(path.read_text) == "a file of the user's"
    with pytest.raises(CannotListen, match="cannot be used: No such file or directory"):
        async with site(path.parent / "none" / "socket", subscribe=[], datadir=str(path.parent / "datadir")):
            pass
