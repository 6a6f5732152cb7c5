"""The web composition under a load, checked: ``python -m compose.web.demo [--json]``, or ``make demo-web``.

A worker, an importer and a router are killed under the load, and started again a second later, as a container runtime
does. It uses an embedded server, or the one of the variable REDIS. The exit status is 0 only if no idempotent request
failed, no POST was done twice, all sums hold, and every process ended with 0 on SIGTERM.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose import runner
from compose.bars import Bars, Snapshot
from compose.ending import Ending
from compose.outcome import Outcome
from compose.tables import accounts, side_by_side
from compose.web.client import Client, is_served
from compose.web.load import Load, Step
from compose.web.names import BALANCE, DISPATCH, IMPORTER, KEYSPACE, NOTES, ROUTER, WORKERS, registration_of
from penstock.accounting.audit import Audit, audit
from penstock.accounting.tracked import TrackedAudit, audit_tracked
from penstock.composition.procfile import ProcessGroup
from penstock.encoding import decoded
from penstock.ports import free_port

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
RATE: Final = 200.0
"""Requests a second."""
STEP_SECONDS: Final = 4.0
DOWN_SECONDS: Final = 1.0
"""Seconds until a killed process is started again."""
KILLED: Final = {"worker-1": "worker killed", "importer-one": "importer killed", "router": "router killed"}
"""Processes, each with the name of its step."""


def main(directory: Path = HERE, rate: float = RATE, step: float = STEP_SECONDS) -> None:
    runner.main("compose.web.demo", __doc__, lambda url: run(url, directory, rate, step))


async def run(url: str, directory: Path = HERE, rate: float = RATE, step: float = STEP_SECONDS) -> Outcome:
    """Send ``rate`` requests a second to the composition in ``directory``; kill a process every ``step`` seconds."""
    load = Load(HOST, free_port(), rate)
    return await runner.run_composition(
        url,
        directory,
        KEYSPACE,
        lambda redis, composition: _carry(redis, composition, load, step),
        lambda redis, statuses: read_outcome(redis, load, statuses),
        HIMPORTER_LISTEN_PORT=str(load.port),
    )


async def _carry(redis: "Redis", composition: ProcessGroup, load: Load, step: float) -> None:
    """Wait until all is up, run the load, and wait until nothing is in flight."""
    client, seconds = Client(HOST, load.port), step * (len(KILLED) + 2) + DOWN_SECONDS * len(KILLED)
    total = load.total(seconds)

    async def is_up() -> bool:
        """Return whether both importers listen, each worker is registered, and a page comes."""
        return (
            await redis.llen(IMPORTER.ids) >= 2
            and await redis.exists(*map(registration_of, WORKERS)) == len(WORKERS)
            and await is_served(client)
        )

    async def look() -> Snapshot:
        left = sum((await KEYSPACE.left(redis)).values()) if load.over == total else 0
        return Snapshot({"answered": load.over, "left": -left}, waiting=False, states={"answered": load.steps[-1].name})

    await runner.until(composition, is_up, otherwise="no page comes")
    client.close()
    print(f"serving http://{HOST}:{load.port}/ until the load is over, {total:,} requests", file=sys.stderr)
    load.begin("all run")
    with Bars({"answered": total}, look, width=20) as bars:
        running = asyncio.gather(load.run(seconds), _kill_all(redis, composition, load, step))
        try:
            while not running.done():
                await bars.draw()
                await asyncio.sleep(0.1)
            await running
        finally:
            running.cancel()
        await bars.until_through(composition)


async def _kill_all(redis: "Redis", composition: ProcessGroup, load: Load, step: float) -> None:
    for name, title in KILLED.items():
        await asyncio.sleep(step)
        load.begin(title)
        pid = await composition.kill(name)
        await asyncio.sleep(DOWN_SECONDS)
        await KEYSPACE.expire_registration(redis, pid)
        await composition.start_again(name)
    await asyncio.sleep(step)
    load.begin("all run again")


async def read_outcome(redis: "Redis", load: Load, statuses: Mapping[str, int]) -> Outcome:
    """Compare what the server has with what the load was answered."""
    notes = Counter(map(decoded, await redis.lrange(NOTES, 0, -1)))
    audits: dict[str, Audit | TrackedAudit | None] = {
        keys.namespace: await audit(redis, keys) for keys in (ROUTER, BALANCE)
    }
    audits[DISPATCH.namespace] = await audit_tracked(redis, DISPATCH)
    names = ("timeout", "retry", "dead")
    counts = {name: int(await redis.hget(DISPATCH.metric(name), "count") or 0) for name in names}
    return judge(load.steps, Counter(load.noted), notes, audits, counts, await Ending.read(KEYSPACE, statuses, redis))


def judge(
    steps: Sequence[Step],
    confirmed: Counter[str],
    kept: Counter[str],
    audits: Mapping[str, Audit | TrackedAudit | None],
    counts: Mapping[str, int],
    ending: Ending,
) -> Outcome:
    """Compare the notes whose POST was answered with 201, and those on the server; ``counts`` are mdispatch's."""
    whole = Step.sum(steps)
    problems = [f"failed: {request}" for request in whole.failed]
    problems += [f"{note}: kept {times} times" for note, times in kept.items() if times > 1]
    problems += [f"{note}: confirmed, and not kept" for note in confirmed - kept]
    if (more := counts["dead"] - len(whole.undone)) > 0:
        problems.append(f"{more} dead letters more than POSTs that were not done")
    columns = [(step.name, [step.cells(sorted(whole.statuses))]) for step in (*steps, whole)]
    return Outcome(
        ending,
        audits=audits,
        problems=problems,
        shown=[
            side_by_side("What became of the requests", columns, narrow=True),
            *accounts(audits.values()),
            f"mdispatch: {counts['timeout']:,} time-outs, {counts['retry']:,} requests given to another worker",
            f"POSTs: {confirmed.total():,} confirmed, {kept.total():,} notes kept",
            *(f"not tried again: {request}" for request in whole.undone),
            ending.line,
        ],
        success=f"{whole.asked:,} requests, failed: 0. A worker, an importer and a router were killed under them",
        data={
            "steps": [step.figures() for step in steps],
            "requests": whole.asked,
            "failed": whole.failed,
            "notes": {"confirmed": confirmed.total(), "kept": kept.total()},
            "dispatch": dict(counts),
        },
    )


if __name__ == "__main__":
    main()
