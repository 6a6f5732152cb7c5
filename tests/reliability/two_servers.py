"""Fleet of vpush from one server to another, with assertions about the result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from penstock.base.encoding import decoded, decoded_fields
from penstock.testing.forkserver import ForkServer
from tests.reliability.fleet import Fleet, QueueService, assert_accounted
from tests.reliability.replica import Replica
from tests.support.harness import until

SMALL_BATCHES: dict[str, object] = {"batch": 20, "window": 5}
"""Settings that keep several batches in flight nearly always."""


@dataclass(frozen=True)
class Pushing(QueueService):
    """vpush, which feeds a list of another server."""

    name: str = "vpush"
    outs: tuple[str, ...] = ("there:out",)
    can_lack_namespace: bool = False

    @property
    def out(self) -> str:
        return self.outs[0]

    def settings(self) -> dict[str, object]:
        return super().settings() | {"out": self.out, "lease_expire": 1, "link_timeout": 1, **SMALL_BATCHES}


class TwoServers(Fleet):
    """vpush with its source at ``url`` and its target at ``there_url``, where ``held`` reads the out list."""

    service: Pushing

    def __init__(
        self,
        url: str,
        there_url: str,
        fork_server: ForkServer,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        service: Pushing | None = None,
    ) -> None:
        super().__init__(
            service or Pushing(), url, fork_server, directory, {"out_redis": there_url, **(settings or {})}
        )
        self.there: Any = Redis.from_url(there_url)
        self._ends.callback(self.there.close)

    def held(self, out: str) -> list[bytes]:
        if out not in self.service.outs:
            return super().held(out)
        found: list[bytes] = self.there.lrange(out, 0, -1)
        return found[::-1]

    def arrived(self) -> list[bytes]:
        """Return the messages at the target, oldest first."""
        return self.held(self.service.out)

    def sequence(self) -> int:
        """Return the sequence number of the last settled message."""
        return int(self.redis.hget(self.keys.sequence, "sequence") or 0)

    def ledger(self) -> dict[str, str]:
        """Return what the target recorded of this source."""
        source = decoded(self.redis.hget(self.keys.sequence, "source"))
        known = self.there.hgetall(f"{self.service.out}:from:{source}")
        return decoded_fields(known)

    def let_the_lease_run_out(self) -> None:
        """Expire the lease now, whose holder is dead."""
        self.redis.hset(self.keys.lease, "expires", 0)

    def until_active(self, other_than: Replica | None = None) -> Replica:
        """Wait until a running replica other than ``other_than`` holds the lease, and return it."""
        until(lambda: self.active() not in (None, other_than))
        found = self.active()
        assert found
        return found

    def active(self) -> Replica | None:
        owner = decoded(self.redis.hget(self.keys.lease, "owner") or b"")
        return next((each for each in self.replicas if each.running and self.id_of(each) == owner), None)

    def count_logged(self, event: str) -> int:
        """Return how many times all replicas together logged ``event``."""
        return sum(replica.log_text().count(f'"event": "{event}"') for replica in self.replicas)

    def until_more_arrives(self) -> None:
        before = self.there.llen(self.service.out)
        until(lambda: self.there.llen(self.service.out) > before, 60)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def assert_once_in_order(fleet: TwoServers, accepted: Iterable[bytes], unsure: Iterable[bytes] = ()) -> None:
    """Assert that ``accepted`` messages arrived once, in order, and each of ``unsure`` at most once.

    Nothing may wait; both servers must agree on the number, and so must the counters and the audit.
    """
    found = fleet.arrived()
    came, maybe = set(found), set(unsure)
    expected = sorted({*accepted, *(maybe & came)}, key=number_of) if maybe else list(accepted)
    assert_same(found, expected)
    assert fleet.is_settled()
    assert (fleet.sequence(), fleet.ledger()["sequence"]) == (len(found), str(len(found)))
    assert_accounted(fleet, accepted, unsure)


def assert_same(found: list[bytes], expected: list[bytes]) -> None:
    """Assert ``found == expected`` with a short message about the difference."""
    if found != expected:
        pairs = zip(found, expected, strict=False)
        place = next(
            (place for place, (one, other) in enumerate(pairs) if one != other), min(len(found), len(expected))
        )
        lost, doubled = len(set(expected) - set(found)), len(found) - len(set(found))
        around = f"{found[place : place + 3]} instead of {expected[place : place + 3]} at place {place}"
        raise AssertionError(f"{lost} lost, {doubled} doubled, {around}; {len(found)} of {len(expected)}")


def number_of(message: bytes) -> int:
    return int(message.rpartition(b" ")[2])
