"""``::`` is all addresses of both families."""

import errno
import socket

import pytest

from penstock.base import listening
from penstock.base.listening import ALL, bound


def reached(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 5):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "four", "six"),
    [(ALL, True, True), ("0.0.0.0", True, False), ("127.0.0.1", True, False), ("::1", False, True)],
)
def test_a_host_is_listened_to_on_its_families(host: str, four: bool, six: bool, has_ipv6: bool) -> None:
    if not has_ipv6:
        pytest.skip("no IPv6 on this machine")
    with bound(host, 0) as made:
        made.listen()
        port = made.getsockname()[1]
        assert (reached("127.0.0.1", port), reached("::1", port)) == (four, six)


def test_without_ipv6_all_is_all_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    make = listening._bound

    def without(family: int, *rest: object, **more: bool) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        return make(family, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(listening, "_bound", without)
    with bound(ALL, 0) as made:
        made.listen()
        assert reached("127.0.0.1", made.getsockname()[1])
    with pytest.raises(OSError, match="IPv6"):
        bound("::1", 0)


def test_a_taken_port_is_an_error_unless_it_is_shared() -> None:
    with bound("127.0.0.1", 0, shared=True) as one:
        port = one.getsockname()[1]
        with bound("127.0.0.1", port, shared=True) as other:
            assert other.getsockname()[1] == port
        one.listen()
        with pytest.raises(OSError, match="in use"):
            bound("127.0.0.1", port)
