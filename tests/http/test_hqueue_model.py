"""Queues of hqueue against a model with a virtual clock: whatever is done with two queues, all keys are as expected."""

import pytest
import redis as sync
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.http.hqueue_machine import STEPS, Machine
from tests.support.harness import ROUNDS, USUAL_ROUNDS


def run(here: "sync.Redis", examples: int, steps: int) -> None:
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
    run_state_machine_as_test(Machine, settings=how)
    for what in (*STEPS, "given", "acknowledged", "refused"):
        assert Machine.done[what] > 0, Machine.done


def test_queues_are_as_their_model(here: "sync.Redis") -> None:
    run(here, 10, 40)


@pytest.mark.slow
def test_queues_are_as_their_model_for_long(here: "sync.Redis") -> None:
    run(here, 25 if ROUNDS <= USUAL_ROUNDS else 2_000, 60)
