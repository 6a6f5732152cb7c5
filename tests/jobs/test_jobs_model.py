"""The life of a job against a model with a virtual clock: whatever groups do, all keys are as expected."""

from typing import Any

import pytest

from tests.jobs.jobs_machine import STEPS, Machine
from tests.support.harness import ROUNDS, USUAL_ROUNDS
from tests.support.machines import run_machine


def run(here: Any, examples: int, steps: int) -> None:
    Machine.redis = here
    Machine.done.clear()
    [usual] = here.config_get("stream-node-max-entries").values()
    here.config_set("stream-node-max-entries", 1)  # so that trimming is exact
    try:
        run_machine(Machine, examples, steps)
    finally:
        here.config_set("stream-node-max-entries", usual)
    for what in (*STEPS, "done", "again", "dead", "back", "late", "claimed", "cancelled", "trimmed", "undelivered"):
        assert Machine.done[what] > 0, Machine.done


def test_jobs_are_as_their_model(here: Any) -> None:
    run(here, 12, 50)


@pytest.mark.slow
def test_jobs_are_as_their_model_for_long(here: Any) -> None:
    run(here, 15 if ROUNDS <= USUAL_ROUNDS else 2_000, 60)
