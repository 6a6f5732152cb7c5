"""Any bytes as a message, any text as a name."""

from dataclasses import replace

import pytest

from penstock.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Staged
from tests.reliability.stage import Stage, assert_accounted, assert_registry_clean

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


def test_any_bytes_are_carried_unchanged(stage: Stage) -> None:
    stage.up()
    stage.push(ODD)
    stage.wait_until_settled()
    for out in stage.service.outs:
        assert stage.held(out) == [stage.service.copy(message) for message in ODD]
    stage.stop()
    assert_accounted(stage, ODD)


@pytest.mark.parametrize(("size", "count"), [(64 * MIB, 1), (MIB, 60)], ids=["64 MiB", "60 of 1 MiB"])
def test_large_messages_are_carried_unchanged(staged: Staged, size: int, count: int) -> None:
    with EmbeddedServer() as server:
        stage = staged(server)
        messages = [b"%d " % number + b"\xa5\0" * (size // 2) for number in range(count)]
        stage.up()
        for message in messages:
            stage.push([message])
        stage.wait_until_settled()
        stage.stop()
        for out in stage.service.outs:
            assert stage.redis.llen(out) == count
            for place, message in enumerate(messages):
                assert stage.redis.lindex(out, -1 - place) == stage.service.copy(message), f"{out}: message {place}"
        assert stage.metric("taken")["count"] == count


@pytest.mark.parametrize("name", NAMES)
def test_any_text_may_be_a_name(staged: Staged, stage: Stage, server: EmbeddedServer, name: str) -> None:
    outs = (f"{name} out, too", name)[-len(stage.service.outs) :]
    service = replace(stage.service, source=f"{name} in", pending=f"{name} pending", outs=outs)
    odd = staged(server, service, redis_namespace=name)
    odd.keys = Keys(name)
    messages = [b"message %d" % number for number in range(20)]
    replica = odd.up()
    odd.push(messages[:10])
    odd.wait_until_settled()
    replica.kill()
    odd.forget(replica)
    odd.up()
    odd.push(messages[10:])
    odd.wait_until_settled()
    odd.stop()
    assert_accounted(odd, messages)
    assert_registry_clean(odd, killed=["1"])
