"""Tests of any bytes as a message and any text as a name."""

from dataclasses import replace

import pytest

from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, assert_accounted, assert_all_settled

MIB = 1_048_576
ODD = [
    b"",
    b"\0",
    b"\0\0after",
    bytes(range(256)),
    b"\xff\xfe\xc3\x28",
    b"\xed\xa0\x80",
    b"0",
    b"-1",
    b"007",
    b"3.14",
    b"1e400",
    b"12345678901234567890123",
    b"nil",
    b"false",
    b"\r\n$3\r\n*1\r\n",
    b"*",
    "Größe ✓ 🎏".encode(),
]
NAMES = [
    "with space",
    'it\'s "quoted"',
    "ünï¢ødé ✓",
    "glob*?[a-z]\\x",
    "{tag}:list",
    "a,b",
    "line\nbreak\ttab",
    "$HOME;`x`%s",
]


def test_any_bytes_are_carried_unchanged(fleet: Fleet) -> None:
    fleet.up()
    fleet.push(ODD)
    fleet.wait_until_settled()
    for out in fleet.service.outs:
        assert fleet.held(out) == [fleet.service.copy(message) for message in ODD]
    fleet.stop()
    assert_accounted(fleet, ODD)


@pytest.mark.parametrize(("size", "count"), [(64 * MIB, 1), (MIB, 60)], ids=["64 MiB", "60 of 1 MiB"])
def test_large_messages_are_carried_unchanged(launch: Launch, size: int, count: int) -> None:
    with EmbeddedServer() as server:
        fleet = launch(server)
        messages = [b"%d " % number + b"\xa5\0" * (size // 2) for number in range(count)]
        fleet.up()
        for message in messages:
            fleet.push([message])
        fleet.wait_until_settled()
        fleet.stop()
        for out in fleet.service.outs:
            assert fleet.redis.llen(out) == count
            for place, message in enumerate(messages):
                carried = fleet.redis.lindex(out, -1 - place)
                assert fleet.service.opened(carried) == fleet.service.copy(message), f"{out}: message {place}"
        assert fleet.metric("taken")["count"] == count


@pytest.mark.parametrize("name", NAMES)
def test_any_text_may_be_a_name(launch: Launch, fleet: Fleet, server: EmbeddedServer, name: str) -> None:
    outs = (f"{name} out, too", name)[-len(fleet.service.outs) :]
    service = replace(fleet.service, source=f"{name} in", pending=f"{name} pending", outs=outs)
    odd = launch(server, service, redis_namespace=name)
    odd.keys = Keys(name)
    messages = [b"message %d" % number for number in range(20)]
    replica = odd.up()
    odd.push(messages[:10])
    odd.wait_until_settled()
    replica.kill()
    odd.forget(replica)
    odd.up()
    odd.push(messages[10:])
    assert_all_settled(odd, messages, killed=["1"])
