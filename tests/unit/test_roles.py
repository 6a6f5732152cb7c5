"""Properties that are derived from the types of a service's fields."""

from datetime import timedelta
from typing import Any, ClassVar

import pytest

from common.settings.base import ServiceSettings
from common.settings.cli import _as_json, _as_table
from common.settings.fields import Url, setting
from common.settings.roles import (
    Answers,
    Done,
    In,
    Out,
    Outs,
    Pending,
    PopTimeout,
    ReplyList,
    ReplyLists,
    Subscribers,
    Target,
)
from penstock.base.errors import SettingsError, WrongCall

HERE, THERE = "redis://here/0", "redis://there/0"


class All(ServiceSettings):
    """A service with a field of every type."""

    service: ClassVar[str] = "all"
    buries: ClassVar[bool] = True

    in_: In
    pending: Pending
    out: Out | None = setting("name", "One list.", None)
    outs: Outs = setting("list of names", "One of several.", ["a", "b"])
    subscribers: Subscribers = setting("list of names", "All of several.", ["c", "d"])
    out_redis: Url = setting("URL", "The other server.", THERE)
    target: Target = setting("name", "A list there.", "there")
    answers: Answers | None = setting("name", "Answers.", None)
    done: Done | None = setting("name", "Finished ids.", None)
    reply_to: ReplyList | None = setting("name", "For answers.", None)
    reply_lists: ReplyLists = setting("list of names", "For answers.", [])
    pop_timeout: PopTimeout = 7


def made(**more: Any) -> All:
    return All(**{"redis": HERE, "redis_namespace": "ns", "in_": "in", "pending": "p", **more})


def problems(**more: Any) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        made(**more)
    return [f"{problem.property}: {problem.message}" for problem in refused.value.problems]


def test_lists_are_those_on_the_own_server_with_their_roles() -> None:
    settings = made(out="o", answers="ans", done="fin", reply_to="r", reply_lists=["s", "t:*"])
    roles = {"in": "in", "p": "pending", "o": "out", "a": "out", "b": "out", "c": "out", "d": "out", "ns:dead": "dead"}
    assert settings.lists() == roles | {"ans": "answers", "fin": "done", "r": "replies", "s": "replies"}


def test_pending_lists_are_those_of_each_list_that_is_read() -> None:
    assert made().pending_lists == ("p",)
    assert made(answers="ans").pending_lists == ("p", "p:answers")
    assert made(answers="ans").pending_for("answers") == "p:answers"
    assert made(answers="ans").adopts(("old", "old:answers")) == {"old": "p", "old:answers": "p:answers"}


def test_the_shape_says_which_setting_names_which_list_on_which_server() -> None:
    shape = made(answers="ans", done="fin").shape()
    found = {(end.key, end.use, end.setting, end.url, end.copies) for end in shape.ends}
    assert {("a", "writes", "outs", HERE, False), ("c", "writes", "subscribers", HERE, True)} <= found
    assert ("there", "writes", "target", THERE, False) in found
    assert ("p:answers", "keeps", "answers", HERE, False) in found
    assert ("ns:dead", "writes", "redisNamespace", HERE, False) in found
    assert [(end.key, end.role) for end in shape.watched] == [("fin", "done")]


def test_the_longest_wait_is_that_for_a_message() -> None:
    assert (made().longest_wait, made(pop_timeout=30).longest_wait) == (7, 30)


def test_there_are_no_dead_letters_without_a_namespace() -> None:
    assert made().dead_letters == "redis_namespace"
    assert made(redis_namespace=None).dead_letters is None


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"outs": ["x", "x"]}, 'outs: "x" more than once: name it once'),
        ({"subscribers": ["x", "x"]}, 'subscribers: "x" more than once: each message would come more than once'),
        ({"outs": ["c"]}, 'outs: "c" is `subscribers` as well: expected another list'),
        ({"outs": ["in"]}, 'outs: "in" is `in` as well: its messages would go round for ever'),
        ({"outs": ["x", "p"]}, 'outs: "p" is `pending` as well: expected another list'),
        ({"pending": "in"}, 'pending: "in" is `in` as well: expected another list'),
        ({"answers": "in"}, 'answers: "in" is `in` as well: expected another list'),
        ({"reply_lists": ["c"]}, 'replyLists: "c" is `subscribers` as well: expected another list'),
        ({"target": "in", "out_redis": HERE}, 'target: "in" on the same server is `in` as well'),
        ({"outs": ["ns:events"]}, 'outs: "ns:events" is a key of the service itself'),
        ({"outs": ["p:7"]}, 'outs: "p:7" is the pending list of an instance'),
        ({"outs": ["p:answers:7"]}, 'outs: "p:answers:7" is the pending list of an instance'),
        ({"outs": ["p:answers"]}, 'outs: "p:answers" is the pending list of `answers`'),
        ({"in_": "ns:dead"}, 'in: "ns:dead" is a key of the service itself'),
        ({"pending": "ns"}, 'pending: "ns" would give instances pending lists that are keys of the service'),
        ({"done": "ns:dead"}, 'done: "ns:dead" is a key of the service itself'),
        ({"outs": ["redis://h/0"]}, "outs: expected the name of a list on the same server, found a URL"),
    ],
    ids=str,
)
def test_a_list_is_used_once_and_is_not_the_kernels(more: dict[str, Any], expected: str) -> None:
    (problem,) = problems(**more)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    "more",
    [
        {"target": "in"},
        {"done": "ns:done"},
        {"reply_lists": ["in*"]},
        {"reply_to": "r", "reply_lists": ["r"]},
        {"outs": ["p:x"]},
        {"redis_namespace": None, "outs": ["ns:dead"]},
    ],
    ids=str,
)
def test_what_does_not_conflict_is_accepted(more: dict[str, Any]) -> None:
    made(**more)


def test_a_service_has_a_name() -> None:
    with pytest.raises(WrongCall, match="set `service`, the name of the service"):
        type("Nameless", (ServiceSettings,), {"__module__": __name__, "__annotations__": {}})


def test_a_rule_over_no_field_is_refused() -> None:
    def misspelt(popTimeout: int) -> str | None:
        return None

    body = {"__module__": __name__, "__annotations__": {}, "service": "odd", "rules": (misspelt,)}
    with pytest.raises(WrongCall, match="misspelt has a parameter popTimeout, which is no field"):
        type("Odd", (ServiceSettings,), body)


def test_two_fields_never_share_a_pending_list() -> None:
    body = {"__module__": __name__, "__annotations__": {"one": Answers, "two": Answers}, "service": "odd"}
    with pytest.raises(WrongCall, match="two fields would share a pending list"):
        type("Odd", (ServiceSettings,), body)


def test_a_field_whose_lists_could_not_be_found_is_refused() -> None:
    with pytest.raises(WrongCall, match="routes: expected a type such as Out or Outs itself"):

        class Nested(ServiceSettings):
            service: ClassVar[str] = "nested"
            routes: dict[str, Out]

    with pytest.raises(WrongCall, match="far: its server is that of a field out_redis, which the class does not have"):

        class Far(ServiceSettings):
            service: ClassVar[str] = "far"
            far: Target


def test_a_list_with_the_name_of_the_total_of_metrics_is_refused() -> None:
    with pytest.raises(SettingsError, match="`count` is the field of the total in the metrics"):
        All(redis=HERE, redis_namespace="ns", in_="count", pending="pending")
    assert All(redis=HERE, in_="count", pending="pending").in_ == "count"


def test_a_default_of_any_type_is_shown() -> None:
    class Timed(ServiceSettings):
        service: ClassVar[str] = "timed"
        every: timedelta = timedelta(seconds=5)

    assert '"every"' in _as_json(Timed(redis=HERE))
    assert "5" in _as_table(Timed(redis=HERE))
