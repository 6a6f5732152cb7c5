"""Settings of mbalance, what they refuse, and what lint and map are given of them."""

from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import SettingsError
from services.mbalance.settings import MAX_OUTS, Settings
from services.mbalance.workers import Workers
from tests.support.given import problems_of

LEAST: dict[str, Any] = {
    "redis": "redis://here",
    "redis_namespace": "demo",
    "in_": "in",
    "pending": "pending",
    "out": ["a", "b"],
}


def made(**more: Any) -> Settings:
    return Settings(**{**LEAST, **more})


def problems(**more: Any) -> list[str]:
    """Return the problems of minimal settings with ``more``; ``...`` omits a setting."""
    return problems_of(Settings, {**LEAST, **more})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"redis_namespace": ...}, "redisNamespace: missing: expected a name"),
        ({"out": []}, "out: expected a list of names"),
        ({"out": ["a", "a"]}, "out: a more than once: name it once"),
        ({"out": ["in"]}, "out: in is `in` as well: its messages would go round for ever"),
        (
            {"out": [f"a{number}" for number in range(MAX_OUTS + 1)]},
            "out: 1,001 lists: one mbalance chooses from 1,000",
        ),
        ({"policy": "random"}, "policy: expected expectedWait | length | roundRobin | weighted | hash"),
        ({"policy": "weighted"}, "policy: weighted needs weights, one for each list of out"),
        ({"policy": "weighted", "weights": [1]}, "weights: 1 weights for 2 lists: expected one for each list of out"),
        ({"policy": "weighted", "weights": [1, 0]}, "weights: a weight is at least 1"),
        ({"weights": [1, 2]}, "weights: has no effect without policy: weighted"),
        ({"field": "meta.id"}, "field: has no effect without policy: hash"),
        ({"workers": ["w"]}, "workers: 1 namespaces for 2 lists: expected one for each list of out"),
        ({"registrations": ["x", "y", "z"]}, "registrations: 3 keys for 2 lists"),
        ({"in_hand": ["x"]}, "inHand: 1 lists for 2 lists"),
        ({"workers": ["v", "w"], "registrations": ["x", "y"]}, "registrations: this and workers exclude each other"),
        ({"rate_expire": 0.5}, "rateExpire: expected a number of seconds from 1 to 86400"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], problem: str) -> None:
    (found,) = problems(**given)
    assert found.replace('"', "").startswith(problem), found


def test_the_environment_gives_lists_with_commas() -> None:
    environ = {"REDIS": "redis://h", "MBALANCE_REDIS_NAMESPACE": "n", "MBALANCE_IN": "in", "MBALANCE_PENDING": "p"}
    environ |= {
        "MBALANCE_OUT": "a,b",
        "MBALANCE_POLICY": "weighted",
        "MBALANCE_WEIGHTS": "1,2",
        "MBALANCE_IN_HAND": "c,d",
    }
    settings = Settings.load(None, environ)
    assert (settings.out, settings.weights, settings.in_hand) == (["a", "b"], [1, 2], ["c", "d"])


def test_what_is_wrong_is_named_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "mbalance.yaml"
    file.write_text("redisNamespace: n\nin: in\npending: p\nout: [a, b]\nworkers: [one]\n")
    with pytest.raises(SettingsError) as refusal:
        Settings.load(file, {"REDIS": "redis://h"})
    assert [str(problem) for problem in refusal.value.problems] == [
        f"{file}:5: workers: 1 namespaces for 2 lists: expected one for each list of out, in the same order"
    ]


def test_each_list_gets_some_of_the_messages_as_map_shows() -> None:
    ends = [(end.key, end.role, end.copies) for end in made().shape().ends if end.role == "out"]
    assert ends == [("a", "out", False), ("b", "out", False)]


def test_the_keys_of_workers_are_among_its_rights() -> None:
    (rights,) = made(workers=["v", "w w"], in_hand=["x", "y"]).rights().values()
    assert set(rights.reads) == {"v:ids", "v:[0-9]*", "w w:ids", "w w:[0-9]*", "x:[0-9]*", "y:[0-9]*"}
    assert " %R~v:[0-9]* %R~v:ids %R~w?w:[0-9]* %R~w?w:ids " in rights.line("bal")
    assert " ~v:[0-9]* " in rights.line("bal", old=True)
    assert "%R" not in rights.line("bal", old=True)
    assert rights.line("bal").endswith(" (~penstock:registered +hset)")
    (rights,) = made(registrations=["v", "w"], in_hand=["x", "y"]).rights().values()
    assert set(rights.reads) == {"v", "v:steps", "w", "w:steps", "x", "y"}
    assert not set(rights.reads) & set(rights.keys)


def test_a_call_names_lists_and_what_belongs_to_each() -> None:
    workers = Workers(made(registrations=["v", "w"], in_hand=["x", "y"], policy="weighted", weights=[3, 4]))
    assert workers.named == {
        "lists": ["a", "b"],
        "groups": [3, 1, 1, "x", "v", "v:steps", 4, 1, 1, "y", "w", "w:steps"],
        "outs": 2,
        "registered": 1,
    }
    assert Workers(made()).named["registered"] == 0
