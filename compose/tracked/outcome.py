"""Outcome of a run of the tracked composition, read from the server after its end."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis

from compose.comparison import Comparison
from compose.ending import Ending
from compose.tracked.counts import Counts
from compose.tracked.keyspace import ALERT, ARCHIVE, FANOUT, KEPT, KEYSPACE, TAKEN
from compose.tracked.worker import WARM
from penstock.accounting.audit import Audit, audit
from penstock.accounting.tracked import TrackedAudit, audit_tracked
from penstock.keys import Keys
from penstock.tracking.dead_letters import Letter, newest_first
from penstock.tracking.events import read_entries

ATTEMPTS: Final = 3
"""The value of ``attempts`` in mdispatch-alert.yaml."""


@dataclass(frozen=True)
class Branch:
    """One branch of the fan-out."""

    name: str
    counts: Counts
    expected: dict[str, int]
    ledger: TrackedAudit | None
    comparisons: list[Comparison]
    letters: Counter[tuple[str, str]]
    """Dead letters by reason and attempts."""

    def differences(self) -> list[str]:
        """Return a line for everything that is not as promised."""
        found = [line for comparison in self.comparisons for line in comparison.faults()]
        found += [
            f"{self.name}: {count:,} dead letters say {reason or 'no reason'} after {attempts or 'no'} attempts"
            for (reason, attempts), count in self.letters.items()
            if (reason, attempts) != ("timeout", str(ATTEMPTS))
        ]
        found += self.counts.differences(self.name, self.expected)
        if self.ledger is None:
            return [*found, f"{self.name}: nothing to audit, nobody has tracked a message"]
        return found + [f"{self.name}: {problem}" for problem in self.ledger.problems]


@dataclass(frozen=True)
class Outcome:
    """Result of a demo; ``differences`` has a line for everything that is not as promised."""

    pushed: int
    branches: list[Branch]
    audit: Audit | None
    """Audit of the fan-out; None if nothing was counted."""
    ending: Ending

    @property
    def differences(self) -> list[str]:
        found = [line for branch in self.branches for line in branch.differences()]
        found += self.ending.differences()
        if self.audit is None:
            return [*found, f"{FANOUT.namespace}: nothing to audit, no service has counted anything"]
        found += [
            f"{branch.name}: {branch.delivered:,} of {self.pushed:,} counted as delivered"
            for branch in self.audit.legs
            if branch.delivered != self.pushed
        ]
        return found + self.audit.problems

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        audits: dict[str, Any] = {FANOUT.namespace: self.audit} | {each.name: each.ledger for each in self.branches}
        return {
            "holds": not self.differences,
            "differences": self.differences,
            "pushed": self.pushed,
            "legs": {each.name: {**each.counts.numbers, "responseTime": each.counts.seconds} for each in self.branches},
            "content": {
                comparison.name: comparison.counts() for each in self.branches for comparison in each.comparisons
            },
            "audits": {name: found and asdict(found) | {"holds": found.holds} for name, found in audits.items()},
            "exitStatus": self.ending.statuses,
        }


async def read_outcome(redis: "Redis", rows: Sequence[bytes], statuses: Mapping[str, int]) -> Outcome:
    """Compare what is on the server with what ``rows`` must lead to."""
    return Outcome(
        len(rows),
        [await _archive(redis, rows), await _alert(redis, rows)],
        await audit(redis, FANOUT),
        await Ending.read(redis, KEYSPACE, statuses),
    )


async def _archive(redis: "Redis", rows: Sequence[bytes]) -> Branch:
    """Expect every reading to be done once; those of at least ``WARM`` fail once before."""
    warm = [row for row in rows if float(row.rpartition(b",")[2]) >= WARM]
    rows_by_event = await _events(redis, ARCHIVE, rows)
    expected = dict.fromkeys(("registered", "delivered", "done"), len(rows))
    expected |= dict.fromkeys(("failed attempts", "retries"), len(warm))
    comparisons = [
        Comparison.compare(f"{ARCHIVE.namespace}: done", rows, [*rows_by_event["done"], *rows_by_event["late"]]),
        Comparison.compare(f"{ARCHIVE.namespace}: failed once", warm, rows_by_event["failed"]),
        Comparison.compare(KEPT, rows, await _content(redis, KEPT)),
        Comparison.compare(ARCHIVE.dead, [], await _dead(redis, ARCHIVE)),
    ]
    return await _read_branch(redis, ARCHIVE, expected, comparisons)


async def _alert(redis: "Redis", rows: Sequence[bytes]) -> Branch:
    """Expect every reading to be taken once an attempt, and to be one dead letter."""
    expected = dict.fromkeys(("registered", "delivered", "dead"), len(rows))
    expected |= {"timeouts": ATTEMPTS * len(rows), "retries": (ATTEMPTS - 1) * len(rows)}
    comparisons = [
        Comparison.compare(TAKEN, [*rows] * ATTEMPTS, await _content(redis, TAKEN)),
        Comparison.compare(ALERT.dead, rows, await _dead(redis, ALERT)),
    ]
    return await _read_branch(redis, ALERT, expected, comparisons)


async def _read_branch(redis: "Redis", keys: Keys, expected: dict[str, int], comparisons: list[Comparison]) -> Branch:
    letters = Counter((each.text("reason"), each.text("attempts")) for each in await _letters(redis, keys))
    counts = await Counts.read(redis, keys)
    return Branch(keys.namespace, counts, expected, await audit_tracked(redis, keys), comparisons, letters)


async def _events(redis: "Redis", keys: Keys, rows: Sequence[bytes]) -> dict[str, list[bytes]]:
    """Return the row of each event by kind of event; for an unknown row, its correlation id."""
    known = {sha1(row).hexdigest(): row for row in rows}
    rows_by_event: dict[str, list[bytes]] = {"done": [], "late": [], "failed": []}
    async for chunk in read_entries(redis, keys):
        for event in (event for entry in chunk for event in entry.events()):
            if event.event in rows_by_event:
                rows_by_event[event.event].append(known.get(event.xid, event.xid.encode()))
    return rows_by_event


async def _letters(redis: "Redis", keys: Keys) -> list[Letter]:
    return [letter async for chunk in newest_first(redis, keys) for letter in chunk]


async def _dead(redis: "Redis", keys: Keys) -> list[bytes]:
    return [letter.raw if letter.message is None else letter.message for letter in await _letters(redis, keys)]


async def _content(redis: "Redis", key: str) -> list[bytes]:
    entries: Any = await redis.lrange(key, 0, -1)
    return list(entries)
