"""Settings of a service: rows MP-10 to MP-20 and MP-D23, and every rule of mpush."""

import os
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from common.settings.fields import expected_of
from services.mpush.settings import Settings
from tests.support.given import ENVIRONMENT, ORIGINAL, made, one, refused


def from_environment(**more: str) -> Settings:
    return Settings.load(None, {**ENVIRONMENT, **more})


def test_mp_10_redis_is_required() -> None:
    assert one(redis=...).startswith("redis: missing: expected a URL")
    assert "MPUSH_REDIS or REDIS" in refused(None)[0]


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://user:p%40ss@[::1]:6379/15",
        "rediss://h:6379/0?ssl_cert_reqs=none",
        "unix:///run/redis.sock?db=2&password=x",
        "redis+sentinel://a:26379,b/main?db=1",
        "rediss+sentinel://u:p@a,b/main?db=1&sentinel_username=s&sentinel_password=t&sentinel_ssl=false&ssl_ca_certs=c",
        "redis+cluster://u:p@a:1,b:2",
        "rediss+cluster://a:1,b:2/0?ssl_ca_certs=c",
    ],
)
def test_mp_10_redis_may_be_any_url_that_the_connection_understands(url: str) -> None:
    assert made(redis=url).redis == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "localhost:6379",
            "http://h",
            "redis://",
            "redis://h:port",
            "redis://h:0",
            "redis://h/one",
            "redis://h/0/1",
        ),
        *(
            "redis://h:99999",
            "redis://h?protocol=3",
            "redis://secret@h",
            "redis://h?ssl_cert_reqs=none",
            "redis://h?db=x",
            "redis://h/0#x",
        ),
        *(
            "unix://run/redis.sock",
            "unix://",
            "redis+sentinel://a",
            "redis+sentinel://a:b/main",
            "redis+sentinel://a/main?ssl_ca_certs=c",
            "redis+sentinel://a/main?sentinel_pasword=t",
            "redis+cluster://a:1,b:2/1",
            "redis+cluster://",
            "redis://a b",
            "redis://[",
        ),
    ],
)
def test_mp_10_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    assert one(redis=url).startswith("redis: not the URL of a server")


def test_mp_11_in_and_pending_are_required_and_differ() -> None:
    assert one(in_=...).startswith("in: missing")
    assert one(pending=...).startswith("pending: missing")
    assert one(pending="in").startswith('pending: "in" is `in` as well')
    assert one(out=["a", "in"]).startswith('out: "in" is `in` as well')
    assert one(out=["a", "pending"]).startswith('out: "pending" is `pending` as well')
    assert one(in_="").startswith('in: expected a name, found ""')


def test_mp_12_out_is_a_list_of_names_that_do_not_repeat() -> None:
    assert one(out=...).startswith("out: missing")
    assert one(out=[]) == "out: expected a list of names, found a list of 0"
    assert one(out="a") == 'out: expected a list of names, found "a": put it in [brackets]'
    assert one(out=["a", 5]) == "out: expected a list of names, found 5 as item 2"
    assert one(out=["a", "b", "a"]).startswith('out: "a" more than once')
    assert one(out=[f"list {number}" for number in range(5_001)]).startswith("out: 5,001 lists: one step of the server")


def test_mp_13_pop_timeout_is_a_whole_number_from_5_to_30() -> None:
    assert [made(pop_timeout=seconds).pop_timeout for seconds in (5, "30")] == [5, 30]
    for wrong in (4, 31, 5.5, True, "ten", None, float("nan"), [5]):
        assert "popTimeout: expected a whole number of seconds from 5 to 30" in one(pop_timeout=wrong)


def test_mp_14_service_expire_is_60_unless_set_and_at_least_30() -> None:
    assert made().service_expire == 60
    assert "from 30 to" in one(service_expire=29, service_renew=20)


def test_mp_15_service_renew_has_one_rule_at_least_5_and_at_most_expire_less_5() -> None:
    assert made().service_renew == 15
    assert made(service_renew=5).service_renew == 5
    assert made(service_renew=55, service_expire=60).service_renew == 55
    assert "from 5 to" in one(service_renew=4)
    assert one(service_renew=57) == "serviceRenew: serviceRenew (57 s) must be at most serviceExpire - 5 (55 s)"


def test_mp_16_service_capacity_is_10_unless_set() -> None:
    assert made().service_capacity == 10
    assert "from 1 to" in one(service_capacity=0)


def test_mp_17_messages_outlive_their_timeout() -> None:
    settings = made()
    assert (settings.message_expire, settings.message_timeout, settings.message_capacity) == (60, 10, 1000)
    assert "messageExpire (10 s) must be longer than messageTimeout (10 s)" in one(message_expire=10)
    assert one(message_timeout=60).startswith("messageTimeout: messageExpire (60 s) must be longer")
    assert "from 1 to 3600" in one(message_timeout=3601)


def test_mp_18_a_namespace_needs_no_done_because_mpush_tracks_no_messages() -> None:
    assert made(redis_namespace="demo").redis_namespace == "demo"
    assert made().redis_namespace is None
    assert made(done="demo:done").warnings() == ["call done: done has no effect in mpush"]


def test_mp_18_service_namespace_is_another_name_of_redis_namespace() -> None:
    assert from_environment(MPUSH_SERVICE_NAMESPACE="demo").redis_namespace == "demo"
    assert from_environment(MPUSH_SERVICE_NAMESPACE="d", MPUSH_REDIS_NAMESPACE="d").redis_namespace == "d"
    (problem,) = refused(None, **ENVIRONMENT, MPUSH_SERVICE_NAMESPACE="d", MPUSH_REDIS_NAMESPACE="e")
    assert problem.startswith("MPUSH_SERVICE_NAMESPACE: contradicts MPUSH_REDIS_NAMESPACE")


@pytest.mark.parametrize("namespace", ["serviceNamespace", "redisNamespace"])
def test_mp_19_a_props_file_of_the_original_works_unchanged(tmp_path: Path, namespace: str) -> None:
    file = tmp_path / "props.js"
    file.write_text(ORIGINAL.replace("serviceNamespace", namespace))
    settings = Settings.load(file, {})
    assert (settings.redis, settings.service_redis) == ("redis://localhost:6379/1", "redis://localhost:6379/0")
    assert (settings.redis_namespace, settings.in_, settings.pending) == (
        "demo:mpush",
        "demo:mpush:in",
        "demo:mpush:pending",
    )
    assert (settings.out, settings.logger_level) == (["demo:mpush:out0", "demo:mpush:out1"], "debug")


def test_mp_19_the_environment_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "props.js"
    file.write_text(ORIGINAL)
    settings = Settings.load(file, {"MPUSH_POP_TIMEOUT": "7", "REDIS": "redis://r", "MPUSH_OUT": '["a,b", "c"]'})
    assert (settings.pop_timeout, settings.redis, settings.out) == (7, "redis://r", ["a,b", "c"])
    origins = settings.origins()
    assert origins["popTimeout"] == "environment MPUSH_POP_TIMEOUT"
    assert (origins["in"], origins["batch"]) == (f"{file}:6", "default")
    assert Settings.load(file, {"REDIS": "redis://r", "MPUSH_REDIS": "redis://m"}).redis == "redis://m"
    assert Settings.load(file, {"REDIS": "", "MPUSH_OUT": ""}).out == ["demo:mpush:out0", "demo:mpush:out1"]


def test_mp_19_the_level_of_the_log_as_the_original_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "props.yaml"
    file.write_text("loggerLevel: warn\n")
    assert from_environment().logger_level == "info"
    assert from_environment(loggerLevel="error").logger_level == "error"
    assert from_environment(NODE_ENV="development").logger_level == "debug"
    assert from_environment(NODE_ENV="production").logger_level == "info"
    assert (
        from_environment(loggerLevel="error", MPUSH_LOGGER_LEVEL="INFO", NODE_ENV="development").logger_level == "info"
    )
    assert Settings.load(file, {**ENVIRONMENT, "NODE_ENV": "development"}).logger_level == "warning"


def test_mp_20_the_effective_settings_are_shown_in_order_with_passwords_masked() -> None:
    settings = made(redis="redis://u:secret@h/1", service_redis="unix:///s?password=secret")
    shown = settings.shown()
    assert list(shown)[:3] == ["redis", "serviceRedis", "redisNamespace"]
    assert (shown["redis"], shown["in"], shown["popTimeout"]) == ("redis://u:***@h/1", "in", 10)
    assert "secret" not in f"{shown}{settings}{settings!r}"


def test_mp_d23_a_value_that_is_false_or_zero_is_a_value() -> None:
    assert made(ordered=False).ordered is False
    assert "found 0" in one(service_capacity=0)
    assert one(in_=0) == "in: expected a name, found 0"
    assert one(pop_timeout=None) == "popTimeout: expected a whole number of seconds from 5 to 30, found nothing"


def test_redis_of_the_environment_that_overrides_the_file_is_warned_of_with_both_places(tmp_path: Path) -> None:
    file = tmp_path / "mpush.yaml"
    file.write_text("in: in\npending: pending\nout: [a]\nredis: redis://:s3cret@h/1\n")
    (warning,) = Settings.load(file, {"REDIS": "redis://:s3cret@h/0"}).warnings()
    assert warning == (f"environment REDIS overrides {file}:4: redis: redis://:***@h/0 in place of redis://:***@h/1")
    for meant in (
        {},
        {"REDIS": ""},
        {"REDIS": "redis://:s3cret@h/1"},
        {"MPUSH_REDIS": "redis://x", "REDIS": "redis://y"},
    ):
        assert Settings.load(file, meant).warnings() == []
    (warning,) = Settings.load(file, {}).warnings({"REDIS": "redis://other"})
    assert "redis://other in place of" in warning


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("ssl_cert_reqs=none", "ssl_cert_reqs=none accepts any certificate"),
        ("ssl_check_hostname=False", "accepts the certificate of any other host"),
        ("ssl_check_hostname=0", "accepts the certificate of any other host"),
        ("ssl_min_version=769", "accepts TLS older than 1.2"),
        ("ssl_exclude_verify_flags=VERIFY_X509_STRICT", "skips checks"),
        ("ssl_cert_reqs=required&ssl_check_hostname=true&ssl_min_version=771&ssl_ca_certs=ca.pem", None),
    ],
)
def test_tls_that_verifies_nothing_is_warned_of(option: str, words: str | None) -> None:
    """Warn by the meaning that redis-py gives to an option, however it is written."""
    warnings = made(redis=f"rediss://u:s3cret@h/0?{option}", service_redis="rediss://h").warnings()
    assert len(warnings) == (words is not None)
    for warning in warnings:
        assert warning.startswith("call redis: redis: ssl_")
        assert words
        assert words in warning
        assert "s3cret" not in warning


def test_an_environment_name_in_a_props_file_is_answered_with_its_property(tmp_path: Path) -> None:
    """A Docker env_file has such names."""
    file = tmp_path / "mpush.env"
    file.write_text("MPUSH_IN=in\nMPUSH_POP_TIMEOUT=7\nMPUSH_TYPO=1\n")
    problems = refused(file, **ENVIRONMENT)
    hint = "is its name in the environment; in a props file write"
    assert problems[:2] == [
        f"{file}:1: MPUSH_IN: unknown property: MPUSH_IN {hint} in",
        f"{file}:2: MPUSH_POP_TIMEOUT: unknown property: MPUSH_POP_TIMEOUT {hint} popTimeout",
    ]
    assert problems[2].startswith(f"{file}:3: MPUSH_TYPO: unknown property")
    assert hint not in problems[2]


def test_every_setting_can_be_read_from_the_file_that_its_variable_names(tmp_path: Path) -> None:
    """Only the last line end is removed from the value."""
    for name, text in {"redis": "redis://:s3cret@h/1\n", "out": '["a", "b"]\r\n', "timeout": "7"}.items():
        (tmp_path / name).write_text(text)
    given = {"MPUSH_OUT_FILE": str(tmp_path / "out"), "MPUSH_POP_TIMEOUT_FILE": str(tmp_path / "timeout")}
    rest = {"MPUSH_IN": "in", "MPUSH_PENDING": "pending"}
    for variable in ("REDIS_FILE", "MPUSH_REDIS_FILE"):
        settings = Settings.load(None, rest | given | {variable: str(tmp_path / "redis")})
        assert (settings.redis, settings.out, settings.pop_timeout) == ("redis://:s3cret@h/1", ["a", "b"], 7)
        assert settings.origins()["redis"] == f"environment {variable}"
        assert "s3cret" not in str(settings.shown())
    settings = Settings.load(None, ENVIRONMENT | {"MPUSH_REDIS_FILE": str(tmp_path / "redis")})
    assert settings.redis == "redis://:s3cret@h/1", "a variable with the prefix is stronger than REDIS"
    file = tmp_path / "mpush.yaml"
    file.write_text("redis: redis://other\nin: in\npending: pending\nout: [a]\n")
    (warning,) = Settings.load(file, {"REDIS_FILE": str(tmp_path / "redis")}).warnings()
    assert warning.startswith(f"environment REDIS_FILE overrides {file}:1: redis: redis://:***@h/1 in place of")


@pytest.mark.parametrize("variable", ["MPUSH_REDIS", "REDIS"])
def test_a_setting_and_its_file_together_and_files_that_give_nothing_are_refused(tmp_path: Path, variable: str) -> None:
    rest = {"MPUSH_IN": "in", "MPUSH_PENDING": "pending", "MPUSH_OUT": "a"}
    places = {name: tmp_path / name for name in ("value", "empty", "bytes", "long", "fifo", "none")}
    places["value"].write_text("redis://h")
    places["empty"].write_text("\n")
    places["bytes"].write_bytes(b"\xff")
    places["long"].write_text("x" * 100_000)
    os.mkfifo(places["fifo"])

    def said(value: object, **more: str) -> str:
        (problem,) = refused(None, **rest, **{f"{variable}_FILE": str(value)}, **more)
        return problem.removeprefix(f"{variable}_FILE: ")

    assert said(places["value"], **{variable: "redis://h"}) == f"{variable} is set as well: expected one of them"
    assert said(places["empty"]) == f"{places['empty']} is empty: expected one value"
    assert said(places["bytes"]) == f"{places['bytes']} is not UTF-8"
    assert said(places["long"]) == f"{places['long']} is longer than 65536 bytes: expected one value"
    assert said(places["fifo"]) == f"{places['fifo']} cannot be read: not a regular file"
    assert said(places["none"]) == f"{places['none']} cannot be read: No such file or directory"
    assert said(tmp_path) == f"{tmp_path} cannot be read: Is a directory"
    assert said("redis://:s3cret@h") == "the file cannot be read: No such file or directory"
    assert refused(None, **ENVIRONMENT, MPUSH_TYPO_FILE="x")[0].startswith("MPUSH_TYPO_FILE: unknown variable")


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (float, "a number"),
        (int, "a whole number"),
        (int | None, "a whole number"),
        (bool, "true | false"),
        (list[str], "a list"),
        (dict, "a value"),
    ],
)
def test_a_field_that_says_no_kind_is_named_by_its_type(annotation: object, expected: str) -> None:
    assert expected_of(FieldInfo(annotation=annotation)) == expected  # type: ignore[arg-type]


def test_a_number_without_bounds_has_its_unit() -> None:
    assert expected_of(FieldInfo(annotation=float, json_schema_extra={"kind": "seconds"})) == "a number of seconds"
