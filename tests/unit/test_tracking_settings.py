"""Settings of mdispatch and monitor, and what they refuse."""

from fnmatch import fnmatchcase
from typing import Any

import pytest

from common.acl import least
from common.settings.base import ServiceSettings
from services.mdispatch.settings import Settings as Mdispatch
from services.monitor.settings import Settings as Monitor
from tests.support.given import problems_of

LEAST: dict[type[ServiceSettings], dict[str, Any]] = {
    Mdispatch: {"redis": "redis://h", "redis_namespace": "demo", "in_": "in", "pending": "pending", "out": "out"},
    Monitor: {"redis": "redis://h", "redis_namespace": "watcher", "watch": ["demo"]},
}
Service = type[ServiceSettings]


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
def test_a_list_is_no_key_of_the_service_itself(role: str) -> None:
    keys = ["demo:dead", "demo:events", "demo:message:1", "demo:message:xid:a", "demo:7", "demo:done"]
    if role != "pending":
        keys += ["pending:7", "pending:answers", "pending:answers:7"]
    for name in keys:
        assert problems(Mdispatch, **{"res": "res"} | {role: name}), name


@pytest.mark.parametrize("done", ["in", "out", "pending", "res", "replies", "pending:7", "demo:dead", "demo:message:1"])
def test_the_done_list_is_a_list_of_its_own(done: str) -> None:
    assert problems(Mdispatch, res="res", reply_to="replies", done=done)
    assert made(Mdispatch, done="finished").lists()["finished"] == "done"
    assert made(Mdispatch, done="demo:done").lists()["demo:done"] == "done"


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


def test_a_monitor_has_a_namespace_of_its_own_and_watches_others() -> None:
    assert one(Monitor, redis_namespace=...).startswith("redisNamespace: missing: expected a name")
    assert "a monitor needs a namespace of its own" in one(Monitor, watch=["demo", "watcher"])
    assert '"demo" more than once' in one(Monitor, watch=["demo", "other", "demo"])
    assert one(Monitor, watch=[]).startswith("watch: expected a list of names")
    assert made(Monitor, watch=["demo", "other"]).pending_lists == ("watcher:pending:demo", "watcher:pending:other")
