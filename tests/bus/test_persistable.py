"""Objects whose fields are kept: BQ-50 to BQ-53."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import pydantic.dataclasses
import pytest
from pydantic import BaseModel, Field, SecretStr, model_validator
from redis.asyncio import Redis

from penstock.base.errors import Unreadable, WrongCall, WrongType
from penstock.bus import Bus
from tests.bus.given import calls
from tests.support.harness import eventually

KEY = "bus:persisted:obj"


@dataclass
class Part:
    size: float = 1.5


@dataclass
class Thing:
    name: str = "a"
    parts: list[Part] = field(default_factory=list)
    tags: dict[str, list[int]] = field(default_factory=dict)
    note: str | None = None


class Model(BaseModel):
    name: str = "a"
    inner: dict[str, list[int]] = {}


class Plain:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


async def test_BQ_50_only_the_named_fields_are_kept(bus: Bus, redis: "Redis") -> None:
    await bus.persistable("obj", Plain(foo="hello", bar=1, hidden="x"), ["foo", "bar", "missing"]).save()
    assert await redis.hgetall(KEY) == {b"foo": b'"hello"', b"bar": b"1"}
    with pytest.raises(WrongCall, match="fields"):
        bus.persistable("obj", Plain(foo=1))


@pytest.mark.parametrize(
    ("value", "empty"),
    [
        (Thing("ü\0", [Part(0.1), Part(2)], {"k": [1]}, "n"), Thing()),
        (Model(name="ü", inner={"a": [1, 2]}), Model()),
    ],
    ids=["dataclass", "model"],
)
async def test_BQ_52_what_was_saved_is_loaded_with_its_types(bus: Bus, redis_url: str, value: Any, empty: Any) -> None:
    assert await bus.persistable("obj", empty).load() is False
    assert await bus.persistable("obj", value).save()
    async with Bus(redis_url) as second:
        kept = second.persistable("obj", empty)
        assert await kept.load() is True
        assert kept.value == value
        assert kept.dirty == set()


async def test_BQ_52_a_plain_object_gets_its_fields(bus: Bus) -> None:
    await bus.persistable("obj", Plain(foo={"k": [True, None]}, bar=1), ["foo", "bar"]).save()
    loaded = Plain()
    assert await bus.persistable("obj", loaded, ["foo", "bar"]).load()
    assert vars(loaded) == {"foo": {"k": [True, None]}, "bar": 1}


async def test_BQ_51_only_what_has_changed_is_written_also_deep_inside(bus: Bus, redis: "Redis") -> None:
    thing = Thing(parts=[Part()], tags={"k": [1]})
    kept = bus.persistable("obj", thing)
    assert kept.dirty == {"name", "parts", "tags", "note"}
    assert await kept.save()
    before = await calls(redis)
    assert await kept.save() is False
    assert await calls(redis) == before
    for change, name in (
        (lambda: thing.tags["k"].append(2), "tags"),
        (lambda: setattr(thing.parts[0], "size", 3), "parts"),
    ):
        change()  # type: ignore[no-untyped-call]  # lambdas of several types
        assert kept.dirty == {name}
        await redis.hset(KEY, mapping=dict.fromkeys(("name", "parts", "tags", "note"), "as before"))
        assert await kept.save()
        written = [each for each, text in (await redis.hgetall(KEY)).items() if text != b"as before"]
        assert written == [name.encode()]
    assert await calls(redis) == before + 2


async def test_BQ_51_the_types_of_a_dataclass_hold_for_what_is_set(bus: Bus) -> None:
    thing = Thing()
    kept = bus.persistable("obj", thing)
    await kept.save()
    thing.name = "b"
    thing.name = "a"
    assert kept.dirty == set()


async def test_BQ_52_what_busmq_writes_for_undefined_is_as_if_missing(bus: Bus, redis: "Redis") -> None:
    await redis.hset(KEY, mapping={"name": "undefined", "note": ' "spaced" ', "unknown": "1", "tags": '{"\\u0061":[]}'})
    thing = Thing(name="kept")
    kept = bus.persistable("obj", thing)
    assert await kept.load() is True
    assert thing == Thing("kept", [], {"a": []}, "spaced")
    assert kept.dirty == {"name", "parts"}


@pytest.mark.parametrize("text", [b"{", b"", b"1", b"\xff", b'["x"]'])
async def test_BQ_52_a_field_of_another_type_is_named_and_nothing_is_changed(
    bus: Bus, redis: "Redis", text: bytes
) -> None:
    await redis.hset(KEY, mapping={"name": b'"b"', "tags": text})
    thing = Thing()
    with pytest.raises(Unreadable, match="tags"):
        await bus.persistable("obj", thing).load()
    assert thing == Thing()


async def test_BQ_53_an_object_lives_for_60_s_after_a_save(bus: Bus, redis: "Redis") -> None:
    kept = bus.persistable("obj", Thing())
    await kept.save()
    assert 50 < await redis.ttl(KEY) <= 60


async def test_BQ_53_persist_keeps_it_alive_until_unpersist(bus: Bus, redis: "Redis") -> None:
    kept = bus.persistable("obj", Thing())
    await kept.save()
    await kept.persist(3)
    assert 0 < await redis.ttl(KEY) <= 3
    await redis.expire(KEY, 1_000)
    await eventually(lambda: _lives_for(redis, 3))  # it was kept alive
    kept.value.name = "b"
    await kept.save()
    assert 0 < await redis.ttl(KEY) <= 3
    await kept.unpersist()
    await kept.unpersist()
    assert kept.value == Thing(name="b")
    await redis.expire(KEY, 1_000)
    await asyncio.sleep(1.2)  # timing: nothing may happen
    assert await redis.ttl(KEY) > 3


async def test_a_key_of_another_type_is_named(bus: Bus, redis: "Redis") -> None:
    await redis.rpush(KEY, "x")
    for call in (bus.persistable("obj", Thing()).save(), bus.persistable("obj", Thing()).load()):
        with pytest.raises(WrongType, match="bus:persisted:obj"):
            await call
    assert await redis.lrange(KEY, 0, -1) == [b"x"]


async def test_BQ_53_a_save_after_the_object_has_expired_writes_all_of_it(bus: Bus, redis: "Redis") -> None:
    thing = Thing("a", tags={"k": [1]})
    kept = bus.persistable("obj", thing)
    await kept.save()
    await redis.delete(KEY)
    thing.note = "n"
    assert await kept.save()
    loaded = Thing("other", [Part()], {"other": []})
    assert await bus.persistable("obj", loaded).load()
    assert loaded == thing
    assert kept.dirty == set()


class Narrow(BaseModel):
    number: int = Field(default=1, gt=0, le=10)
    text: str = Field(default="a", max_length=3)


@dataclass
class NarrowToo:
    number: Annotated[int, Field(gt=0)] = 1
    text: Annotated[str, Field(max_length=3)] = "a"


@pytest.mark.parametrize("kind", [Narrow, NarrowToo, pydantic.dataclasses.dataclass(NarrowToo)])
@pytest.mark.parametrize(("name", "text"), [("number", "-5"), ("text", '"too long"')])
async def test_BQ_52_a_field_that_breaks_its_constraint_is_named(
    bus: Bus, redis: "Redis", kind: Any, name: str, text: str
) -> None:
    await redis.hset(KEY, name, text)
    value = kind()
    with pytest.raises(Unreadable, match=name):
        await bus.persistable("obj", value).load()
    assert value == kind()
    await redis.hset(KEY, mapping={"number": "2", "text": '"b"'})
    assert await bus.persistable("obj", value).load()
    assert value == kind(number=2, text="b")


@dataclass
class Wide:
    number: float = 1.0
    values: Any = None


@pytest.mark.parametrize(
    "value",
    [
        Wide(math.nan),
        Wide(math.inf),
        Wide(values={"a": [-math.inf]}),
        Wide(values=[Part(math.nan)]),
        Wide(values=object()),
    ],
)
async def test_BQ_51_what_is_no_json_is_refused_before_it_is_saved(bus: Bus, redis: "Redis", value: Wide) -> None:
    with pytest.raises(WrongCall, match="JSON"):
        await bus.persistable("obj", value).save()
    assert await redis.exists(KEY) == 0
    await bus.persistable("obj", Wide(values=[None, "NaN", "Infinity"])).save()


class Login(BaseModel):
    password: SecretStr = SecretStr("x")
    former: list[SecretStr] = []


async def test_a_secret_that_json_would_mask_is_refused(bus: Bus, redis: "Redis") -> None:
    for value in (Login(), Login(password=SecretStr(""), former=[SecretStr("y")])):
        with pytest.raises(WrongCall, match=r"holds a secret, which is masked in JSON"):
            await bus.persistable("obj", value).save()
    assert await redis.exists(KEY) == 0
    await bus.persistable("obj", Wide(values="**********")).save()


@dataclass(frozen=True)
class Frozen:
    name: str = "a"


class Checked(Model, validate_assignment=True):
    @model_validator(mode="after")
    def check(self) -> Self:
        assert self.name == "a"
        return self


@pytest.mark.parametrize("value", [Frozen(), Checked()])
async def test_an_object_whose_fields_cannot_be_set_says_which(bus: Bus, redis: "Redis", value: Any) -> None:
    await redis.hset(KEY, "name", '"b"')
    with pytest.raises(WrongCall, match=f"field name of {type(value).__name__} cannot be set"):
        await bus.persistable("obj", value).load()


async def test_a_class_in_place_of_an_object_is_refused(bus: Bus) -> None:
    with pytest.raises(WrongCall, match=r"found the class Wide: pass Wide\(...\)"):
        bus.persistable("obj", Wide)


async def _lives_for(redis: "Redis", seconds: int) -> bool:
    return 0 < await redis.ttl(KEY) <= seconds
