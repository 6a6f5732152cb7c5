"""What a request says of itself in its meta: its record and its event keep it."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.spark.decode import decode_entries
from penstock.tracking.details import traceparent_of
from tests.support.commandline import penstock
from tests.support.hop import Hop, Start

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INVALID: list[Any] = [
    TRACE + "-00",
    TRACE + "\n",
    TRACE.upper(),
    TRACE[:-1],
    "ff" + TRACE[2:],
    f"00-{'0' * 32}-b7ad6b7169203331-01",
    f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
    "x" * 100_000,
    "",
    None,
    7,
    [TRACE],
]


def request(id: str, **meta: object) -> str:
    return json.dumps({"meta": {"id": id} | meta})


async def archived(hop: Hop) -> list[dict[str, Any]]:
    """Return the events as the archive decodes them."""
    entries: Any = await hop.redis.execute_command("XRANGE", hop.keys.events, "-", "+")
    flat = [(name, [word for pair in fields.items() for word in pair]) for name, fields in entries]
    return [row for batch in decode_entries("demo", flat) for row in batch.to_pylist()]


def test_a_trace_of_a_later_version_is_valid() -> None:
    assert traceparent_of("cc" + TRACE[2:]) == "cc" + TRACE[2:]


@pytest.mark.parametrize("wrong", INVALID)
async def test_an_invalid_trace_is_dropped_and_the_request_is_not(start: Start, wrong: object) -> None:
    assert traceparent_of(wrong) == ""
    hop = await start()
    await hop.push(request("a", traceparent=wrong))
    assert "details" not in await hop.record(1)
    assert [row["extra"] for row in await archived(hop)] == [None]


async def test_the_trace_is_in_the_record_and_in_the_event_of_its_message_only(start: Start) -> None:
    hop = await start(event_messages=True)
    await hop.push(request("a"), request("b", traceparent=TRACE), request("c", traceparent=TRACE, delay=100), "7")
    records = [(await hop.record(id)).get("details") for id in (1, 2, 3, 4)]
    details = json.dumps({"traceparent": TRACE})
    assert records == [None, details, details, None]
    found = [(row["event"], row["id"], row["extra"], row["message"]) for row in await archived(hop)]
    assert [each[:3] for each in found] == [
        *(("registered", "1", None), ("registered", "2", details), ("registered", "3", details)),
        *(("delayed", "3", None), ("registered", "4", None)),
    ]
    assert found[1][3] == request("b", traceparent=TRACE).encode()
    await hop.push_done({"xid": "b"})
    assert [row["extra"] for row in await archived(hop)][-1] is None


async def test_trace_and_explain_show_the_trace(redis: Redis, redis_url: str, start: Start) -> None:
    hop = await start()
    await hop.push(request("a", traceparent=TRACE))
    events = (await penstock("trace", "demo", "a", "--json", redis=redis_url)).json["events"]
    assert [each.get("traceparent") for each in events] == [TRACE]
    assert TRACE in (await penstock("trace", "demo", "a", redis=redis_url)).text
    assert (await penstock("explain", "demo", "a", "--json", redis=redis_url)).json["traceparent"] == TRACE
    assert f"traceparent is {TRACE}" in (await penstock("explain", "demo", "a", redis=redis_url)).text
    await hop.push_done({"xid": "a", "error": "no", "retry": False})
    await hop.sweep()
    assert (await penstock("explain", "demo", "a", "--json", redis=redis_url)).json["traceparent"] == TRACE
    assert TRACE in (await penstock("trace", "demo", "a", redis=redis_url)).text
