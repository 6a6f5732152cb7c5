"""Outboxes with certificates: both sides know who the other is."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.outbox.wire import Disconnected, Identity, Limits, Listener, Refused, Security, connect, listen
from tests.outbox.peers import HERE, SECRET, Receiving, all_acknowledged, greeting, message, raw
from tests.support.harness import eventually
from tests.support.tls import certificate, needs_openssl

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls") / "ours", "491231")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls") / "strange", "491231")


def tls(own: Path, authority: Path, secret: str | None = None) -> Security:
    return Security.tls(own, own.with_name("key.pem"), authority, secret)


@asynccontextmanager
async def listens(security: Security, **options: Any) -> AsyncIterator[tuple[Listener, Receiving, str]]:
    """Yield the listener and its address by name, which is in the certificate."""
    received = Receiving()
    identity = Identity("localhost:0", b"t" * 16)
    listener = await listen("127.0.0.1:0", identity, security, received, **options)
    try:
        yield listener, received, listener.identity.address
    finally:
        await listener.close()


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_messages_arrive(ours: Path, secret: str | None) -> None:
    security = tls(ours, ours, secret)
    assert repr(security) == "<Security: TLS{}>".format(" and a shared secret" if secret else "")
    async with listens(security) as (listener, received, address):
        peer = await connect(address, Identity("localhost:9", b"h" * 16), security)
        sent = [message(seq, os.urandom(1000)) for seq in range(1, 3001)]
        await asyncio.gather(peer.send(sent), all_acknowledged(peer, 3000))
        assert received.messages == sent
        assert received.peers[0].names == peer.names == {"localhost"}
        assert received.peers[0].address == "localhost:9"
        peer.close()
        await peer.closed()
    assert listener.counts == {"accepted": 1}


async def test_a_client_without_a_certificate_is_refused(ours: Path) -> None:
    async with listens(tls(ours, ours)) as (listener, _, address):
        client = ssl.create_default_context(cafile=ours)
        bare = Security(server=client, client=client)
        with pytest.raises(Disconnected):
            await connect(address, HERE, bare)
        await eventually(lambda: listener.counts == {"TLS": 1})


async def test_a_certificate_of_another_authority_is_refused(ours: Path, strange: Path) -> None:
    async with listens(tls(ours, ours)) as (listener, _, address):
        with pytest.raises(Disconnected):
            await connect(address, HERE, tls(strange, ours))
        await eventually(lambda: listener.counts == {"TLS": 1})
        with pytest.raises(Refused, match="certificate"):
            await connect(address, HERE, tls(ours, strange))
        await eventually(lambda: listener.counts == {"TLS": 2})


async def test_a_peer_cannot_say_that_it_is_another(ours: Path) -> None:
    security = tls(ours, ours)
    async with listens(security) as (listener, _, address):
        with pytest.raises(Refused, match=r"its certificate is not for shop\.example"):
            await connect(address, Identity("shop.example:1", b"h" * 16), security)
        await eventually(lambda: listener.counts == {"certificate": 1})
        numeric = listener.addresses[0]
        with pytest.raises(Refused, match=r"127.0.0.1"):
            await connect(numeric, HERE, security)  # the listener's certificate is for localhost


async def test_a_peer_without_tls_and_one_that_says_nothing_are_refused(ours: Path) -> None:
    limits = Limits(handshake_seconds=1)
    async with listens(tls(ours, ours), limits=limits) as (listener, _, _):
        async with raw(listener) as plain:
            await plain.write(greeting())
            await plain.reasons()
        await eventually(lambda: listener.counts.total() == 1)
        async with raw(listener) as silent:
            await silent.reasons()
        await eventually(lambda: listener.counts.total() == 2)
        assert listener.counts["accepted"] == 0
        assert not listener._strangers


async def test_a_listener_that_closes_waits_for_no_handshake(ours: Path) -> None:
    async with (
        listens(tls(ours, ours), limits=Limits(handshake_seconds=600)) as (listener, _, _),
        raw(listener) as silent,
    ):
        await eventually(lambda: listener._strangers)
        async with asyncio.timeout(60):
            await listener.close()
        assert await silent.reasons() == []
    assert not listener._strangers
