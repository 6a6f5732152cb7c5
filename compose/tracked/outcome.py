"""What a run of the composition came to: read from the server when all is quiet, and judged."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis

from compose.passage import Passage
from compose.tracked.counts import Counts
from compose.tracked.keyspace import ALERT, ARCHIVE, FANOUT, KEPT, KEYSPACE, TAKEN
from compose.tracked.worker import WARM
from penstock.accounting.audit import Audit, audit
from penstock.accounting.tracked import TrackedAudit, audit_tracked
from penstock.keys import Keys
from penstock.tracking.dead_letters import Letter, newest_first
from penstock.tracking.events import read_entries

ATTEMPTS: Final = 3
"""As mdispatch-alert.yaml says."""


@dataclass(frozen=True)
class Leg:
    """One leg of the fan-out."""

    name: str
    counts: Counts
    expected: dict[str, int]
    ledger: TrackedAudit | None
    passages: list[Passage]
    letters: Counter[tuple[str, str]]
    """Dead letters by reason and attempts."""

    def differences(self) -> list[str]:
        """In words."""
        told = [line for passage in self.passages for line in passage.faults()]
        told += [
            f"{self.name}: {count:,} dead letters say {why or 'no reason'} after {attempts or 'no'} attempts"
            for (why, attempts), count in self.letters.items()
            if (why, attempts) != ("timeout", str(ATTEMPTS))
        ]
        told += self.counts.differences(self.name, self.expected)
        if self.ledger is None:
            return [*told, f"{self.name}: nothing to audit, nobody has tracked a message"]
        return told + [f"{self.name}: {problem}" for problem in self.ledger.problems]


@dataclass(frozen=True)
class Outcome:
    """All that the demo tells; ``differences`` says in words what is not as promised."""

    pushed: int
    legs: list[Leg]
    audit: Audit | None
    """Of the fan-out."""
    statuses: dict[str, int]
    """Exit status of each process by its name in the Procfile."""
    left: dict[str, int]
    registered: list[str]
    """Instances that are gone and left their registration behind."""

    @property
    def differences(self) -> list[str]:
        told = [line for leg in self.legs for line in leg.differences()]
        told += [f"{name}: {length:,} left behind" for name, length in self.left.items()]
        told += [f"{key}: still registered" for key in self.registered]
        told += [f"{name}: exit status {status}" for name, status in self.statuses.items() if status]
        if self.audit is None:
            return [*told, f"{FANOUT.namespace}: nothing to audit, no service has counted anything"]
        told += [
            f"{leg.name}: {leg.delivered:,} of {self.pushed:,} counted as delivered"
            for leg in self.audit.legs
            if leg.delivered != self.pushed
        ]
        return told + self.audit.problems

    def figures(self) -> dict[str, object]:
        """For JSON."""
        audits: dict[str, Any] = {FANOUT.namespace: self.audit} | {leg.name: leg.ledger for leg in self.legs}
        return {
            "holds": not self.differences,
            "differences": self.differences,
            "pushed": self.pushed,
            "legs": {leg.name: {**leg.counts.numbers, "responseTime": leg.counts.seconds} for leg in self.legs},
            "content": {passage.name: passage.counts() for leg in self.legs for passage in leg.passages},
            "audits": {name: found and asdict(found) | {"holds": found.holds} for name, found in audits.items()},
            "exitStatus": self.statuses,
        }


async def read_outcome(redis: "Redis", rows: Sequence[bytes], statuses: Mapping[str, int]) -> Outcome:
    """Compare what lies on the server with what ``rows`` must have led to."""
    return Outcome(
        len(rows),
        [await _archive(redis, rows), await _alert(redis, rows)],
        await audit(redis, FANOUT),
        dict(statuses),
        await KEYSPACE.left(redis),
        KEYSPACE.registered(await KEYSPACE.present(redis)),
    )


async def _archive(redis: "Redis", rows: Sequence[bytes]) -> Leg:
    """Every reading is done once; those of ``WARM`` and more after one attempt that failed."""
    warm = [row for row in rows if float(row.rpartition(b",")[2]) >= WARM]
    happened = await _events(redis, ARCHIVE, rows)
    expected = dict.fromkeys(("registered", "delivered", "done"), len(rows))
    passages = [
        Passage.compare(f"{ARCHIVE.namespace}: done", rows, [*happened["done"], *happened["late"]]),
        Passage.compare(f"{ARCHIVE.namespace}: failed once", warm, happened["failed"]),
        Passage.compare(KEPT, rows, await _content(redis, KEPT)),
        Passage.compare(ARCHIVE.dead, [], await _dead(redis, ARCHIVE)),
    ]
    return await _leg(redis, ARCHIVE, expected | dict.fromkeys(("failed attempts", "retries"), len(warm)), passages)


async def _alert(redis: "Redis", rows: Sequence[bytes]) -> Leg:
    """Every reading is taken so often as there are attempts, and dead once."""
    expected = dict.fromkeys(("registered", "delivered", "dead"), len(rows))
    expected |= {"timeouts": ATTEMPTS * len(rows), "retries": (ATTEMPTS - 1) * len(rows)}
    passages = [
        Passage.compare(TAKEN, [*rows] * ATTEMPTS, await _content(redis, TAKEN)),
        Passage.compare(ALERT.dead, rows, await _dead(redis, ALERT)),
    ]
    return await _leg(redis, ALERT, expected, passages)


async def _leg(redis: "Redis", keys: Keys, expected: dict[str, int], passages: list[Passage]) -> Leg:
    said = Counter((each.text("reason"), each.text("attempts")) for each in await _letters(redis, keys))
    counts = await Counts.read(redis, keys)
    return Leg(keys.namespace, counts, expected, await audit_tracked(redis, keys), passages, said)


async def _events(redis: "Redis", keys: Keys, rows: Sequence[bytes]) -> dict[str, list[bytes]]:
    """To which of ``rows`` what happened, an entry each time; one that is none of them stands there by its xid."""
    known = {sha1(row).hexdigest(): row for row in rows}
    happened: dict[str, list[bytes]] = {"done": [], "late": [], "failed": []}
    async for chunk in read_entries(redis, keys):
        for event in (event for entry in chunk for event in entry.events()):
            if event.event in happened:
                happened[event.event].append(known.get(event.xid, event.xid.encode()))
    return happened


async def _letters(redis: "Redis", keys: Keys) -> list[Letter]:
    return [letter async for chunk in newest_first(redis, keys) for letter in chunk]


async def _dead(redis: "Redis", keys: Keys) -> list[bytes]:
    return [letter.raw if letter.message is None else letter.message for letter in await _letters(redis, keys)]


async def _content(redis: "Redis", key: str) -> list[bytes]:
    entries: Any = await redis.lrange(key, 0, -1)
    return list(entries)
