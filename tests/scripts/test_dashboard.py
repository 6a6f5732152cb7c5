"""The Grafana dashboard: it queries only exported series, and its layout is valid for Grafana."""

import json
import re
from itertools import combinations
from typing import Any, Final

from redis.asyncio import Redis

from tests.scripts.scrape import series
from tests.support.harness import ROOT

BOARD: Final[dict[str, Any]] = json.loads((ROOT / "compose" / "monitoring" / "grafana.json").read_text())
PANELS: Final[list[dict[str, Any]]] = BOARD["panels"]
TARGETS: Final[list[dict[str, Any]]] = [target for panel in PANELS for target in panel["targets"]]
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def words(expression: str) -> str:
    """Return ``expression`` with the contents of its quotes removed."""
    return re.sub(r'"[^"]*"', '""', expression)


async def test_every_series_and_label_of_an_expression_is_exported(redis: Redis) -> None:
    exported = await series(redis)
    for target in TARGETS:
        named = re.findall(r"(penstock_\w+)\{([^}]*)\}", target["expr"])
        assert [name for name, _ in named] == re.findall(r"penstock_\w+", target["expr"]), "each with a selector"
        assert named, target
        for name, selector in named:
            assert name in exported, target
            labels = set(re.findall(r"(\w+)\s*[=!]", words(selector)))
            assert "namespace" in labels, target
            for grouped in re.findall(r"by \(([^)]*)\)", target["expr"]):
                labels |= {label.strip() for label in grouped.split(",")}
            labels |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert labels <= exported[name], target


def test_series_of_several_monitors_count_once() -> None:
    """Every monitor exports all namespaces that it watches, so a plain sum would count each series once per monitor."""
    for target in TARGETS:
        for found in re.finditer(r"penstock_\w+", target["expr"]):
            before = target["expr"][: found.start()]
            assert re.search(r"max by \([^)]*namespace[^)]*\) \(((rate|increase)\()?$", before), target


def test_counters_are_queried_by_rate_and_gauges_by_value() -> None:
    for target in TARGETS:
        for function, name in re.findall(r"(\w*)\(penstock_(\w+)", target["expr"]):
            counts = name.endswith(("_total", "_bucket", "_sum", "_count"))
            assert function in (("rate", "increase") if counts else ("", "max", "sum", "min")), name
        assert target["expr"].count("(") == target["expr"].count(")")


async def test_every_exported_series_is_shown(redis: Redis) -> None:
    shown = {
        name for panel in PANELS for each in panel["targets"] for name in re.findall(r"penstock_\w+", each["expr"])
    }
    assert {name for name in await series(redis) if name.startswith("penstock_")} == shown


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids) > 10
    places = [panel["gridPos"] for panel in PANELS]
    for place in places:
        assert place["x"] >= 0
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None, panel["title"]
        targets = panel["targets"]
        sources = [panel["datasource"], *(each["datasource"] for each in targets)]
        assert sources == [DATASOURCE] * (1 + len(targets)), panel["title"]
        assert [each["refId"] for each in targets] == [chr(65 + place) for place in range(len(targets))]
        assert all(each["legendFormat"] for each in targets), panel["title"]


def test_a_colour_is_given_to_a_legend_that_is_there() -> None:
    for panel in PANELS:
        legends = {each["legendFormat"] for each in panel["targets"]}
        assert {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]} <= legends


def test_source_and_namespaces_are_the_users_choice() -> None:
    datasource, namespace = BOARD["templating"]["list"]
    assert (datasource["name"], datasource["type"], datasource["query"]) == ("datasource", "datasource", "prometheus")
    assert (namespace["name"], namespace["type"], namespace["multi"]) == ("namespace", "query", True)
    assert namespace["query"]["query"] == namespace["definition"] == "label_values(penstock_up, namespace)"
    assert BOARD["schemaVersion"] >= 39
    assert BOARD["id"] is None, "else an import would take the place of another dashboard"
