"""Jobs between Node's hfxbus and ours on three servers, in all four pairings. HB-02, HB-40, HB-41, HB-D16, HB-D17."""

import asyncio
from typing import Any

import pytest

from penstock.jobs.routing import Routes
from tests.jobs.pairs import Pair, finished, send

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
PLACES = Routes(3)


async def places(pair: Pair, pattern: str) -> list[list[str]]:
    """Return the keys of each server."""
    return [sorted(key.decode() for key in await each.keys(pattern)) for each in pair.servers]


async def by_one(
    pair: Pair, stream: str, many: int, *, route: str | None = None, routes: dict[str, int] | None = None
) -> None:
    """Send jobs and have them done by groups of both ends, and rejected ones."""
    shared: dict[str, Any] = {"routes": routes} if routes else {}
    async with (
        pair.consumer(stream, "g", route=route or stream, concurrency=4, **shared),
        pair.beside(stream, "h", route=route or stream, concurrency=4, **shared),
        pair.producer(stream, **shared, **({"route": route} if route else {})) as producer,
    ):
        for number in range(many):
            await send(producer, f"J{number}", {"n": number} if number % 5 else {"fail": "no"}, "g", "h")
        found = await finished(producer, *(f"J{number}" for number in range(many)))
        for number in range(many):
            groups, values = found[f"J{number}"]
            if number % 5:
                assert (groups, values) == ({"g": "done", "h": "done"}, {"out": {"echo": {"n": number}}})
            else:
                assert [groups[group]["message"] for group in "gh"] == ["no", "no"]


async def test_a_stream_is_where_its_name_says(pair_of_three: Pair) -> None:
    """HB-D16: consumers name the stream as their route, since hfxbus takes their group by default."""
    for stream, place in {"concat": 0, "日本": 1, "billing": 2}.items():
        await by_one(pair_of_three, stream, 5)
        assert [f"hfxbus:str:{stream}" in keys for keys in await places(pair_of_three, "hfxbus:str:*")] == [
            each == place for each in range(3)
        ]


async def test_a_stream_is_where_its_route_says_and_completions_are_where_its_name_says(pair_of_three: Pair) -> None:
    await by_one(pair_of_three, "concat", 15, route="a")  # published on the first server, read from the third
    assert await places(pair_of_three, "hfxbus:str:*") == [[], [], ["hfxbus:str:concat"]]
    values = [place for place, keys in enumerate(await places(pair_of_three, "hfxbus:job:J*:in")) for _ in keys]
    assert values == sorted(PLACES.place(f"J{number}") for number in range(15))


async def test_static_routes_have_a_place_of_their_own(pair_of_three: Pair) -> None:
    routes = {"concat": 2, "J1": 0, "J2": 1}
    await by_one(pair_of_three, "concat", 5, routes=routes)
    assert await places(pair_of_three, "hfxbus:str:*") == [[], [], ["hfxbus:str:concat"]]
    values = await places(pair_of_three, "hfxbus:job:*:in")
    assert "hfxbus:job:J1:in" in values[0]
    assert "hfxbus:job:J2:in" in values[1]


async def test_distributed_jobs_are_where_their_ids_say_and_all_are_done(pair_of_three: Pair) -> None:
    """HB-D17: also with a concurrency of 1."""
    many = 30
    async with (
        pair_of_three.consumer("s", "g", route="*", concurrency=1),
        pair_of_three.beside("s", "h", route="*", concurrency=8),
        pair_of_three.producer("s", route="*") as producer,
    ):
        for number in range(many):
            await send(producer, f"J{number}", {"n": number} if number % 5 else {"fail": "no"}, "g", "h")
        async with asyncio.timeout(60):
            found = await finished(producer, *(f"J{number}" for number in range(many)))
        for number in range(many):
            groups, _ = found[f"J{number}"]
            assert [each if number % 5 else each["message"] for each in groups.values()] == [
                "done" if number % 5 else "no"
            ] * 2
    for place, server in enumerate(pair_of_three.servers):
        ids = [fields[b"job"].decode() for _, fields in await server.xrange("hfxbus:str:s")]
        assert ids == [f"J{number}" for number in range(many) if PLACES.place(f"J{number}") == place]
        assert ids
