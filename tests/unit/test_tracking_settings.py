"""Settings of mdispatch and monitor, and what they refuse."""

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from common.acl import least
from common.settings.base import ServiceSettings
from common.settings.fields import kind_of
from penstock.base.errors import SettingsError
from services.mdispatch.settings import Settings as Mdispatch
from services.monitor.settings import Settings as Monitor
from tests.support.given import problems_of
from tests.support.harness import ROOT

LEAST: dict[type[ServiceSettings], dict[str, Any]] = {
    Mdispatch: {"redis": "redis://h", "redis_namespace": "demo", "in_": "in", "pending": "pending", "out": "out"},
    Monitor: {"redis": "redis://h", "redis_namespace": "watcher", "watch": ["demo"]},
}
DEFAULTS: dict[type[ServiceSettings], dict[str, Any]] = {
    Mdispatch: {
        "done": None,
        "res": None,
        "reply_to": None,
        "reply_lists": [],
        "reply_expire": 60,
        "pop_timeout": 10,
        "batch": 500,
        "batch_bytes": 2_097_152,
        "message_timeout": 10,
        "message_expire": 60,
        "message_capacity": 100_000,
        "attempts": 3,
        "message_attempts": "obey",
        "retry_budget": None,
        "backoff": [],
        "backoff_base": 1.0,
        "backoff_cap": 5.0,
        "event_capacity": 100_000,
        "event_messages": False,
        "ordered": False,
        "durability": "memory",
    },
    Monitor: {"pop_timeout": 30, "batch": 500, "batch_bytes": 2_097_152, "metrics_port": 9464},
}
Service = type[ServiceSettings]
BOTH = pytest.mark.parametrize("service", [Mdispatch, Monitor], ids=["mdispatch", "monitor"])


def made(service: Service, **more: Any) -> Any:
    return service(**{**LEAST[service], **more})


def problems(service: Service, **more: Any) -> list[str]:
    """Return the problems of minimal settings with ``more``; ``...`` omits a setting."""
    return problems_of(service, {**LEAST[service], **more})


def one(service: Service, **more: Any) -> str:
    (problem,) = problems(service, **more)
    return problem


def dispatching(**more: Any) -> str:
    return one(Mdispatch, **more)


@BOTH
def test_defaults_are_what_is_documented(service: Service) -> None:
    settings = made(service)
    assert {name: getattr(settings, name) for name in DEFAULTS[service]} == DEFAULTS[service]


@BOTH
def test_all_missing_settings_are_reported_at_once(service: Service) -> None:
    expected = {Mdispatch: ["redis", "in", "pending", "out", "redisNamespace"], Monitor: ["redis", "watch"]}
    with pytest.raises(SettingsError) as refusal:
        service()
    said = [str(problem) for problem in refusal.value.problems]
    assert {line.partition(":")[0] for line in said} >= set(expected[service])
    assert all("missing" in line for line in said)


@pytest.mark.parametrize(
    ("service", "field", "wrong", "right"),
    [
        (Mdispatch, "pop_timeout", (4, 31, "ten", True, None, 5.5), (5, 30, "7")),
        (Mdispatch, "batch", (0, 1001, -1), (1, 1000)),
        (Mdispatch, "batch_bytes", (0, 536_870_913), (1, 536_870_912)),
        (Mdispatch, "message_timeout", (0, 3601), (1,)),
        (Mdispatch, "message_expire", (1, 31_536_001), (61, 31_536_000)),
        (Mdispatch, "message_capacity", (0, 10**9 + 1), (1, 10**9)),
        (Mdispatch, "attempts", (0, 101, True), (1,)),
        (Mdispatch, "backoff_base", (-1, 3601, "soon", float("nan")), (0, 0.5)),
        (Mdispatch, "backoff_cap", (-1, 86_401), (0, 0.1)),
        (Mdispatch, "event_capacity", (-1, 10**9 + 1), (0, 10**9)),
        (Mdispatch, "reply_expire", (0, 31_536_001), (1,)),
        (Monitor, "pop_timeout", (4, 31), (5, 30)),
        (Monitor, "batch", (0, 1001), (1, 1000)),
        (Monitor, "batch_bytes", (0,), (1,)),
        (Monitor, "metrics_port", (-1, 65_536, "http"), (0, 65_535)),
    ],
)
def test_a_number_out_of_its_bounds_is_refused_by_name(
    service: Service, field: str, wrong: tuple[Any, ...], right: tuple[Any, ...]
) -> None:
    head, *rest = field.split("_")
    written = head + "".join(word.title() for word in rest)
    for value in right:
        assert getattr(made(service, **{field: value}), field) == float(value)
    for value in wrong:
        assert one(service, **{field: value}).startswith(f"{written}: expected a ")


@pytest.mark.parametrize("backoff", [[1, 5, 30], "1, 5, 30", "[1, 5, 30]", "0.5", []], ids=str)
def test_a_back_off_is_a_list_of_seconds(backoff: Any) -> None:
    more = {"message_expire": 1000}
    if isinstance(backoff, str):
        environ = {"REDIS": "redis://h", "MDISPATCH_REDIS_NAMESPACE": "demo", "MDISPATCH_IN": "in"}
        environ |= {"MDISPATCH_PENDING": "pending", "MDISPATCH_OUT": "out", "MDISPATCH_MESSAGE_EXPIRE": "1000"}
        found = Mdispatch.load(None, environ | {"MDISPATCH_BACKOFF": backoff}).backoff
    else:
        found = made(Mdispatch, backoff=backoff, **more).backoff
    assert found in ([1, 5, 30], [0.5], [])


@pytest.mark.parametrize(
    "backoff", [[-1], ["soon"], [True], [float("nan")], [float("inf")], 5, [1] * 101, [86_401]], ids=str
)
def test_a_back_off_that_is_none_is_refused(backoff: Any) -> None:
    assert one(Mdispatch, backoff=backoff, message_expire=31_536_000).startswith("backoff: ")


@pytest.mark.parametrize(
    ("more", "arithmetic"),
    [
        (
            {"message_expire": 45},
            "messageExpire (45 s) must be longer than attempts x (messageTimeout + longest back-off) = "
            "3 x (10 s + 2 s) = 36 s",
        ),
        (
            {"message_expire": 60, "backoff": [1, 5, 30], "attempts": 4},
            "messageExpire (60 s) must be longer than attempts x (messageTimeout + longest back-off) = "
            "4 x (10 s + 30 s) = 160 s",
        ),
        (
            {"message_timeout": 20, "attempts": 3, "backoff": [0.5]},
            "messageExpire (60 s) must be longer than attempts x (messageTimeout + longest back-off) = "
            "3 x (20 s + 0.5 s) = 61.5 s",
        ),
        (
            {"message_timeout": 60, "attempts": 1, "backoff": [100]},
            "messageExpire (60 s) must be longer than attempts x (messageTimeout + longest back-off) = "
            "1 x (60 s + 0 s) = 60 s",
        ),
        (
            {"message_expire": 100, "message_timeout": 1, "attempts": 10, "backoff_base": 3, "backoff_cap": 3600},
            "messageExpire (100 s) must be longer than attempts x (messageTimeout + longest back-off) = "
            "10 x (1 s + 768 s) = 7690 s",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_record_that_would_not_outlive_all_attempts_is_refused_with_the_arithmetic(
    more: dict[str, Any], arithmetic: str
) -> None:
    if more == {"message_expire": 45}:
        assert made(Mdispatch, **more).message_expire == 45
        more = {"message_expire": 36}
        arithmetic = arithmetic.replace("45", "36")
    assert arithmetic in dispatching(**more)
    needed = float(arithmetic.split()[-2])
    enough = int(needed) + 1
    assert made(Mdispatch, **more | {"message_expire": enough}).message_expire == enough


def test_lists_of_different_meaning_have_different_names() -> None:
    names = {"in_": "in", "pending": "pending", "out": "out", "res": "res", "reply_to": "replies"}
    assert made(Mdispatch, **names).res == "res"
    for role in names:
        for other in names:
            if role != other:
                found = problems(Mdispatch, **names | {role: names[other]})
                assert any("` as well: " in problem for problem in found), (role, other)


@pytest.mark.parametrize("role", ["in_", "pending", "out", "res", "reply_to"])
@pytest.mark.parametrize("name", ["demo:dead", "demo:events", "demo:message:1", "demo:message:xid:a", "demo:7"])
def test_a_list_is_no_key_of_the_service_itself(role: str, name: str) -> None:
    names = {"res": "res"} if role == "reply_to" else {}
    found = problems(Mdispatch, **names | {role: name})
    assert any("is a key of the service itself" in problem for problem in found)


@pytest.mark.parametrize("role", ["in_", "out", "res", "reply_to"])
def test_a_list_is_no_pending_list_of_an_instance(role: str) -> None:
    found = problems(Mdispatch, **{"res": "res"} | {role: "pending:7"})
    assert any("is the pending list of an instance" in problem for problem in found)


@pytest.mark.parametrize("done", ["in", "out", "pending", "res", "replies", "pending:7", "demo:dead", "demo:message:1"])
def test_the_done_list_is_a_list_of_its_own(done: str) -> None:
    assert problems(Mdispatch, res="res", reply_to="replies", done=done)
    assert made(Mdispatch, done="finished").lists()["finished"] == "done"
    assert made(Mdispatch, done="demo:done").lists()["demo:done"] == "done"


@pytest.mark.parametrize("role", ["in_", "out", "res", "reply_to", "pending"])
def test_no_other_list_is_the_done_list_by_default(role: str) -> None:
    assert problems(Mdispatch, **{"res": "res"} | {role: "demo:done"})


@pytest.mark.parametrize("role", ["in_", "out", "res", "reply_to"])
def test_no_list_is_the_pending_list_of_answers(role: str) -> None:
    for name in ("pending:answers", "pending:answers:7"):
        assert problems(Mdispatch, **{"res": "res"} | {role: name}), name


@pytest.mark.parametrize("pending", ["demo", "demo:metrics", "demo:message", "demo:dead", "demo:7"])
def test_no_pending_list_of_an_instance_is_a_key_of_the_service(pending: str) -> None:
    assert problems(Mdispatch, pending=pending)


def test_the_list_is_not_called_as_the_total_of_the_metrics() -> None:
    assert "`count` is the field of the total" in dispatching(out="count")


def test_replies_need_answers() -> None:
    assert dispatching(reply_to="replies").startswith("replyTo: has no effect without res")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("in", '"in" is `in` as well'),
        ("out", '"out" is `out` as well'),
        ("demo:done", "is a key of the service itself"),
        ("demo:dead", "is a key of the service itself"),
        ("demo:7", "is a key of the service itself"),
        ("pending:7", "is the pending list of an instance"),
        ("pending:answers:7", "is the pending list of an instance"),
    ],
)
def test_reply_lists_name_no_list_of_the_service_itself(name: str, reason: str) -> None:
    assert reason in dispatching(reply_lists=["to:*", name])


def test_reply_lists_are_those_of_the_namespace_by_default() -> None:
    assert made(Mdispatch).replies == ["demo:reply:*"]
    assert made(Mdispatch, reply_lists=["a", "b:*"]).lists().get("a") == "replies"
    environ = {"REDIS": "redis://h", "MDISPATCH_REDIS_NAMESPACE": "demo", "MDISPATCH_IN": "in"}
    environ |= {"MDISPATCH_PENDING": "pending", "MDISPATCH_OUT": "out", "MDISPATCH_REPLY_LISTS": "a, b:*"}
    found = Mdispatch.load(None, environ)
    assert found.reply_lists == ["a", "b:*"]


def test_an_out_list_is_one_name() -> None:
    assert made(Mdispatch, out=["out"]).out == "out"
    assert dispatching(out=["a", "b"]).startswith("out: expected a name")
    assert dispatching(out="redis://h").startswith("out: expected a name, found the URL of a server")


def test_the_rights_of_the_user_include_all_that_the_start_demands() -> None:
    settings = made(Mdispatch, done="elsewhere:done")
    rights = least(settings)[settings.redis]
    granted = (*rights.keys, *rights.reads)
    assert [name for name in settings.lists() if not any(fnmatchcase(name, each) for each in granted)] == []


def test_tracking_needs_a_namespace() -> None:
    assert dispatching(redis_namespace=...).startswith("redisNamespace: missing: expected a name")


def test_a_monitor_has_a_namespace_of_its_own_and_watches_others() -> None:
    assert one(Monitor, redis_namespace=...).startswith("redisNamespace: missing: expected a name")
    assert "a monitor needs a namespace of its own" in one(Monitor, watch=["demo", "watcher"])
    assert '"demo" more than once' in one(Monitor, watch=["demo", "other", "demo"])
    assert one(Monitor, watch=[]).startswith("watch: expected a list of names")
    assert made(Monitor, watch=["demo", "other"]).pending_lists == ("watcher:pending:demo", "watcher:pending:other")


@BOTH
def test_an_unknown_name_is_reported_with_the_nearest(service: Service, tmp_path: Path) -> None:
    wrong = {Mdispatch: ("messageTimeut", "messageTimeout"), Monitor: ("metricPort", "metricsPort")}[service]
    file = tmp_path / "props.yaml"
    file.write_text(f"{wrong[0]}: 5\n")
    prefix = service.service.upper()
    with pytest.raises(SettingsError) as refusal:
        service.load(file, {f"{prefix}_BATC": "5"})
    said = str(refusal.value)
    assert f"{wrong[0]}: unknown property: did you mean {wrong[1]}?" in said
    assert f"{prefix}_BATC: unknown variable: did you mean {prefix}_BATCH?" in said


@pytest.mark.parametrize(("service", "name"), [(Mdispatch, "mdispatch"), (Monitor, "monitor")])
def test_help_shows_every_setting_with_its_unit_its_default_and_its_variable(service: Service, name: str) -> None:
    words = [sys.executable, "-m", f"services.{name}", "--help"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = shown.splitlines()
    names = service.names()
    for field, about in service.model_fields.items():
        (written,) = [each for each in names.properties_of(field) if each != "serviceNamespace"]
        (place,) = [number for number, line in enumerate(lines) if line.split()[:1] == [written]]
        paragraph = "\n".join(lines[place : place + 4])
        assert names.variable_of(field) in paragraph, field
        assert kind_of(about) in paragraph, field
        assert str(about.description)[:30] in paragraph, field


def test_start_is_refused_with_status_2_and_the_arithmetic() -> None:
    environ = {"REDIS": "redis://127.0.0.1:1", "MDISPATCH_REDIS_NAMESPACE": "demo", "MDISPATCH_IN": "in"}
    environ |= {"MDISPATCH_PENDING": "pending", "MDISPATCH_OUT": "out", "MDISPATCH_MESSAGE_EXPIRE": "30"}
    words = [sys.executable, "-m", "services.mdispatch"]
    ended = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "3 x (10 s + 2 s) = 36 s" in ended.stderr
