"""The contract, over each consumer."""

import pytest

from tests.contracts.consumer import Contract
from tests.contracts.drivers import DRIVERS

QUICK = ("lists", "jobs", "tasks", "bus, reliable", "outbox")
"""One of each wire; tests of the others are slow."""


@pytest.mark.parametrize(
    "driver",
    [pytest.param(each, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, each in DRIVERS.items()],
)
class TestConsumer(Contract):
    """Each promise, of each consumer."""


def test_what_a_driver_leaves_out_is_a_promise() -> None:
    promises = {name.removeprefix("test_") for name in vars(Contract)}
    assert [name for name, each in DRIVERS.items() if each.apart.keys() - promises] == []
