"""A queue of another site, by the process of its gateway."""

from penstock.bus import Bus
from penstock.bus.federation import FederatedQueue

SECRET = "correct horse"


def far(bus: Bus, port: int, name: str = "foo", secret: str = SECRET) -> FederatedQueue:
    return bus.federate(bus.queue(name), f"ws://127.0.0.1:{port}/bus", secret=secret)
