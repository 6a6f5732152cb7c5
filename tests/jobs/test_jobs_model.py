"""The life of a job against a model with a virtual clock: whatever groups do, all keys are as expected."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.jobs.jobs_machine import STEPS, Machine
from tests.support.harness import ROUNDS, USUAL_ROUNDS


def run(here: Any, examples: int, steps: int) -> None:
    Machine.redis = here
    Machine.done.clear()
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.generate] if ROUNDS <= USUAL_ROUNDS else list(Phase),  # to make a failure small takes minutes
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    [usual] = here.config_get("stream-node-max-entries").values()
    here.config_set("stream-node-max-entries", 1)  # so that trimming is exact
    try:
        run_state_machine_as_test(Machine, settings=how)
    finally:
        here.config_set("stream-node-max-entries", usual)
    for what in (*STEPS, "done", "again", "dead", "back", "late", "claimed", "cancelled", "trimmed"):
        assert Machine.done[what] > 0, Machine.done


def test_jobs_are_as_their_model(here: Any) -> None:
    run(here, 12, 50)


@pytest.mark.slow
def test_jobs_are_as_their_model_for_long(here: Any) -> None:
    run(here, 15 if ROUNDS <= USUAL_ROUNDS else 2_000, 60)
