"""The fork server of the contracts."""

from collections.abc import Iterator

import pytest

from penstock.testing.forkserver import ForkServer

pytest.register_assert_rewrite("tests.contracts.consumer")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer("common.app", "services.hqueue.service", "tests.contracts.drivers") as started:
        yield started
