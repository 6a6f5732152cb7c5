"""penstock status."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.cli.given import cells
from tests.support.clock import Span
from tests.support.commandline import AWKWARD, penstock
from tests.support.membership import register
from tests.support.tracked import in_flight, now, policy


async def test_an_instance_is_shown_with_all_that_is_known(redis: Redis, redis_url: str) -> None:
    began = await now(redis)
    await register(redis, "demo:mpush", "9")
    result = await penstock("status", "demo:mpush", redis=redis_url)
    elapsed = Span(0, 1 + await now(redis) - began)  # "renewed" is in whole seconds
    assert (result.status, result.error) == (0, "")
    id, service, host, pid, started, renewed, ttl = cells(result, "oak")
    assert (id, service, host, pid) == ("9", "mpush", "oak", "77")
    assert started.endswith(" UTC")
    assert int(renewed.removesuffix(" s ago")) == elapsed + 5
    assert int(ttl.removesuffix(" s")) == 60 - elapsed


async def test_what_an_instance_waits_for_is_shown(redis: Redis, redis_url: str) -> None:
    for id in "1", "2":
        await register(redis, "demo", id)
    await redis.hset("demo:2", "waiting", "no replica\n is connected")
    result = await penstock("status", "demo", redis=redis_url)
    assert [line for line in result.text.splitlines() if "waits" in line] == [
        "demo:2 waits: no replica\\n is connected"
    ]
    found = (await penstock("status", "demo", "--json", redis=redis_url)).json["instances"]
    assert [one["waits"] for one in found] == ["no replica\n is connected", ""]


async def test_lists_are_shown_with_role_length_and_what_is_known_of_their_age(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.rpush("work in", "a", "b")
    await redis.rpush("work pending:3", "c")
    made = (await redis.time())[0] * 1000 - 90_000
    await redis.lpush("demo:dead", json.dumps({"message": "m", "at": made}), json.dumps({"message": "n", "at": 0}))
    result = await penstock("status", "demo", redis=redis_url)
    assert cells(result, "work in") == ["work in", "in", "2", "-"]
    assert cells(result, "work pending:3") == ["work pending:3", "pending", "1", "-"]
    assert cells(result, "out0") == ["out0", "out", "0", "-"]
    assert cells(result, "demo:dead")[:3] == ["demo:dead", "dead", "2"]
    assert re.fullmatch(r"1 min [345]\d s", cells(result, "demo:dead")[3])


async def test_messages_in_flight_and_delayed_are_counted_where_they_are_tracked(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await policy(redis)
    for id in ("1", "2"):
        await in_flight(redis, id)
    result = await penstock("status", "demo", redis=redis_url)
    assert cells(result, "demo:message:deadlines") == ["demo:message:deadlines", "in flight", "2"]
    assert cells(result, "demo:message:delayed") == ["demo:message:delayed", "delayed", "0"]
    await redis.set("demo:message:delayed", "text")
    result = await penstock("status", "demo", redis=redis_url)
    assert cells(result, "demo:message:delayed")[2] == "it is a string!"
    await redis.delete("demo:policy")
    assert "in flight" not in (await penstock("status", "demo", redis=redis_url)).text


async def test_a_key_of_another_type_stands_out(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.hset("out0", "field", "value")
    assert cells(await penstock("status", "demo", redis=redis_url), "out0")[2] == "it is a hash!"


@pytest.mark.parametrize("key", ["ids", "owners", "lists", "1"])
@pytest.mark.parametrize("words", [(), ("demo",)], ids=["all", "one"])
async def test_a_key_of_another_type_that_hides_all_is_named(
    redis: Redis, redis_url: str, key: str, words: tuple[str, ...]
) -> None:
    await redis.hset("demo:lists", "in", "in")
    await redis.rpush("demo:ids", 1)
    await redis.zadd("demo:owners", {"1": 0})
    await redis.set(f"demo:{key}", "a string")
    found = await penstock("status", *words, redis=redis_url)
    assert (found.status, f"demo:{key} holds a string" in found.error) == (1, True), found


@pytest.mark.parametrize("key", ["lease", "link"])
async def test_a_lease_or_link_of_another_type_is_named(redis: Redis, redis_url: str, key: str) -> None:
    await register(redis, "demo", "3")
    await redis.set(f"demo:{key}", "a string")
    found = await penstock("status", "demo", redis=redis_url)
    assert (found.status, f"demo:{key} holds a string" in found.error) == (1, True), found


async def test_metrics_are_a_table(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.hset("demo:metrics:taken", mapping={"count": 7, "out0": 7})
    await redis.hset("demo:metrics:wait", mapping={"count": 2, "sum": "1.5", "max": "1.25", "histo10": 2})
    result = await penstock("status", "demo", redis=redis_url)
    assert cells(result, "taken") == ["taken", "7", "-", "-", "out0 7"]
    assert cells(result, "wait") == ["wait", "2", "1.5", "1.25", "histo10 2"]


async def test_json_says_it_all(redis: Redis, redis_url: str) -> None:
    began = await now(redis)
    await register(redis, "demo", "3")
    await redis.hset("demo:metrics:start", "count", 1)
    lease: dict[Any, Any] = {"owner": "3", "token": 4, "expires": round(began + 90) * 1000}
    await redis.hset("demo:lease", mapping=lease)
    output = (await penstock("status", "demo", "--json", redis=redis_url)).json
    assert output["namespace"] == "demo"
    assert output["metrics"] == {"start": {"count": "1"}}
    (instance,) = output["instances"]
    assert instance | {"started": 0, "renewed_ago": 0, "ttl": 0} == {
        "id": "3", "host": "oak", "pid": "77", "service": "mpush", "version": "1", "started": 0, "renewed_ago": 0,
        "ttl": 0, "late": False, "waits": "",
    }  # fmt: skip
    assert instance["renewed_ago"] == Span(5, 6 + await now(redis) - began)
    assert {"name": "out0", "role": "out", "type": "none", "length": 0, "oldest": None} in output["lists"]
    assert (output["lease"]["owner"], output["lease"]["token"]) == ("3", 4)
    assert output["lease"]["expires_in"] == 91 - Span(0, 2 + await now(redis) - began)


async def _linked(redis: Redis, **noted: Any) -> int:
    """Write the state ``noted`` of the link of a live vpush; return the server's time (s)."""
    await register(redis, "demo", "3")
    now = (await redis.time())[0]
    fields: dict[Any, Any] = {"state": "up", "since": now - 90, "reason": "", "waiting": 0, "oldest": 0, "at": now}
    await redis.hset("demo:link", mapping=fields | {"rtt": "0.001234"} | noted)
    await redis.hset("demo:lease", mapping={"owner": "3", "token": 4, "expires": now * 1000 + 60_000})
    return now


async def test_a_link_is_shown_in_one_line(redis: Redis, redis_url: str) -> None:
    now = await _linked(redis)
    text = (await penstock("status", "demo", redis=redis_url)).text
    assert re.search(
        r"^Link up for 1 min [345]\d s, as of its last batch; nothing waiting; last round trip 1.2 ms$",
        text,
        re.MULTILINE,
    )
    await redis.rpush("work in", *range(1500))
    await redis.rpush("work pending", "a")
    down: dict[Any, Any] = {
        "state": "down",
        "reason": "the other server: closed.",
        "waiting": 9,
        "oldest": 60,
        "at": now,
    }
    await redis.hset("demo:link", mapping=down)
    text = (await penstock("status", "demo", redis=redis_url)).text
    state, waits = (
        r"Link down for 1 min [345]\d s: the other server: closed",
        r"1,501 waiting, the oldest for 1 min \d+ s",
    )
    assert re.search(rf"^{state}; {waits}; last round trip 1.2 ms$", text, re.MULTILINE)
    await redis.delete("demo:lease")
    await redis.hdel("demo:link", "rtt")
    text = (await penstock("status", "demo", redis=redis_url)).text
    assert re.search(rf"^Link unused: no vpush is alive; {waits}$", text, re.MULTILINE)


async def test_a_link_is_shown_in_json(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    assert (await penstock("status", "demo", "--json", redis=redis_url)).json["link"] is None
    began = await _linked(redis, state="down", reason="closed", waiting=1, oldest="2.5")
    await redis.rpush("work in", "a")
    link = (await penstock("status", "demo", "--json", redis=redis_url)).json["link"]
    elapsed = Span(0, await now(redis) - began)
    assert (link.pop("changed_ago"), link.pop("oldest")) == (elapsed + 90, elapsed + 2.5)
    assert link == {"alive": True, "up": False, "reason": "closed", "waiting": 1, "round_trip": 0.001234}


async def test_dead_instances_are_not_shown_but_their_messages_are(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.delete("demo:3")
    await redis.rpush("work pending:3", "c")
    output = (await penstock("status", "demo", "--json", redis=redis_url)).json
    assert output["instances"] == []
    assert "demo has no live instances" in (await penstock("status", "demo", redis=redis_url)).text
    assert ("work pending:3", 1) in [(one["name"], one["length"]) for one in output["lists"]]


async def test_replicas_that_take_turns_by_a_lease_have_one_pending_list(redis: Redis, redis_url: str) -> None:
    for id in ("3", "4", "5"):
        await register(redis, "demo", id)
    await redis.hset("demo:lease", mapping={"owner": "3", "token": 4, "expires": 0})
    await redis.rpush("work pending", "a", "b")
    await redis.rpush("work pending:5", "left when it had a list of its own")
    output = (await penstock("status", "demo", "--json", redis=redis_url)).json["lists"]
    pending = [(one["name"], one["length"]) for one in output if one["role"] == "pending"]
    assert pending == [("work pending", 2), ("work pending:5", 1)]


async def test_an_instance_that_the_bounded_list_of_ids_lost_is_shown(redis: Redis, redis_url: str) -> None:
    for id in ("8", "9", "10"):
        await register(redis, "demo", id)
    await redis.ltrim("demo:ids", 0, 0)
    output = (await penstock("status", "demo", "--json", redis=redis_url)).json
    assert [instance["id"] for instance in output["instances"]] == ["10", "9", "8"]


async def test_a_registration_that_never_expires_stands_out(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.persist("demo:3")
    assert cells(await penstock("status", "demo", redis=redis_url), "oak")[-1] == "none: it never expires"


async def test_without_a_namespace_all_are_listed(redis: Redis, redis_url: str) -> None:
    for namespace in AWKWARD:
        await register(redis, namespace, "1")
    await redis.rpush("demo:message:ids", "1")
    await in_flight(redis, "1", "an xid:lists")
    await redis.sadd("somebody's:ids", "1")
    await redis.set("somebody's:lists", "1")
    await redis.rpush("work in", "a", "b", "c")
    output = (await penstock("status", "--json", redis=redis_url)).json["namespaces"]
    assert [one["namespace"] for one in output] == sorted(AWKWARD)
    assert {(one["instances"], one["in"], tuple(one["services"])) for one in output} == {(1, 3, ("mpush",))}
    result = await penstock("status", redis=redis_url)
    assert cells(result, "with space") == ["with space", "mpush", "1", "3", "0", "0"]


@pytest.mark.parametrize("namespace", AWKWARD)
async def test_a_namespace_may_have_any_name(redis: Redis, redis_url: str, namespace: str) -> None:
    await register(redis, namespace, "1")
    await redis.hset(f"{namespace}:metrics:start", "count", 1)
    await redis.hset("in:metrics:other", "count", 1)
    output = (await penstock("status", namespace, "--json", redis=redis_url)).json
    assert len(output["instances"]) == 1
    assert output["metrics"].get("start") == {"count": "1"}


async def test_an_empty_server_has_no_namespaces(redis: Redis, redis_url: str) -> None:
    assert (await penstock("status", "--json", redis=redis_url)).json == {"namespaces": [], "queues": []}
    assert "no namespaces" in (await penstock("status", redis=redis_url)).text


async def test_an_unknown_namespace_is_a_failure_that_names_the_known(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo:mpush", "1")
    result = await penstock("status", "demo:mpusch", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert (
        "no service has registered in the namespace demo:mpusch; namespaces on this server: demo:mpush" in result.error
    )


async def test_a_replica_is_said_to_be_one_and_instances_are_not_blamed(redis: Redis, redis_url: str) -> None:
    await renewed(redis, "demo", "1", ago=41)
    assert (await penstock("status", "demo", "--json", redis=redis_url)).json["refuses_writes"] == ""
    await redis.replicaof("127.0.0.1", 1)
    try:
        one, all_of_it = [(await penstock("status", *words, redis=redis_url)).text for words in (["demo"], [])]
        found = (await penstock("status", "demo", "--json", redis=redis_url)).json
    finally:
        await redis.replicaof("NO", "ONE")
    said = "the server is a replica of 127.0.0.1:1 and takes no writes"
    assert (said in one, said in all_of_it, found["refuses_writes"]) == (True, True, said)
    assert "late: missed its heartbeat" not in one


async def test_registrations_may_be_on_another_server(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path) as other:
        async with Redis.from_url(other.url) as registry:
            await register(registry, "demo", "3", data=redis)
        output = (await penstock("status", "demo", "--json", "--service-redis", other.url, redis=redis_url)).json
        assert [instance["id"] for instance in output["instances"]] == ["3"]
        assert len(output["lists"]) > 3
        known = (await penstock("status", "--json", "--service-redis", other.url, redis=redis_url)).json
        assert [(one["namespace"], one["instances"]) for one in known["namespaces"]] == [("demo", 1)]


async def test_control_characters_in_names_are_escaped(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.hset("demo:lists", "\x1b[31mred\n[bold]", "out")
    result = await penstock("status", "demo", redis=redis_url)
    assert "\\x1b[31mred\\n[bold]" in result.text
    assert "\x1b" not in result.text


async def renewed(redis: Redis, namespace: str, id: str, ago: int, renew: int = 15) -> None:
    await register(redis, namespace, id)
    moment = (await redis.time())[0] - ago
    await redis.hset(Keys(namespace).instance(id), mapping={"renewed": moment, "renew": renew})


async def test_an_instance_that_has_missed_a_renewal_is_shown_as_late(redis: Redis, redis_url: str) -> None:
    await renewed(redis, "demo", "1", ago=2)
    await renewed(redis, "demo", "2", ago=41)
    await renewed(redis, "demo", "3", ago=41, renew=60)
    found = (await penstock("status", "demo", "--json", redis=redis_url)).json["instances"]
    assert {one["id"]: one["late"] for one in found} == {"1": False, "2": True, "3": False}
    shown = (await penstock("status", "demo", redis=redis_url)).text
    assert re.search(r"\d\d s ago, late", shown)
    assert shown.count(", late") == 1
    assert "late: missed its heartbeat" in shown
    all_of_it = await penstock("status", redis=redis_url)
    assert cells(all_of_it, "demo")[2] == "2 + 1 late"
    (row,) = (await penstock("status", "--json", redis=redis_url)).json["namespaces"]
    assert (row["instances"], row["late"]) == (3, 1)
