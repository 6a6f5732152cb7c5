"""Queues of hqueue against a model with a virtual clock: whatever is done with two queues, all keys are as expected."""

import pytest
import redis as sync

from tests.http.hqueue_machine import STEPS, Machine
from tests.support.harness import ROUNDS, USUAL_ROUNDS
from tests.support.machines import run_machine


def run(here: "sync.Redis", examples: int, steps: int) -> None:
    Machine.redis = here
    Machine.done.clear()
    run_machine(Machine, examples, steps)
    for what in (*STEPS, "given", "acknowledged", "refused"):
        assert Machine.done[what] > 0, Machine.done


def test_queues_are_as_their_model(here: "sync.Redis") -> None:
    run(here, 10, 40)


@pytest.mark.slow
def test_queues_are_as_their_model_for_long(here: "sync.Redis") -> None:
    run(here, 25 if ROUNDS <= USUAL_ROUNDS else 2_000, 60)
