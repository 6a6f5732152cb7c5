"""Queues against a model: whatever three clients do with one queue, its keys and what they get are as expected."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.testing.server import EmbeddedServer
from tests.bus.machine import Machine
from tests.support.harness import ROUNDS, USUAL_ROUNDS


def run(server: EmbeddedServer, examples: int, steps: int) -> None:
    Machine.url, Machine.fetched = server.url, 0
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
    assert Machine.fetched > 0  # how many at once depends on the time that each step takes


def test_a_queue_is_as_its_model(server: EmbeddedServer) -> None:
    run(server, 15, 40)


@pytest.mark.slow
def test_a_queue_is_as_its_model_for_long(server: EmbeddedServer) -> None:
    run(server, 60 if ROUNDS <= USUAL_ROUNDS else 2_000, 60)
