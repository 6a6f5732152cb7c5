"""Fixtures for tests of hqueue: a service that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.http.queue_service import QueueService, queue_service


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueService]:
    """Yield hqueue with the settings in ``SETTINGS`` of the module, if it has any."""
    with queue_service(tmp_path_factory.mktemp("hqueue") / "log", **getattr(request.module, "SETTINGS", {})) as service:
        yield service
