"""Settings of vpush, and what they refuse, with the error texts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.settings.fields import kind_of
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
DEFAULTS: dict[str, Any] = {
    "pop_timeout": 10,
    "batch": 5_000,
    "batch_bytes": 1_048_576,
    "window": 200,
    "window_bytes": 67_108_864,
    "link_timeout": 10,
    "compression": "none",
    "unpack": False,
    "max_hops": None,
    "ordered": True,
    "lease_expire": 1.2,
    "durability": "memory",
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


def test_defaults_are_what_is_documented() -> None:
    settings = made()
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS


def test_all_missing_settings_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as refusal:
        Settings()
    said = [str(problem) for problem in refusal.value.problems]
    expected = ["redis", "redisNamespace", "in", "pending", "outRedis", "out"]
    assert sorted(line.partition(":")[0] for line in said) == sorted(expected)
    assert all("missing" in line for line in said)


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("pop_timeout", (4, 31, "ten", True, None, 5.5), (5, 30, "7")),
        ("batch", (0, 5_001, -1), (1, 5_000)),
        ("batch_bytes", (0, 536_870_913), (1, 536_870_912)),
        ("window", (0, 10_001, "wide"), (1, 10_000)),
        ("window_bytes", (0, 2**40 + 1), (1, 2**40)),
        ("link_timeout", (0, 601, True), (1, 600)),
        ("max_hops", (0, 1_001, "far"), (1, 1_000)),
        ("lease_expire", (0.9, 3601, "soon", float("nan")), (1, 1.5, 3600)),
    ],
)
def test_a_number_out_of_its_bounds_is_refused_by_name(
    field: str, wrong: tuple[Any, ...], right: tuple[Any, ...]
) -> None:
    head, *rest = field.split("_")
    written = head + "".join(word.title() for word in rest)
    for value in right:
        assert getattr(made(**{field: value}), field) == float(value)
    for value in wrong:
        assert one(**{field: value}).startswith(f"{written}: expected a ")


def test_transport_needs_a_namespace() -> None:
    assert one(redis_namespace=...) == (
        "redisNamespace: missing: expected a name, "
        "in a props file or as VPUSH_REDIS_NAMESPACE or VPUSH_SERVICE_NAMESPACE"
    )


def test_of_a_file_that_cannot_be_read_nothing_is_called_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        Settings.load(tmp_path / "nowhere.yaml", {})
    (problem,) = refusal.value.problems
    assert "cannot be read" in str(problem)


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


def test_in_is_no_pending_list_of_an_instance() -> None:
    assert "is the pending list of an instance" in one(in_="pending:7")


def test_out_is_one_name() -> None:
    assert made(out=["out"]).out == "out"
    assert one(out=["a", "b"]).startswith("out: expected a name")
    assert one(out="redis://h") == "out: expected a name, found the URL of a server"


@pytest.mark.parametrize("url", ["there:6379", "http://there", "redis://", "redis://there/one", "redis://u@there", ""])
def test_the_other_server_is_named_by_a_url(url: str) -> None:
    assert one(out_redis=url).startswith("outRedis: not the URL of a server (")


def test_the_longest_wait_on_the_server_covers_the_pop_and_the_disk() -> None:
    assert made(pop_timeout=7).longest_wait == 7
    assert made(pop_timeout=7, durability="aof", durability_timeout=20).longest_wait == 20


def test_lists_and_metrics_are_those_of_the_source() -> None:
    settings = made(out="elsewhere")
    assert settings.lists() == {"in": "in", "pending": "pending", "demo:dead": "dead"}
    assert settings.pending_lists == ("pending",)
    assert settings.metrics() == ("taken", "settled", "delivered", "dead", "dropped", "batches")


def test_an_unknown_name_is_reported_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "props.yaml"
    file.write_text("outRedi: redis://there\n")
    with pytest.raises(SettingsError) as refusal:
        Settings.load(file, {**ENVIRONMENT, "VPUSH_WINDW": "5"})
    said = str(refusal.value)
    assert "outRedi: unknown property: did you mean outRedis?" in said
    assert "VPUSH_WINDW: unknown variable: did you mean VPUSH_WINDOW?" in said


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "props.yaml"
    file.write_text("out: other\nwindow: 7\n")
    settings = Settings.load(file, ENVIRONMENT)
    assert (settings.out, settings.window) == ("out", 7)


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


def test_help_shows_every_setting_with_its_unit_its_default_and_its_variable() -> None:
    lines = said_by({}, "--help").stdout.splitlines()
    names = Settings.names()
    for field, about in Settings.model_fields.items():
        (written,) = [each for each in names.properties_of(field) if each != "serviceNamespace"]
        (place,) = [number for number, line in enumerate(lines) if line.split()[:1] == [written]]
        paragraph = "\n".join(lines[place : place + 4])
        assert names.variable_of(field) in paragraph, field
        assert kind_of(about) in paragraph, field
        assert str(about.description)[:30] in paragraph, field


def test_start_is_refused_with_status_2_and_everything_that_is_wrong() -> None:
    ended = said_by(ENVIRONMENT | {"VPUSH_PENDING": "in", "VPUSH_BATCH": "0"})
    assert ended.returncode == 2
    assert '"in" is `in` as well: expected another list' in ended.stderr
    assert "VPUSH_BATCH: expected a whole number of messages from 1 to 5000" in ended.stderr


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
