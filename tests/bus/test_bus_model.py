"""Queues against a model: whatever three clients do with one queue, its keys and what they get are as expected."""

import pytest

from penstock.testing.server import EmbeddedServer
from tests.bus.machine import Machine
from tests.support.harness import ROUNDS, USUAL_ROUNDS
from tests.support.machines import run_machine


def run(server: EmbeddedServer, examples: int, steps: int) -> None:
    Machine.url, Machine.fetched = server.url, 0
    run_machine(Machine, examples, steps)
    assert Machine.fetched > 0  # how many at once depends on the time that each step takes


def test_a_queue_is_as_its_model(server: EmbeddedServer) -> None:
    run(server, 15, 40)


@pytest.mark.slow
def test_a_queue_is_as_its_model_for_long(server: EmbeddedServer) -> None:
    run(server, 60 if ROUNDS <= USUAL_ROUNDS else 2_000, 60)
