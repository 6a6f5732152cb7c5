"""The gateway with TLS, and a certificate that is replaced."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.outbox.wire import Identity, Security, listen
from tests.bus.gateway import SECRET, bearer, serving, status_of, url_of
from tests.support.harness import PATIENCE
from tests.support.tls import certificate, needs_openssl


@needs_openssl
async def test_tls(redis: "Redis", redis_url: str, tmp_path: Path) -> None:
    made = certificate(tmp_path / "tls", "491231")
    trusting = ssl.create_default_context(cafile=made)
    given: dict[str, Any] = {"certificate": str(made), "key": str(made.with_name("key.pem"))}
    async with serving(redis_url, **given) as gateway, Bus() as bus:
        queue = bus.federate(bus.queue("foo"), url_of(gateway, "wss"), secret=SECRET, tls=trusting)
        assert await queue.attach() is False
        assert await queue.push("x") == 1
        with pytest.raises(ssl.SSLCertVerificationError):
            await status_of(url_of(gateway, "wss"), **bearer(SECRET))


@needs_openssl
async def test_a_handshake_that_does_not_begin_is_given_up(redis: "Redis", redis_url: str, tmp_path: Path) -> None:
    made = certificate(tmp_path / "tls", "491231")
    given: dict[str, Any] = {"certificate": str(made), "key": str(made.with_name("key.pem"))}
    async with serving(redis_url, first_message_timeout=1, **given) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        try:
            assert await asyncio.wait_for(reader.read(), PATIENCE / 2) == b""
        finally:
            writer.close()


@asynccontextmanager
async def gateway_port(redis_url: str, own: Path, _: Path) -> AsyncIterator[int]:
    given: dict[str, Any] = {"certificate": str(own), "key": str(own.with_name("key.pem"))}
    async with serving(redis_url, **given) as gateway:
        yield gateway.port


@asynccontextmanager
async def outbox_port(_: str, own: Path, authority: Path) -> AsyncIterator[int]:
    security = Security.tls(own, own.with_name("key.pem"), authority)
    listener = await listen("127.0.0.1:0", Identity("localhost:0", b"t" * 16), security, lambda _: asyncio.sleep(0))
    before = security.client
    try:
        yield int(listener.identity.address.rpartition(":")[2])
        assert security.client is not before, "so do the connections that it makes"
    finally:
        await listener.close()


@needs_openssl
@pytest.mark.parametrize("listening", [gateway_port, outbox_port])
async def test_a_port_uses_what_its_files_have_become_and_no_half_of_a_pair(
    redis: "Redis", redis_url: str, tmp_path: Path, listening: Any
) -> None:
    first, second = (certificate(tmp_path / name, day) for name, day in (("first", "401231"), ("second", "491231")))
    authority = tmp_path / "authority.pem"
    authority.write_bytes(first.read_bytes())

    async def accepts(client: Path, port: int) -> bytes | None:
        """Return the certificate of the port; None if it does not accept that of ``client``."""
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        trusting.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 tells of a refusal some time after the handshake
        trusting.load_cert_chain(client, client.with_name("key.pem"))
        try:
            _, writer = await asyncio.open_connection("localhost", port, ssl=trusting)
        except OSError:
            return None
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        return found

    own, other = (ssl.PEM_cert_to_DER_cert(each.read_text()) for each in (first, second))
    stranger = Path(shutil.copytree(second.parent, tmp_path / "stranger")) / second.name
    async with listening(redis_url, first, authority) as port:
        friend = Path(shutil.copytree(first.parent, tmp_path / "friend")) / first.name
        assert await accepts(friend, port) == own
        refuses = await accepts(stranger, port) is None
        first.write_bytes(second.read_bytes())
        assert await accepts(friend, port) == own
        first.with_name("key.pem").write_bytes(second.with_name("key.pem").read_bytes())
        assert await accepts(friend, port) == other
        authority.write_bytes(second.read_bytes())
        assert await accepts(stranger, port) == other
        assert (await accepts(friend, port) is None) == refuses == (listening is outbox_port)
