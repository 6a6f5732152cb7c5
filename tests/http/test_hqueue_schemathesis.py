"""Schemathesis sends hqueue whatever its OpenAPI document allows and forbids, and judges the answers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.http.queue_service import QueueService, penstock, queue_service
from tests.support.harness import ROUNDS, USUAL_ROUNDS

EXAMPLES = ROUNDS // 2
"""Maximum number of examples of one kind for each operation."""
pytestmark = pytest.mark.slow


def schemathesis(service: QueueService, folder: Path, *more: str) -> Any:
    """Run all checks; return the report. A long run tries other examples each time."""
    report, usual = folder / "report.json", ROUNDS <= USUAL_ROUNDS
    words = ["--checks", "all", "--max-examples", str(EXAMPLES), "--continue-on-failure", "--no-color", *more]
    words += ["--generation-deterministic"] if usual else ["--generation-database", "none"]
    words += ["--report", "json", "--report-json-path", str(report)]
    # A task that is cancelled can be looked at for as long as `keep` says, so it may be used after its DELETE.
    words += ["--exclude-checks", "use_after_free"]
    program = str(Path(sys.executable).with_name("schemathesis"))
    run = subprocess.run(
        [program, "run", f"{service.url}/openapi.json", *words], cwd=folder, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    return json.loads(report.read_text())


def judge(report: Any) -> None:
    """Fail unless all operations were called in each way, and had answers of success."""
    assert report["operations"]["total"] == report["operations"]["tested"] == 16
    assert {name: phase["status"] for name, phase in report["phases"].items()} == dict.fromkeys(
        ("examples", "coverage", "fuzzing", "stateful"), "success"
    )
    assert report["failures"] == report["errors"] == []
    assert report["test_cases"]["generated"] > 500
    never = {"POST /queues/{service}/heartbeat", "POST /queues/{service}/ack"}  # most of their tokens are invented
    never |= {operation for operation in report["valid_rates"] if "{id}" in operation}  # as are ids
    for operation, phases in report["valid_rates"].items():
        accepted = sum(phase["accepted"] + phase["conflicts"] for phase in phases.values())
        assert accepted > 0 or "{id}" in operation, operation
        assert operation in never or accepted > sum(phase["rejected"] for phase in phases.values()), operation


def test_the_service_does_what_its_document_says(tmp_path: Path) -> None:
    with queue_service(tmp_path / "log", max_waiting=0) as service:
        judge(schemathesis(service, tmp_path))
        assert '"level": "error"' not in service.process.log_text()


def test_with_tokens_nothing_is_served_without_one(tmp_path: Path) -> None:
    with queue_service(tmp_path / "log", max_waiting=0, tokens=True) as service:
        token = penstock("token", "add", "work", "anna", "--right", "admin", "--redis", service.redis_url).strip()
        judge(schemathesis(service, tmp_path, "--header", f"Authorization: Bearer {token}"))
        assert '"level": "error"' not in service.process.log_text()
