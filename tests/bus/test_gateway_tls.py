"""The gateway with TLS, and a certificate that is replaced."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
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


@needs_openssl
async def test_a_renewed_certificate_is_used_and_a_wrong_one_is_not(
    redis: "Redis", redis_url: str, tmp_path: Path
) -> None:
    first, second = (certificate(tmp_path / name, day) for name, day in (("first", "401231"), ("second", "491231")))
    given: dict[str, Any] = {"certificate": str(first), "key": str(first.with_name("key.pem"))}
    async with serving(redis_url, **given) as gateway:

        async def is_trusted(made: Path) -> bool:
            try:
                await status_of(url_of(gateway, "wss"), ssl=ssl.create_default_context(cafile=made), **bearer(SECRET))
            except ssl.SSLCertVerificationError:
                return False
            return True

        own = first.read_bytes()
        first.write_bytes(second.read_bytes())
        gateway.renew_certificate()
        assert await is_trusted(second) is False
        first.with_name("key.pem").write_bytes(second.with_name("key.pem").read_bytes())
        gateway.renew_certificate()
        assert await is_trusted(second) is True
        first.write_bytes(own)
