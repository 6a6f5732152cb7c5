"""URLs of servers: a server has one name, which leads back to it; every option is checked by name, value and file."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.connection import parse_url

from penstock.base.errors import PenstockError, SettingsError
from penstock.base.urls import TLS, same_server, server_of, server_url, url_of, with_database
from penstock.core.instance import check_url
from penstock.lists import Lists
from penstock.spark.options import Options
from services.mpush.settings import Settings
from tests.support.tls import certificate

HOSTS = {
    "localhost": ("localhost", "LOCALHOST", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]"),
    "h.example": ("h.example", "H.example"),
    "127.0.0.2": ("127.0.0.2", "[::ffff:7f00:2]"),
    "2001:db8::1": ("[2001:db8::1]", "[2001:0DB8:0::1]"),
    "fe80::1%eth0": ("[fe80::1%25eth0]",),
}
"""Hosts, with all the ways to write each."""
PATHS = ("/s", "/run/a b", "/run/s:1", "/h:6379/1", "/a?b", "/ü%")
LOGINS = ("", ":p%40ss@", "user:p%2Fss@", "localhost:6380@")
PORTS = (6379, 6380, 26379)
"""Two of them are defaults, which a URL may leave out."""


class Server(NamedTuple):
    """What tells one server from another."""

    kind: str
    hosts: frozenset[tuple[str, int]]
    name: str
    """The path of the socket, or the service of the sentinels."""
    database: int


@st.composite
def servers(draw: st.DrawFn) -> Server:
    kind = draw(st.sampled_from(["redis", "unix", "sentinel", "cluster"]))
    database = 0 if kind == "cluster" else draw(st.sampled_from([0, 1, 12]))
    if kind == "unix":
        return Server(kind, frozenset(), draw(st.sampled_from(PATHS)), database)
    plain = [name for name in HOSTS if ":" not in name]  # no URL has IPv6 addresses of several hosts
    place = st.tuples(st.sampled_from([*HOSTS] if kind == "redis" else plain), st.sampled_from(PORTS))
    fewest, most = {"redis": (1, 1), "sentinel": (1, 3), "cluster": (2, 3)}[kind]
    hosts = draw(st.frozensets(place, min_size=fewest, max_size=most))
    return Server(kind, hosts, draw(st.sampled_from(["main", "other", "1"])) if kind == "sentinel" else "", database)


@st.composite
def urls(draw: st.DrawFn, server: Server) -> str:
    """Draw a URL of ``server``."""
    kind, usual = server.kind, 26379 if server.kind == "sentinel" else 6379
    by_option = draw(st.booleans()) or kind in ("unix", "sentinel")
    options = [f"db={server.database:0{draw(st.integers(1, 3))}}"] if by_option and kind != "cluster" else []
    path = {"unix": quote(server.name), "sentinel": f"/{server.name}"}.get(kind, f"/{server.database}")
    if by_option and kind == "redis":
        path = draw(st.sampled_from(["", "/", "/7"]))  # the option is stronger
    elif not server.database and path == "/0":
        path = draw(st.sampled_from(["", "/", "/0"]))
    hosts = []
    for host, port in draw(st.permutations(sorted(server.hosts))):
        written = draw(st.sampled_from([each for each in HOSTS[host] if kind == "redis" or "[" not in each]))
        hosts.append(written if port == usual and draw(st.booleans()) else f"{written}:{port}")
    scheme = {"redis": "redis", "unix": "unix", "sentinel": "redis+sentinel", "cluster": "redis+cluster"}[kind]
    if kind != "unix" and draw(st.booleans()):
        scheme = scheme.replace("redis", "rediss")
        options += draw(st.sampled_from([[], ["ssl_cert_reqs=none"], ["ssl_min_version=771"]]))
    if kind != "sentinel":
        options += draw(st.sampled_from([[], ["password=x%3D1"], ["username=u", "password=x"]]))
    options = draw(st.permutations(options))
    return f"{scheme}://{draw(st.sampled_from(LOGINS))}{','.join(hosts)}{path}{'?' * bool(options)}{'&'.join(options)}"


@given(data=st.data())
def test_two_urls_have_one_name_if_and_only_if_they_lead_to_one_server(data: st.DataObject) -> None:
    one, other = data.draw(servers()), data.draw(servers())
    first, second, third = data.draw(urls(one)), data.draw(urls(one)), data.draw(urls(other))
    for url in (first, second, third):
        assert server_url(url) == url
    assert server_of(first) == server_of(second)
    assert same_server(first, second)
    assert same_server(first, third) == (one == other)


@given(data=st.data())
def test_a_name_leads_back_to_its_server_and_has_no_secret(data: st.DataObject) -> None:
    server = data.draw(servers())
    name = server_of(data.draw(urls(server)))
    url = server_url(url_of(name))
    assert server_of(url) == name
    assert not re.search("@|pass|user", name)
    if server.kind in ("redis", "unix"):
        found = parse_url(url)
        host, port = next(iter(server.hosts), ("", None))
        assert (found.get("host", ""), found.get("port")) == (host, port)
        assert (found.get("path", ""), found["db"]) == (server.name, server.database)


@given(data=st.data())
def test_another_database_changes_nothing_else(data: st.DataObject) -> None:
    server = data.draw(servers())
    database = 0 if server.kind == "cluster" else data.draw(st.integers(0, 15))
    url = data.draw(urls(server))
    changed = server_url(with_database(url, database))
    assert server_of(changed) == server_of(url).rpartition("/")[0] + f"/{database}"
    assert changed.partition("://")[0] == url.partition("://")[0]
    for option in ("username=u", "password=x%3D1", "ssl_cert_reqs=none"):
        assert (option in changed) == (option in url)


def test_a_cluster_that_is_named_by_one_node_is_that_server() -> None:
    assert same_server("redis+cluster://h:7000", "redis://h:7000/0")


READERS: dict[str, Callable[[str], object]] = {
    "service": lambda url: Settings(redis=url, in_="in", pending="p", out=["o"]).require_files(),
    "lists": Lists,
    "bus": check_url,
    "spark": lambda url: Options("redis-list", {"url": url, "list": "in"}, frozenset({"list"})).url(),
    "command line": server_url,
}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("ssl_cert_reqs=CERT_REQUIRED", "its ssl_cert_reqs is not none, optional or required"),
        ("ssl_check_hostname=maybe", "its ssl_check_hostname is not true or false"),
        ("ssl_min_version=TLSv1_2", "its ssl_min_version is not 771"),
        ("ssl_include_verify_flags=STRICT", "its ssl_include_verify_flags is not names of flags"),
        ("ssl_ca_cert=/ca.pem", "it has an option that we do not know"),
        ("ssl_cert_reqs=none&ssl_cert_reqs=required", "it has ssl_cert_reqs twice"),
        ("db=1&db=2", "it has db twice"),
        ("password=hun+ter2", r"an option contains \+, which redis-py reads as a space: write %2B for \+"),
        ("ssl_ca_certs=/no/such/file", "ssl_ca_certs=/no/such/file cannot be read: No such file or directory"),
        ("ssl_ca_certs=%2Fno%2Fsuch%2Ffile", "ssl_ca_certs=/no/such/file cannot be read"),
        ("ssl_certfile=/no/such/file", "ssl_certfile=/no/such/file cannot be read"),
        ("ssl_keyfile=/tmp", "ssl_keyfile=/tmp cannot be read: Is a directory"),
        ("ssl_ca_path=/no/such/folder", "ssl_ca_path=/no/such/folder is not a folder"),
        (f"ssl_ca_certs={__file__}", "ssl_ca_certs=.* has no certificate: expected PEM"),
        (f"ssl_certfile={__file__}", "ssl_certfile=.* cannot be used: expected a certificate and its key, as PEM"),
        (f"ssl_keyfile={__file__}", "ssl_keyfile=.* needs ssl_certfile=FILE"),
    ],
)
def test_a_wrong_option_is_named_wherever_a_url_is_read(options: str, reason: str) -> None:
    for name, read in READERS.items():
        with pytest.raises((PenstockError, ValueError), match=reason) as failure:
            read(f"rediss://:hunter2@h/0?{options}")
        assert not re.search("hunter2|ter2", str(failure.value)), name


def test_options_that_redis_py_knows_are_those_that_we_know() -> None:
    from inspect import signature

    from redis.asyncio.connection import SSLConnection

    assert TLS.keys() == {name for name in signature(SSLConnection).parameters if name.startswith("ssl_")}


def test_options_of_tls_need_tls() -> None:
    for url in ("redis://h?ssl_ca_certs=/ca.pem", "redis+sentinel://h/m?ssl_ca_certs=/c", "unix:///s?ssl_ca_certs=/c"):
        with pytest.raises(ValueError, match="its option ssl_ca_certs needs TLS, rediss"):
            server_url(url)


def test_files_that_fit_are_accepted(tmp_path: Path) -> None:
    own = certificate(tmp_path / "own", "491231")
    key = own.with_name("key.pem")
    for options in (f"ssl_ca_certs={own}", f"ssl_certfile={own}&ssl_keyfile={key}", f"ssl_ca_path={tmp_path}"):
        assert server_url(f"rediss://h?{options}")


def test_settings_with_the_files_of_another_machine_can_be_read_here() -> None:
    settings = Settings(redis="rediss://h?ssl_ca_certs=/no/such/file", in_="in", pending="p", out=["o"])
    with pytest.raises(SettingsError, match=r"^call redis: |^redis: ssl_ca_certs=/no/such/file cannot be read"):
        settings.require_files()


@pytest.mark.parametrize(
    ("password", "written"),
    [("hun/ter2", "%2F"), ("hun?ter2", "%3F"), ("hun[ter2", "%5B"), ("hun]ter2", "%5D"), ("hun/te/r2", "%2F")],
)
@pytest.mark.parametrize("login", ["", "user"])
def test_what_ends_a_password_in_a_url_is_named_with_what_to_write(login: str, password: str, written: str) -> None:
    for url in ("redis://{}@h:1/0", "unix://{}@/s", "redis+sentinel://{}@h/m", "rediss+cluster://{}@h,i"):
        with pytest.raises(ValueError, match=f"before @: in a password, . is written {written}") as failure:
            server_url(url.format(f"{login}:{password}"))
        assert "ter2" not in str(failure.value)


@pytest.mark.parametrize(
    "url", ["redis://h/0?username=a@b&nope=1", "redis://h/zero?password=x@y", "redis://h:6379/0/@x"]
)
def test_what_follows_the_host_is_taken_for_no_password(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a server") as failure:
        server_url(url)
    assert "before @" not in str(failure.value)
