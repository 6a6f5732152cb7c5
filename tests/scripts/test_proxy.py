"""The proxy of the tests: it must survive the death of the server behind it."""

from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError
from redis.retry import Retry

from penstock.testing.server import EmbeddedServer
from tests.reliability.proxy import Proxy


def test_a_client_is_rejected_while_the_server_is_down_and_the_next_is_served(tmp_path: Path) -> None:
    with (
        EmbeddedServer(directory=tmp_path) as server,
        Proxy(server.port) as proxy,
        Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as client,
    ):
        server.kill()
        with pytest.raises(ConnectionError):
            client.ping()
        server.start()
        assert client.ping()
