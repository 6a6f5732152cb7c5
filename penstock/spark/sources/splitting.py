"""Division of a long range of entries: streams know no ranks, so the density of entries is probed.

Ids are times. A probe reads a few entries at a time; from their distance follows how many entries are near. The next
probes are where entries are dense. A wrong estimate costs balance, never an entry.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

from penstock.core.raw_connection import Command
from penstock.spark.options import exchange
from penstock.spark.sources.places import Place

PROBED: Final = 2_000
"""Entries of the range for each probe; so about 10 % of the range are read to divide it."""
MIN_PROBES: Final = 16
MAX_PROBES: Final = 256
MAX_ROUNDS: Final = 10
PROBE_ENTRIES: Final = 25
PROBE_BYTES: Final = 16_384
"""Size of the entries that a probe reads, about, unless two are larger."""
MAX_SEQUENCE: Final = 2**64 - 1

Cell = tuple[int, int, float]
"""From a time (ms) to before another, and about how many entries are there."""


def cuts(redis: Any, key: str, start: Place, end: Place, parts: int, size: int) -> list[str]:
    """Return at most ``parts`` - 1 ids of entries that divide the range about evenly.

    It has ``size`` entries at most.
    """
    (found,) = exchange(redis, [("XRANGE", key, f"({start.id}", end.id, "COUNT", 1)])
    if isinstance(found, Exception):
        raise found
    if not found:
        return []
    (first_id, words), (last, most) = found[0], end.order
    first, least = Place(first_id.decode()).order
    if first == last:  # ids that are no times, or written by one script
        wanted = [f"{first}-{least + (most - least) * part // parts}" for part in range(1, parts)]
    else:
        count = min(max(PROBE_BYTES // (sum(map(len, words)) + 1), 2), PROBE_ENTRIES)
        probes = min(max(size // PROBED, MIN_PROBES), MAX_PROBES)
        cells = [(first, last + 1, 1.0)]
        for turn in range(MAX_ROUNDS):
            cells = _refined(redis, key, cells, probes, end.id, count)
            weights = [weight for _, _, weight in cells]
            if turn >= 3 and max(weights) < sum(weights) / parts / 4:
                break
        edges = [begin for begin, _, _ in cells] + [last + 1]
        wanted = [f"{time}-{MAX_SEQUENCE}" for time in _quantiles(edges, weights, parts)]
    replies = exchange(redis, [("XREVRANGE", key, each, f"({start.id}", "COUNT", 1) for each in wanted])
    ids = {reply[0][0].decode() for reply in replies if isinstance(reply, list) and reply}
    return sorted((each for each in ids if Place(each).order < end.order), key=lambda each: Place(each).order)


def _refined(redis: Any, key: str, cells: Sequence[Cell], probes: int, end: str, count: int) -> list[Cell]:
    """Return ``cells``, of which heavy ones are divided in proportion to their weight, about ``probes`` at most."""
    share = sum(weight for _, _, weight in cells) / probes
    found: list[Cell] = []
    new: list[tuple[int, int]] = []
    for begin, after, weight in cells:
        pieces = min(int(weight / share) if share else 1, after - begin)
        if pieces < 2:
            found.append((begin, after, weight))
        else:
            times = [begin + (after - begin) * piece // pieces for piece in range(pieces + 1)]
            new += pairwise(times)
    weights = _weights(redis, key, new, end, count)
    return sorted([*found, *((*span, weight) for span, weight in zip(new, weights, strict=True))])


def _quantiles(edges: Sequence[int], weights: Sequence[float], parts: int) -> list[int]:
    """Return the times (ms) that divide the weight of the cells between ``edges`` into ``parts``."""
    sums = [0.0, *accumulate(weights)]
    found = []
    for part in range(1, parts):
        wanted = sums[-1] * part / parts
        cell = min(bisect_right(sums, wanted), len(weights)) - 1
        share = (wanted - sums[cell]) / weights[cell] if weights[cell] else 0
        found.append(int(edges[cell] + (edges[cell + 1] - edges[cell]) * share))
    return found


def _weights(redis: Any, key: str, spans: Sequence[tuple[int, int]], end: str, count: int) -> list[float]:
    """Return about how many entries are in each cell, by the first and the last ones in it."""
    commands: list[Command] = []
    for begin, after in spans:
        commands += [
            ("XRANGE", key, f"{begin}-0", end, "COUNT", count),
            ("XREVRANGE", key, f"{begin}-{MAX_SEQUENCE}", f"{begin}-0", "COUNT", 1),
            ("XREVRANGE", key, f"{after - 1}-{MAX_SEQUENCE}", f"{begin}-0", "COUNT", count),
        ]
    replies = exchange(redis, commands) if commands else []
    found = []
    for (begin, after), first, same, last in zip(spans, replies[::3], replies[1::3], replies[2::3], strict=True):
        if not (isinstance(first, list) and isinstance(same, list) and isinstance(last, list) and last):
            found.append(0.0)
        elif len(last) < count:
            found.append(float(len(last)))
        else:
            upto, since, newest = (Place(each[0].decode()).order for each in (first[-1], last[-1], last[0]))
            # One millisecond may have more entries than a probe reads: then their last number says how many.
            head = Place(same[0][0].decode()).order[1] + 1 if same and upto[0] == begin else 0
            tail = newest[1] + 1 if since[0] == newest[0] else 0
            density = max(count, head) / (upto[0] - begin + 1) + max(count, tail) / (after - since[0])
            found.append(density / 2 * (after - begin))
    return found
