"""Settings of mdedupe and mlimit: what contradicts itself is refused, and what the services write is declared."""

from typing import Any

import pytest

from penstock.base.errors import SettingsError
from services.mdedupe import settings as mdedupe
from services.mlimit import settings as mlimit

NAMES: dict[str, Any] = {"redis": "redis://h", "redis_namespace": "ns", "in_": "in", "pending": "pending", "out": "out"}
RATE = {"rate": 5}


@pytest.mark.parametrize(
    ("settings", "more", "words"),
    [
        (mdedupe.Settings, {"redis_namespace": None}, "under which the remembered keys lie"),
        (mdedupe.Settings, {"by": "field"}, "field is missing: expected the path of a JSON field"),
        (mdedupe.Settings, {"field": "a"}, "has no effect unless by is field"),
        (mdedupe.Settings, {"expire": 0}, "expire"),
        (mdedupe.Settings, {"duplicates": "in"}, "would go round for ever"),
        (mdedupe.Settings, {"duplicates": "out"}, "is `out` as well"),
        (mlimit.Settings, RATE | {"redis_namespace": None}, "under which the buckets lie"),
        (mlimit.Settings, {}, "rate"),
        (mlimit.Settings, {"rate": 0}, "rate"),
        (mlimit.Settings, {"rate": 1e9}, "rate"),
        (mlimit.Settings, {"rate": float("nan")}, "rate"),
        (mlimit.Settings, RATE | {"burst": 0}, "burst"),
        (mlimit.Settings, RATE | {"by": "header"}, "field is missing: expected the name of a header"),
        (mlimit.Settings, RATE | {"by": "field"}, "field is missing: expected the path of a JSON field"),
        (mlimit.Settings, RATE | {"field": "a"}, "has no effect with by: all"),
        (mlimit.Settings, RATE | {"over": "list"}, "overList is missing: expected a name"),
        (mlimit.Settings, RATE | {"over_list": "b"}, "has no effect unless over is list"),
        (mlimit.Settings, RATE | {"over": "list", "over_list": "in"}, "would go round for ever"),
        (mlimit.Settings, RATE | {"reply_lists": ["web:*"]}, "has no effect unless over is answer"),
    ],
)
def test_what_cannot_work_is_refused(settings: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings(**{**NAMES, **more})


@pytest.mark.parametrize(("rate", "burst", "expected"), [(5, None, 5), (0.1, None, 1), (2.5, None, 3), (5, 1, 1)])
def test_a_bucket_holds_the_messages_of_a_second_by_default(rate: float, burst: int | None, expected: int) -> None:
    assert mlimit.Settings(**NAMES, rate=rate, burst=burst).burst_size == expected


def test_lists_for_duplicates_and_for_what_is_over_the_limit_are_outputs() -> None:
    assert mdedupe.Settings(**NAMES, duplicates="again").lists() == {
        "in": "in",
        "pending": "pending",
        "out": "out",
        "again": "out",
    }
    limited = mlimit.Settings(**NAMES, rate=5, over="list", over_list="surplus")
    assert limited.lists() == {"in": "in", "pending": "pending", "out": "out", "surplus": "out", "ns:dead": "dead"}


def test_answers_may_go_to_the_lists_of_the_namespace_or_to_those_that_are_named() -> None:
    assert mlimit.Settings(**NAMES, rate=5).patterns() == {}
    assert mlimit.Settings(**NAMES, rate=5, over="answer").patterns() == {"redis://h": ("ns:reply:*",)}
    named = mlimit.Settings(**NAMES, rate=5, over="answer", reply_lists=["web:*"])
    assert named.patterns() == {"redis://h": ("web:*",)}
