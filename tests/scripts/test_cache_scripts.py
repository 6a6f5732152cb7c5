"""The scripts that look for pages, keep and clear them."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

import services.himporter.page
from penstock.core.script import Script

LUA = Path(services.himporter.page.__file__).parent / "lua"
_look, _keep, _clear = (Script.read(LUA / f"{verb}.lua") for verb in ("look", "keep", "clear"))


async def look(redis: "Redis", page: str = "p") -> list[bytes]:
    found: list[bytes] = await _look(redis, page=page, expire=30)
    return found


async def keep(redis: "Redis", looked: list[bytes], page: str = "p", **more: Any) -> Any:
    mark = looked[0].partition(b"\n")[0]
    given = {"place": page, "tags": [], "varies": b"", "content": mark + b"\n{}\nbody", "life": 60, "most": 3, **more}
    return await _keep(redis, pages="pages", page=page, mark=mark, asked=looked[1], **given)


async def test_a_page_that_is_missing_is_marked_and_one_that_is_kept_is_returned(redis: "Redis") -> None:
    content, now = await look(redis)
    assert content == now + b"\n"
    assert 25 < await redis.ttl("p") <= 30
    assert (await look(redis))[0] == content
    assert await keep(redis, [content, now]) == []
    found, later = await look(redis)
    assert found == now + b"\n{}\nbody"
    assert float(later) > float(now)
    assert 55 < await redis.ttl("p") <= 60
    assert 55 < float(await redis.zscore("pages", "p") or 0) - float(now) <= 61
    assert 55 < await redis.ttl("pages") <= 60


async def test_a_page_that_was_cleared_after_it_was_asked_is_not_kept(redis: "Redis") -> None:
    before = await look(redis)
    assert await _clear(redis, pages="pages", cleared=["p", "q"]) == 1
    await keep(redis, before)
    assert await redis.keys() == []
    after = await look(redis)
    await keep(redis, before)
    assert (await look(redis))[0] == after[0]
    await keep(redis, after)
    assert (await look(redis))[0].endswith(b"body")
    assert await _clear(redis, pages="pages", cleared=["p"]) == 1
    assert await redis.keys() == []


async def test_pages_with_a_tag_are_kept_from_the_first_that_was_asked_after_the_tag_was_known(redis: "Redis") -> None:
    first = await look(redis)
    await keep(redis, first, tags=["t", "u"])
    assert (await look(redis))[0] == first[0]
    assert {50 < await redis.ttl(tag) <= 60 for tag in ("t", "u")} == {True}
    await keep(redis, await look(redis), tags=["t", "u"])
    assert (await look(redis))[0].endswith(b"body")
    asked = await look(redis)
    await redis.delete("u")
    await keep(redis, asked, tags=["t", "u"], content=b"1.0\n{}\nold")
    await keep(redis, asked, tags=["t", "u"], content=b"1.0\n{}\nold")
    assert (await look(redis))[0].endswith(b"body")
    await keep(redis, await look(redis), tags=["t", "u"], content=b"1.0\n{}\nnew", life=600)
    assert (await look(redis))[0].endswith(b"new")
    assert 550 < await redis.ttl("t") <= 600
    await redis.set("t", "no time")
    await keep(redis, await look(redis), tags=["t"], content=b"1.0\n{}\nnever")
    assert (await look(redis))[0].endswith(b"new")


async def test_a_page_that_varies_has_a_place_of_its_own_and_goes_with_its_name(redis: "Redis") -> None:
    varies = b'1.0\n{"varies":[]}\n'
    await keep(redis, await look(redis), place="p en", varies=varies)
    marked = await look(redis)
    assert marked[0] == varies
    await keep(redis, marked, place="p de", life=600)
    assert {await redis.get(place) for place in ("p en", "p de")} != {None}
    assert (await look(redis))[0] == varies
    assert 550 < await redis.ttl("p") <= 600
    assert await redis.zrange("pages", 0, -1) == [b"p en", b"p de"]
    await redis.delete("p")
    await keep(redis, marked, place="p fr")
    assert not await redis.exists("p fr")


async def test_pages_that_are_too_many_are_named_those_first_that_end_soonest(redis: "Redis") -> None:
    surplus: list[Any] = []
    for number in range(5):
        page = f"p{number}"
        surplus = await keep(redis, await look(redis, page), page, life=100 - number)
    assert surplus == [b"p4", b"p3"]
    assert await _clear(redis, pages="pages", cleared=surplus) == 2
    assert await redis.zrange("pages", 0, -1) == [b"p2", b"p1", b"p0"]
    await redis.zadd("pages", {f"old{number}": 1 for number in range(250)})
    assert await keep(redis, await look(redis, "p0"), "p0") == []
    assert await redis.zcard("pages") == 3


async def test_a_full_server_keeps_no_more_and_still_clears(redis: "Redis", fill: Any) -> None:
    asked = await look(redis)
    await fill()
    for tags in ([], ["t"]):
        with pytest.raises(ResponseError, match=r"maxmemory|OOM"):
            await keep(redis, asked, tags=tags)
    with pytest.raises(ResponseError, match=r"maxmemory|OOM"):
        await look(redis, "q")
    assert await _clear(redis, pages="pages", cleared=["p"]) == 1
