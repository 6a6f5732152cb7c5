"""The fork server and fleets of the reliability suite."""

from tests.reliability.conftest import fork_server, launch, service

__all__ = ["fork_server", "launch", "service"]
