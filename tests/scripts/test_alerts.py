"""The alert rules: each fires when it should and only then, and has a section in the runbook."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from redis.asyncio import Redis

from tests.scripts.scrape import series
from tests.support.harness import ROOT

RULES: Final = ROOT / "compose" / "monitoring" / "prometheus-rules.yaml"
ALERTS: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
NS: Final = 'namespace="demo"'
QUEUE: Final = 'kind="jobs",queue="resize",group="thumbs"'
FIRES: Final[dict[str, dict[str, str]]] = {
    "PenstockNotExported": {"up": "1x60"},
    "PenstockServerDown": {f"penstock_up{{{NS}}}": "0x60"},
    "PenstockNoInstance": {f'penstock_list_length{{{NS},list="in",role="in"}}': "3x60"},
    "PenstockNoWorker": {
        f"penstock_queue_waiting{{{NS},{QUEUE}}}": "20x46 0x9",
        f"penstock_queue_in_hand{{{NS},{QUEUE}}}": "0x46 20x9",
        f"penstock_queue_workers{{{NS},{QUEUE}}}": "1x46 0x9",
    },
    "PenstockInstanceLate": {f'penstock_instances_late{{{NS},service="mpush"}}': "0x46 1 1 0 0"},
    "PenstockServerFull": {f"penstock_memory_ratio{{{NS}}}": "0.97x60"},
    "PenstockServerReadOnly": {f"penstock_replica{{{NS}}}": "1x60"},
    "PenstockServerDisk": {f"penstock_disk_failed{{{NS}}}": "1x60"},
    "PenstockWaiting": {
        f'penstock_instances_waiting{{{NS},service="mpush",reason="full: a"}}': "2 _ " * 30,
        f'penstock_instances_waiting{{{NS},service="mpush",reason="full: b"}}': "_ 2 " * 30,
    },
    "PenstockPilesUp": {f'penstock_list_length{{{NS},list="a",role="out"}}': "1100+10x60"},
    "PenstockOldMessage": {f"penstock_oldest_in_flight_seconds{{{NS}}}": "700x60"},
    "PenstockQueueOld": {f"penstock_queue_oldest_seconds{{{NS},{QUEUE}}}": "601x60"},
    "PenstockOutboxAway": {f'penstock_outbox{{{NS},what="away"}}': "1x60"},
    "PenstockQueueDead": {f"penstock_queue_dead{{{NS},{QUEUE}}}": "_x45 1x14"},
    "PenstockDeadLetters": {f'penstock_dead_total{{{NS},reason="timeout"}}': "0+1x60"},
    "PenstockPoison": {f'penstock_dead_total{{{NS},reason="poison"}}': "0+1x60"},
    "PenstockMissing": {f"penstock_missing_total{{{NS}}}": "0+1x60"},
    "PenstockUntracked": {f"penstock_untracked_total{{{NS}}}": "0+1x60"},
    "PenstockExpired": {f"penstock_expired_total{{{NS}}}": "0+1x60"},
    "PenstockDropped": {f"penstock_dropped_total{{{NS}}}": "0+1x60"},
    "PenstockBroken": {f"penstock_broken_total{{{NS}}}": "0+1x60"},
    "PenstockAnswersRefused": {f'penstock_answers_total{{{NS},result="refused"}}': "0+1x60"},
    "PenstockErrors": {f"penstock_errors_total{{{NS}}}": "0+1x60"},
    "PenstockReloadRefused": {f'penstock_reloads_total{{{NS},result="refused"}}': "0+1x60"},
    "PenstockLinkDown": {f"penstock_link_up{{{NS}}}": "0x60"},
    "PenstockLinkBehind": {f"penstock_link_oldest_seconds{{{NS}}}": "301x60"},
    "PenstockNoGateway": {f'penstock_instances{{{NS},service="gateway"}}': "0x60"},
    "PenstockGatewayUnauthorized": {f'penstock_gateway_total{{{NS},event="unauthorized"}}': "0+1x60"},
    "PenstockGatewayRefused": {f'penstock_gateway_total{{{NS},event="refused"}}': "0+1x60"},
    "PenstockNoHttp": {f'penstock_http_total{{{NS},event="requests"}}': "7x60"},
    "PenstockHttpErrors": {
        f'penstock_http_total{{{NS},event="requests"}}': "0+100x60",
        f'penstock_http_total{{{NS},event="5xx"}}': "0+6x60",
    },
    "PenstockHttpLateAnswers": {f'penstock_http_total{{{NS},event="late"}}': "0+1x60"},
    "PenstockOutcomesUndelivered": {f'penstock_outcomes_total{{{NS},result="undelivered"}}': "0+1x60"},
}
"""Series that a monitor exports in the hour before it fires, by alert."""
WELL: Final[dict[str, str]] = {
    f"penstock_up{{{NS}}}": "1x60",
    f"penstock_memory_ratio{{{NS}}}": "0.9x60",
    f"penstock_replica{{{NS}}}": "0x60",
    f"penstock_disk_failed{{{NS}}}": "0x60",
    f'penstock_list_length{{{NS},list="in",role="in"}}': "5000-1x60",
    f'penstock_list_length{{{NS},list="a",role="out"}}': "10+1x60",
    f'penstock_dead_total{{{NS},reason="cancelled"}}': "0+1x60",
    f'penstock_instances{{{NS},service="mpush"}}': "1x60",
    f'penstock_instances_late{{{NS},service="mpush"}}': "0x60",
    f'penstock_instances_waiting{{{NS},service="mpush",reason="full: a"}}': "_x47 1x9",
    f"penstock_oldest_in_flight_seconds{{{NS}}}": "9x60",
    f"penstock_queue_waiting{{{NS},{QUEUE}}}": "20x60",
    f"penstock_queue_in_hand{{{NS},{QUEUE}}}": "20x60",
    f"penstock_queue_workers{{{NS},{QUEUE}}}": "1x60",
    f"penstock_queue_oldest_seconds{{{NS},{QUEUE}}}": "9x60",
    f"penstock_queue_dead{{{NS},{QUEUE}}}": "3x60",
    f'penstock_outbox{{{NS},what="away"}}': "0x60",
    **{f'penstock_dead_total{{{NS},reason="{reason}"}}': "7x60" for reason in ("timeout", "poison")},
    **{
        f"penstock_{name}_total{{{NS}}}": "2x60"
        for name in ("missing", "untracked", "expired", "dropped", "broken", "errors")
    },
    f'penstock_answers_total{{{NS},result="sent"}}': "0+9x60",
    f'penstock_answers_total{{{NS},result="refused"}}': "1x60",
    f'penstock_reloads_total{{{NS},result="obeyed"}}': "0+1x60",
    f'penstock_instances{{{NS},service="gateway"}}': "1x60",
    f'penstock_gateway_total{{{NS},event="unauthorized"}}': "0+1x9 9x50",
    f'penstock_gateway_total{{{NS},event="refused"}}': "3x60",
    f'penstock_http_total{{{NS},event="requests"}}': "0+100x60",
    f'penstock_http_total{{{NS},event="5xx"}}': "0+4x60",
    f'penstock_http_total{{{NS},event="late"}}': "0+1x9 9x50",
    f"penstock_link_up{{{NS}}}": "1x60",
    f"penstock_link_oldest_seconds{{{NS}}}": "2x60",
}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    checked = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_when_it_should_and_not_when_all_is_well(alert: str, tmp_path: Path) -> None:
    tests = [(FIRES[alert], True), (WELL, False)]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [_test(alert, *each) for each in tests]}))
    tested = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
@pytest.mark.parametrize(
    "alert", ["PenstockNoInstance", "PenstockNoWorker", "PenstockLinkDown", "PenstockNoGateway", "PenstockNoHttp"]
)
@pytest.mark.parametrize("refuses", ["replica", "disk_failed"])
def test_an_alert_blames_no_instance_whose_server_refuses_writes(alert: str, refuses: str, tmp_path: Path) -> None:
    """A replica lets nobody renew a registration or a lease: what is wrong is the server, which has its own alert."""
    server = {f"penstock_{name}{{{NS}}}": f"{int(name == refuses)}x60" for name in ("replica", "disk_failed")}
    file = tmp_path / "tests.yaml"
    tests = [_test(alert, FIRES[alert] | server, False)]
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    tested = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def _test(alert: str, samples: dict[str, str], fires: bool) -> dict[str, Any]:
    """Return a test group for promtool: the alert's expected state after 50 minutes."""
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in samples.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "50m", "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}
        ],
    }


async def test_rules_query_only_what_a_monitor_exports(redis: Redis) -> None:
    exported = await series(redis)
    for alert, rule in ALERTS.items():
        for name in re.findall(r"\bpenstock_\w+", rule["expr"]):
            assert name in exported, alert


def test_every_alert_has_a_section_in_the_runbook_and_every_section_an_alert() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(ALERTS)
    for section in sections.values():
        assert [word in section for word in ("**You see**", "**It means**", "**Type**")] == [True] * 3
