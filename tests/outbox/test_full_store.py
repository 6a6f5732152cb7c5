"""A store with as many bytes as it may have."""

import asyncio
from pathlib import Path

from penstock.outbox.store import Store
from tests.outbox.outboxes import Got, outbox, stored
from tests.support.harness import eventually

MOST = 500_000


async def test_two_that_were_apart_and_both_have_more_than_store_bytes_for_each_other_drain(tmp_path: Path) -> None:
    texts = [f"{number}".ljust(10_000) for number in range(100)]
    addresses = list[str]()
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b:
        addresses += [a.advertise, b.advertise]
    for name, to in (("a", addresses[1]), ("b", addresses[0])):
        async with outbox(tmp_path / name, []) as alone:
            await asyncio.gather(*(alone.send("x", text, to) for text in texts))
        assert stored(tmp_path / name, lambda store: store.size) > MOST
    a, b = (outbox(tmp_path / name, at, store_bytes=MOST) for name, at in zip("ab", addresses, strict=True))
    async with a, b:
        of_a, of_b = Got(), Got()
        a.every("x", of_a)
        b.every("x", of_b)
        await eventually(lambda: min(len(of_a.messages), len(of_b.messages)) == len(texts))
        assert sorted(of_a.texts) == sorted(of_b.texts) == sorted(texts)


async def test_what_waits_for_others_does_not_count_as_of_peers(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b:
        await asyncio.gather(*(b.send("x", "y" * 10_000, "127.0.0.1:1") for _ in range(50)))
        await a.send("x", "z" * 10_000, b.advertise)
        await a.drain()
        size = stored(b.datadir, Store.size_of_peers)
        assert 10_000 < size < 25_000
