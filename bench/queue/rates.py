"""Figures of hqueue's requests: against the answer that the same service gives at once, in batches, and sealed."""

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from bench.figures import KIB, MIB, Figure
from bench.queue.running import hqueue
from bench.testbed import Testbed, cpu_seconds

QUEUE: Final = "bench"
WORKERS: Final = 16
BATCH: Final = 10
SIZES: Final = {KIB: 1, 100 * KIB: 4, MIB: 20}
"""Sizes of values, and by how much fewer tasks are measured with them."""
SEALING: Final = 4
"""Workers that each add a task, fetch it and acknowledge it, one after the other."""


def one_worker(bed: Testbed, rounds: int, tasks: int) -> list[Figure]:
    """Measure fetch and ack, one at a time, beside the answer that needs no server, in turns."""
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    with hqueue(bed) as (_, clients):
        for _ in range(rounds + 1):
            clients.order("fill", [QUEUE], tasks, 32)
            found.append((clients.order("hello", 1, 2 * tasks), clients.order("work", [QUEUE], 1, tasks, 1)))
    bare, ours = zip(*found[1:], strict=True)
    figures = []
    for what in ("fetch", "ack"):
        notes = []
        for name in ("p50", "p99"):
            mine, other = _median(ours, f"{what} {name}") * 1e6, _median(bare, f"hello {name}") * 1e6
            notes.append(f"{name} {mine:,.0f} us against {other:,.0f} us")
        ratios = [one[f"{what} p50"] / other["hello p50"] for one, other in zip(ours, bare, strict=True)]
        figures.append(Figure(f"hqueue, one worker: {what}, p50 / bare hello", "x", ratios, 2, note=", ".join(notes)))
    return figures


def many_workers(bed: Testbed, rounds: int, tasks: int) -> list[Figure]:
    """Measure tasks a second of ``WORKERS``, one by one and in batches, beside half of the bare hellos a second."""
    rates: list[tuple[float, float, float]] = []
    spent: list[dict[str, float]] = []
    with hqueue(bed) as (service, clients):
        processes = {"hqueue": service.process.pid, "server": bed.server.pid, "clients": clients.pid}
        for _ in range(rounds + 1):
            clients.order("fill", [QUEUE], 3 * tasks, 32)
            hellos = 4 * tasks
            bare = hellos / clients.order("hello", WORKERS, hellos)["seconds"] / 2
            before = {name: cpu_seconds(pid) for name, pid in processes.items()}
            single = tasks / clients.order("work", [QUEUE], WORKERS, tasks, 1)["seconds"]
            spent.append({name: (cpu_seconds(pid) - before[name]) / tasks for name, pid in processes.items()})
            batched = 2 * tasks / clients.order("work", [QUEUE], WORKERS, 2 * tasks, BATCH)["seconds"]
            rates.append((bare, single, batched))
    half, alone, together = (f"{statistics.median(each) / 1000:,.2f} k/s" for each in zip(*rates[1:], strict=True))
    cost = ", ".join(f"{name} {_median(spent[1:], name) * 1e6:,.0f}" for name in processes)
    name = f"hqueue, {WORKERS} workers: tasks a second"
    return [
        _at_least(
            f"{name} / half of the bare hellos",
            [one / other for other, one, _ in rates[1:]],
            0.5,
            f"{alone} against {half}; us of processor time a task: {cost}",
        ),
        _at_least(
            f"{name}, batches of {BATCH} / single",
            [many / one for _, one, many in rates[1:]],
            3,
            f"{together} against {alone}",
        ),
    ]


def sealing(bed: Testbed, rounds: int, tasks: int) -> list[Figure]:
    """Measure tasks a second with sealed contents, beside the same without, by the size of values, in turns."""
    master = bed.log.with_name("master")
    master.write_text("ab" * 32)
    master.chmod(0o400)
    figures = []
    with (
        hqueue(bed, redis_namespace="sealed", master_key=f"file:{master}") as (_, sealed),
        hqueue(bed) as (_, plain),
    ):
        for size, fewer in SIZES.items():
            order = ("circle", QUEUE, SEALING, max(SEALING, tasks // fewer), size)
            pairs = [[order[3] / each.order(*order)["seconds"] for each in (sealed, plain)] for _ in range(rounds + 1)]
            one, other = (statistics.median(each) for each in zip(*pairs[1:], strict=True))
            name = f"hqueue, values of {size // KIB:,} KB: added, fetched and acked a second, sealed / plain"
            note = f"{one:,.0f} /s against {other:,.0f} /s"
            figures.append(_at_least(name, [ours / open for ours, open in pairs[1:]], 0.85, note))
    return figures


def _at_least(name: str, ratios: list[float], limit: float, note: str) -> Figure:
    return Figure(name, "x", ratios, limit, at_least=True, note=note)


def _median(found: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in found)


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of rates. Rounds are many and short: both halves of a ratio meet the same slow moments."""
    rounds = 5 if quick else 21
    return [
        lambda bed: one_worker(bed, rounds, 100),
        lambda bed: many_workers(bed, rounds, 480),
        lambda bed: sealing(bed, rounds, 160),
    ]
