"""Settings of vpush, and what they refuse, with the error texts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import SettingsError
from services.vpush.settings import Settings
from tests.support.given import problems_of
from tests.support.harness import ROOT
from tests.support.vpush import HERE, LEAST, THERE, made

ENVIRONMENT = {
    "REDIS": HERE,
    "VPUSH_REDIS_NAMESPACE": "demo",
    "VPUSH_IN": "in",
    "VPUSH_PENDING": "pending",
    "VPUSH_OUT_REDIS": THERE,
    "VPUSH_OUT": "out",
}


def problems(**more: Any) -> list[str]:
    """Return the problems of minimal settings with ``more``; ``...`` omits a setting."""
    return problems_of(Settings, {**LEAST, **more})


def one(**more: Any) -> str:
    (problem,) = problems(**more)
    return problem


def said_by(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.vpush", *words]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_transport_needs_a_namespace() -> None:
    assert one(redis_namespace=...) == (
        "redisNamespace: missing: expected a name, "
        "in a props file or as VPUSH_REDIS_NAMESPACE or VPUSH_SERVICE_NAMESPACE"
    )


def test_one_instance_is_active_whatever_is_asked_for() -> None:
    assert one(ordered=False) == "ordered: false would let instances overtake each other: leave it out"
    assert made(ordered=True).ordered is True


def test_pending_is_another_list_than_in() -> None:
    assert one(pending="in") == 'pending: "in" is `in` as well: expected another list'


def test_what_is_unpacked_is_not_compressed_again() -> None:
    assert one(compression="zstd", unpack=True) == (
        "unpack: this and compression: zstd exclude each other: leave one out; "
        "to send on compressed, run a second vpush"
    )
    assert made(compression="zstd").compression == "zstd"
    assert made(unpack=True).unpack
    assert one(compression="gzip").startswith("compression: expected none | zstd")


def test_what_is_unpacked_has_no_hops_to_count() -> None:
    assert one(max_hops=3, unpack=True) == (
        "maxHops: cannot be counted in what comes compressed: "
        "leave it out here, and set it on the vpush that compresses"
    )
    assert made(max_hops=3, compression="zstd").max_hops == 3


def test_the_lists_may_be_called_the_same_on_both_servers() -> None:
    assert made(out="in").out == "in"
    assert made(out="pending").out == "pending"


@pytest.mark.parametrize(("name", "reason"), [("in", "round for ever"), ("pending", "another list")])
def test_out_is_not_filled_from_itself(name: str, reason: str) -> None:
    expected = f'out: "{name}" on the same server is `{name}` as well: '
    found = one(out_redis=HERE, out=name)
    assert found.startswith(expected)
    assert found.endswith(reason)
    assert made(out_redis=HERE).out == "out"


def test_out_on_the_same_server_is_no_key_of_the_service() -> None:
    assert "is a key of the service itself" in one(out_redis=HERE, out="demo:sequence")
    assert "is the pending list of an instance" in one(out_redis=HERE, out="pending:7")
    assert made(out="demo:sequence").out == "demo:sequence"


@pytest.mark.parametrize(
    "name", ["demo:sequence", "demo:link", "demo:lease", "demo:dead", "demo:metrics:taken", "demo:7", "demo:id"]
)
@pytest.mark.parametrize("role", ["in_", "pending"])
def test_a_list_is_no_key_of_the_service_itself(role: str, name: str) -> None:
    assert any("is a key of the service itself" in problem for problem in problems(**{role: name}))
    assert getattr(made(**{role: f"other:{name}"}), role) == f"other:{name}"


@pytest.mark.parametrize("url", ["there:6379", "http://there", "redis://", "redis://there/one", "redis://u@there", ""])
def test_the_other_server_is_named_by_a_url(url: str) -> None:
    assert one(out_redis=url).startswith("outRedis: not the URL of a server (")


def test_lists_and_metrics_are_those_of_the_source() -> None:
    settings = made(out="elsewhere")
    assert settings.lists() == {"in": "in", "pending": "pending", "demo:dead": "dead"}
    assert settings.pending_lists == ("pending",)
    assert settings.metrics() == ("taken", "settled", "delivered", "dead", "dropped", "batches")


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    [
        "redis://user:s3cr3t@there:6379/1",
        "rediss://:s3cr3t@there:6379/1?ssl_min_version=772",
        "unix:///socket?password=s3cr3t",
    ],
)
def test_the_password_of_the_other_server_is_never_shown(url: str, tmp_path: Path) -> None:
    file = tmp_path / "props.json"
    file.write_text(json.dumps({"outRedis": url}))
    environ = {name: value for name, value in ENVIRONMENT.items() if name != "VPUSH_OUT_REDIS"}
    for words, given in (([str(file)], environ), ([], {**environ, "VPUSH_OUT_REDIS": url})):
        for more in ({}, {"VPUSH_BATCH": "none"}, {"VPUSH_OUT": url}):
            ended = said_by(given | more, "--check", *words)
            assert ended.returncode == (2 if more else 0), ended.stderr
            assert "s3cr3t" not in ended.stdout + ended.stderr
            assert bool(more) or "***" in ended.stdout + ended.stderr
    settings = made(out_redis=url)
    assert "s3cr3t" not in f"{settings!r} {settings} {settings.shown()}"
    assert settings.out_redis == url


@pytest.mark.parametrize(
    ("here", "there", "is_loop"),
    [
        ("redis://localhost:6379?db=1", "redis://localhost:6379?db=2", False),
        ("redis://localhost:6379/1", "redis://127.0.0.1?db=1", True),
        ("unix:///s?db=1", "unix:///s?db=2", False),
        ("rediss://h?ssl_cert_reqs=none", "redis://H:6379/0", True),
    ],
)
def test_a_list_of_the_same_server_is_a_loop_however_its_url_is_written(here: str, there: str, is_loop: bool) -> None:
    named = {"redis": here, "out_redis": there, "in_": "orders", "out": "orders"}
    if is_loop:
        with pytest.raises(SettingsError, match=r'"orders" on the same server is `in` as well: .* round for ever'):
            made(**named)
    else:
        assert made(**named).lists()["orders"] == "in"
