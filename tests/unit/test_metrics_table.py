"""The table of metrics: what code writes, what settings name and what docs/keys.md describes is in it, and no more."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.installed import services
from penstock.core.metrics import HASHES, METRICS, OF_EVERY_SERVICE
from tests.support.harness import ROOT

NOT_COUNTERS = {"", "rights"}
"""A prefix, and the name of a key that never is."""
FILES = [each for folder in ("penstock", "common", "services") for each in (ROOT / folder).rglob("*.py")]


def named(file: Path) -> set[str]:
    """Return the metrics that ``file`` names: in calls of ``metric``, and in the tuples that these are made over."""
    tree = ast.parse(file.read_text())
    assigned = [each for each in tree.body if isinstance(each, ast.AnnAssign | ast.Assign)]
    tuples = {ast.unparse(getattr(each, "target", None) or each.targets[0]): each.value for each in assigned}  # type: ignore[union-attr]
    found = set[str]()
    for node in ast.walk(tree):
        over: list[ast.expr] = []
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "metric":
            over = node.args
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "map"
            and "metric" in ast.unparse(node.args[0])
        ):
            over = node.args[1:]
        elif isinstance(node, ast.DictComp | ast.ListComp):
            made = node.value if isinstance(node, ast.DictComp) else node.elt
            over = [each.iter for each in node.generators] if ".metric(" in ast.unparse(made) else []
        found |= {text for each in over for text in _texts(tuples.get(ast.unparse(each), each))}
    return found - NOT_COUNTERS


def _texts(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for each in node.elts if isinstance(node, ast.Tuple) else ():
        yield from _texts(each)


def test_no_code_names_a_metric_that_is_not_in_the_table() -> None:
    found = {file.relative_to(ROOT): named(file) for file in FILES}
    assert {str(file): names - {*HASHES} for file, names in found.items() if names - {*HASHES}} == {}
    assert set().union(*found.values()) > {"duplicate", "doubled", "pipeline", "outbox", "limited", "http", "reload"}


@pytest.mark.parametrize("service", services())
def test_the_metrics_of_a_service_are_in_the_table_and_are_all_that_its_code_names(service: str) -> None:
    settings = importlib.import_module(f"services.{service}.settings").Settings
    declared = {*settings.metrics(settings.model_construct()), *OF_EVERY_SERVICE}
    assert declared <= {*HASHES}
    if service == "monitor":
        return  # it counts in the namespaces that it watches
    assert set().union(*map(named, (ROOT / "services" / service).rglob("*.py"))) <= declared


def test_series_are_unique_and_every_help_is_a_sentence() -> None:
    assert len({metric.written_as for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[A-Z0-9].*\.", metric.help), metric.name
        assert bool(metric.hash) or metric.kind == "gauge", metric.name


def test_docs_describe_every_counter_and_no_other() -> None:
    text = (ROOT / "docs" / "keys.md").read_text().partition("\n## Metrics\n")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == {*HASHES}
