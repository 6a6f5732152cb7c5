"""Reads by vpush past its scripts while it settles."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from redis.asyncio import Redis

from common.context import Context
from penstock.core.read_size import MIN_SMALL_MESSAGES, Sizes
from penstock.testing.server import EmbeddedServer
from services.vpush.local_source import LocalSource
from services.vpush.settings import Settings
from services.vpush.window import SendWindow
from tests.support.in_process import context_of
from tests.support.servers import KINDS, started
from tests.support.vpush import KEYS, made

BATCH = 200
BYTES = 10_000
Fill = Callable[[], Awaitable[object]]


class CountingSource(LocalSource):
    """A local source that counts reads past the script, successful (``read``) or not (``vain``)."""

    read = vain = 0
    messages_read = 0
    """Messages read past the script or by it."""

    @property
    def settling(self) -> Context[Settings]:
        return self._settling

    async def _read(self, first: int, many: int) -> list[bytes]:
        messages = await super()._read(first, many)
        self.read, self.vain = self.read + bool(messages), self.vain + (not messages)
        self.messages_read += len(messages)
        return messages

    def _taken(self, first: int, found: tuple[list[bytes], int] | None) -> list[bytes]:
        messages = super()._taken(first, found)
        self.messages_read += len(messages)
        return messages


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    with started(request.param) as server:
        yield server


@pytest.fixture
async def here(redis: Redis) -> AsyncIterator[CountingSource]:
    """Yield a local source that holds the lease and has seen many small messages."""
    context = context_of(redis, made(batch=BATCH, batch_bytes=BYTES))
    context.token = 7
    await redis.hset(KEYS.lease, "token", 7)
    reading = CountingSource(context, SendWindow())
    await reading.begin(-1)
    reading.line.sizes.note(MIN_SMALL_MESSAGES, 3)
    yield reading
    await context.reset()


async def test_a_read_past_the_script_waits_for_the_settling_and_reads_the_right_positions(
    redis: Redis, here: CountingSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [b"%d" % number for number in range(3 * BATCH)]
    await redis.lpush("in", *messages)
    assert await here.take(1) == messages[:BATCH]
    settling_run, done, go_on = here.settling.run, asyncio.Event(), asyncio.Event()

    async def answers_late(*script: Any, **named: Any) -> Any:
        settled = await settling_run(*script, **named)
        done.set()
        await go_on.wait()
        return settled

    monkeypatch.setattr(here.settling, "run", answers_late)
    settling = asyncio.create_task(here.settle(BATCH, []))
    await done.wait()  # settled by the server; the reply is held back
    taking = asyncio.create_task(here.take(BATCH + 1))
    await asyncio.wait({taking}, timeout=0.1)  # timing: time to read wrongly
    go_on.set()
    assert await taking == messages[BATCH : 2 * BATCH]
    await settling
    assert await here.take(2 * BATCH + 1) == messages[2 * BATCH :]
    assert (here.read, here.vain) == (2, 0)


async def taken(here: CountingSource, count: int) -> list[list[bytes]]:
    """Take batches until they have ``count`` messages; return them."""
    batches: list[list[bytes]] = []
    while (done := sum(map(len, batches))) < count:
        batches.append(await here.take(done + 1))
    return batches


async def test_while_the_server_is_full_all_goes_through_the_script(
    redis: Redis, here: CountingSource, fill: Fill
) -> None:
    messages = [b"%d" % number for number in range(3 * BATCH)]
    await redis.lpush("in", *messages)
    await fill()
    assert await taken(here, len(messages)) == [messages[first : first + BATCH] for first in range(0, 600, BATCH)]
    assert here.read + here.vain <= 2  # no further transactions after a refused one


async def test_large_messages_are_read_alone_past_the_script_until_a_small_one_comes(
    redis: Redis, here: CountingSource
) -> None:
    here.line.sizes = Sizes()
    large = [b"%d" % number * BYTES for number in range(1, 10)]
    messages = [b"small", *large, b"small again", *large, b"the last"]
    await redis.lpush("in", *messages)
    batches = await taken(here, len(messages))
    assert [*chain(*batches)] == messages
    assert [len(batch) for batch in batches[1:9]] == [1] * 8
    assert here.read >= 14
    assert here.vain == 0


async def test_what_is_larger_than_a_batch_is_kept_and_not_read_again(redis: Redis, here: CountingSource) -> None:
    """Large messages between small ones, of which the script checks random ones."""
    messages = [b"x"] * 250 + [b"y" * 9_000] * 5 + [b"z"] * 200
    await redis.lpush("in", *messages)
    batches = await taken(here, len(messages))
    assert [*chain(*batches)] == messages
    assert all(sum(map(len, batch[:-1])) < BYTES for batch in batches)
    assert here.messages_read == len(messages)
