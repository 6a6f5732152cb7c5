"""The embedded server's port is its own, from the choice to the end."""

from pathlib import Path
from random import SystemRandom

import pytest

from penstock.base.errors import PenstockError
from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fix the next ports to be tried: by chance, two servers draw the same number once in 22,768 cases."""
    first, second = free_port(), free_port()
    tried = [first, first, second]
    monkeypatch.setattr(SystemRandom, "randrange", lambda *_: tried.pop(0))
    return [first, second]


@pytest.mark.parametrize("ran", [False, True], ids=["not yet started", "stopped for a while"])
def test_two_servers_never_share_a_port(chosen: list[int], ran: bool) -> None:
    server = EmbeddedServer()
    if ran:
        server.start()
        server.stop()
    other = EmbeddedServer()
    assert [server.port, other.port] == chosen
    with server, other:
        assert server.pid != other.pid


def test_a_server_that_has_the_port_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    with EmbeddedServer() as other:
        mine = EmbeddedServer(port=other.port, directory=tmp_path)
        with pytest.raises(PenstockError, match=f"port {other.port} has a server already"):
            mine.start()
    with mine:
        assert mine.pid
