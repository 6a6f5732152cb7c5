"""What hosts of webhooks that are slow, down, many or hostile do to others."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from services.hqueue import webhooks
from services.hqueue.webhooks import BUSY_SECONDS, MAX_IN_FLIGHT, MAX_TURN, Host, Webhooks
from tests.support.harness import PATIENCE

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Receiver:
    """Answers each webhook with what ``answer`` returns for its number, from 1, once ``may_answer`` is set."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self.heads: list[bytes] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.port = 0
        self._answer = answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).lower())
                answer = self._answer(len(self.heads))
                await reader.readexactly(2)
                await self.may_answer.wait()
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(answer: Callable[[int], bytes] = lambda _: OK) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


@asynccontextmanager
async def posting(*hosts: str) -> AsyncIterator[Webhooks]:
    found = Webhooks(hosts, ["secret"], PATIENCE)
    try:
        yield found
    finally:
        await found.close()


async def outcome(hooks: Webhooks, url: str) -> str:
    return (await hooks.post(url, "ann", "1.0", b"{}")).outcome


def with_cookie(number: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nset-cookie: c%d=%b; path=/\r\ncontent-length: 0\r\n\r\n" % (number, b"x" * 2_000)


async def test_cookies_of_a_receiver_go_to_nobody() -> None:
    async with receiving(with_cookie) as bad, receiving() as other, posting(bad.url, other.url) as hooks:
        for receiver in (bad, bad, other):
            assert await outcome(hooks, receiver.url) == "sent"
        assert not any(b"cookie:" in head for head in bad.heads + other.heads)


async def test_the_log_says_why_a_webhook_is_not_accepted_and_names_its_host_once_a_minute() -> None:
    refused = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
    nobody = "http://127.0.0.1:1"
    async with receiving(lambda _: refused) as receiver, posting(receiver.url, nobody) as hooks:
        with capture_logs() as log:
            for url in (receiver.url, receiver.url, nobody):
                assert await outcome(hooks, url) == "failed"
            assert await outcome(hooks, "http://elsewhere/") == "passed", "another instance may post there"
    assert [(each["event"], each["host"]) for each in log] == [
        ("webhook refused", receiver.url), ("webhook failed", nobody), ("webhook refused", "http://elsewhere"),
    ]  # fmt: skip
    assert log[0]["status"] == 401
    assert log[1]["reason"] == "connection refused"
    assert "webhookHosts" in log[2]["reason"]


async def test_hosts_that_are_down_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MAX_HOSTS", 2)
    down = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    async with receiving() as good, posting(*down, good.url) as hooks:
        assert [await outcome(hooks, url) for url in down] == ["failed"] * 3
        assert await outcome(hooks, good.url) == "sent"


async def test_webhooks_that_succeed_after_one_that_failed_are_all_sent() -> None:
    """Three were on their way to one host: the first to be answered failed, and the others did not."""
    failure = b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n"
    async with receiving(lambda number: failure if number == 1 else OK) as receiver, posting(receiver.url) as hooks:
        receiver.may_answer.clear()
        ways = []
        for _ in range(3):
            ways.append(asyncio.create_task(outcome(hooks, receiver.url)))
            while len(receiver.heads) < len(ways):
                await asyncio.sleep(0.01)
        receiver.may_answer.set()
        assert sorted(await asyncio.gather(*ways)) == ["failed", "sent", "sent"]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """Stop the clock, and return its time."""
    monkeypatch.setattr(webhooks, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    return 1_000.0


def test_those_that_wait_for_a_slow_host_ask_again_one_after_the_other(now: float) -> None:
    host = Host(in_flight=MAX_IN_FLIGHT, seconds=9.0)
    waits = [host.next_turn() for _ in range(100)]
    assert waits[0] == pytest.approx(BUSY_SECONDS + 0.9)
    assert waits[1] - waits[0] == pytest.approx(0.9)
    assert max(waits) == pytest.approx(BUSY_SECONDS + MAX_TURN)


def test_nobody_asks_a_host_that_is_down_before_its_rest_is_over(now: float) -> None:
    host = Host(failures=3, rests_until=now + 20, seconds=0.002)
    waits = [host.next_turn() for _ in range(1_000)]
    assert min(waits) == pytest.approx(20.002)
    assert max(waits) == pytest.approx(22)
