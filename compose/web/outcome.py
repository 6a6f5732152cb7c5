"""What became of the requests, and what the server says after the end."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from compose.ending import Ending
from compose.web.keyspace import KEYSPACE
from compose.web.load import Step
from compose.web.names import BALANCE, DISPATCH, NOTES, ROUTER
from penstock.accounting.audit import Audit, audit
from penstock.accounting.tracked import TrackedAudit, audit_tracked
from penstock.encoding import decoded

COUNTS: Final = ("timeout", "retry", "dead")


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    steps: Sequence[Step]
    confirmed: Counter[str]
    """Notes whose POST was answered with 201."""
    kept: Counter[str]
    """Notes on the server."""
    audits: Mapping[str, Audit | TrackedAudit | None]
    """By namespace."""
    counts: Mapping[str, int]
    """Time-outs, retries and dead letters of mdispatch."""
    ending: Ending

    @property
    def failed(self) -> list[str]:
        """Return the idempotent requests without the expected answer."""
        return [request for step in self.steps for request in step.failed]

    @property
    def undone(self) -> list[str]:
        """Return the POSTs without a 201."""
        return [request for step in self.steps for request in step.undone]

    @property
    def differences(self) -> list[str]:
        """Return a line for everything that is not as promised."""
        found = [f"failed: {request}" for request in self.failed]
        found += [f"{note}: kept {times} times" for note, times in self.kept.items() if times > 1]
        found += [f"{note}: confirmed, and not kept" for note in self.confirmed - self.kept]
        if (more := self.counts["dead"] - len(self.undone)) > 0:
            found.append(f"{more} dead letters more than POSTs that were not done")
        for name, each in self.audits.items():
            found += [f"{name}: {problem}" for problem in each.problems] if each else [f"{name}: nothing was counted"]
        return found + self.ending.differences()

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            "steps": [
                {
                    "name": step.name,
                    "requests": step.asked,
                    "statuses": {str(status): many for status, many in sorted(step.statuses.items())},
                    "failed": len(step.failed),
                    "undone": step.undone,
                    "triedAgain": step.again,
                    "median": round(step.median, 3),
                    "slowest": round(step.slowest, 3),
                }
                for step in self.steps
            ],
            "requests": sum(step.asked for step in self.steps),
            "failed": self.failed,
            "notes": {"confirmed": self.confirmed.total(), "kept": self.kept.total()},
            "dispatch": dict(self.counts),
            "holds": not self.differences,
            "differences": self.differences,
            "exitStatus": self.ending.statuses,
        }


async def read_outcome(
    redis: "Redis", steps: Sequence[Step], noted: Sequence[str], statuses: Mapping[str, int]
) -> Outcome:
    """Compare what the server has with what the load was answered."""
    notes = [decoded(note) for note in await redis.lrange(NOTES, 0, -1)]
    audits: dict[str, Audit | TrackedAudit | None] = {
        keys.namespace: await audit(redis, keys) for keys in (ROUTER, BALANCE)
    }
    audits[DISPATCH.namespace] = await audit_tracked(redis, DISPATCH)
    counts = {name: int(await redis.hget(DISPATCH.metric(name), "count") or 0) for name in COUNTS}
    ending = await Ending.read(KEYSPACE, statuses, redis)
    return Outcome(steps, Counter(noted), Counter(notes), audits, counts, ending)
