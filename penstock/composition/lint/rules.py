"""Lint rules on the flow of messages through a composition, and the table of all rules."""

from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

from penstock.base.shape import End, Place, Use
from penstock.composition.findings import Finding, at, display_name, nearest
from penstock.composition.lint.clashes import kinds, namespaces, own_keys, pendings, slots
from penstock.composition.lint.replies import replies
from penstock.composition.lint.timing import answers, metrics, nested, unwatched, watched
from penstock.composition.model import Composition, Part

FLOWS: Final = {"in": "out", "answers": "replies"}
"""Role of the output by role of the input; messages in other inputs end at the part."""
DECLARED: Final = "composition.yaml"


def lint(composition: Composition) -> list[Finding]:
    """Return each finding once. If files are invalid on their own, return only those: the rest would follow."""
    if composition.problems:
        return [Finding("file", problem) for problem in composition.problems]
    return list(dict.fromkeys(finding for rule in RULES for finding in rule(composition)))


def orphans(composition: Composition) -> Iterator[Finding]:
    """Find lists that are written and never read, except for dead letters and events, which need no reader."""
    read = {end.place for _, end in composition.ends("reads")}
    late = {end.place for part in unwatched(composition) for end in part.shape.watched}
    for part, end in _first_users(composition, "writes"):
        if end.kind == "stream" or end.role == "dead" or end.place in read | late:
            continue
        if composition.external.does("reads", end.key):
            continue
        why = _elsewhere(end, read) or nearest(end.key, _lone(composition, end, "reads", "writes"))
        yield at(
            "orphan", part, end, f"{end.key!r} is written and never read{why}; {_todo(composition, part, 'reads')}"
        )


def unfed(composition: Composition) -> Iterator[Finding]:
    """Find lists and streams that are read and never written."""
    written = {end.place for _, end in composition.ends("writes")}
    for part, end in _first_users(composition, "reads"):
        if end.place in written or composition.external.does("writes", end.key):
            continue
        streams = [other.key for _, other in composition.ends("writes") if other.kind == "stream"]
        lone = streams if end.kind == "stream" else _lone(composition, end, "writes", "reads")
        why = _elsewhere(end, written) or nearest(end.key, lone)
        yield at(
            "unfed", part, end, f"{end.key!r} is read and never written{why}; {_todo(composition, part, 'writes')}"
        )


def _first_users(composition: Composition, use: Use) -> Iterator[tuple[Part, End]]:
    """Yield each place once, with the first part that uses it so: one mistake is one finding."""
    first: dict[Place, tuple[Part, End]] = {}
    for part, end in composition.ends(use):
        first.setdefault(end.place, (part, end))
    yield from first.values()


def loops(composition: Composition) -> Iterator[Finding]:
    """Find cycles of services, none of which counts hops, in which a message would loop for ever."""
    services = [part for part in composition.parts if part.service and not part.setting("max_hops")]
    steps = {(taken.place, given.place): (part, given) for part in services for taken, given in flows(part)}
    while cycle := _cycle(steps):
        pairs = [*pairwise(cycle)]
        part, end = next((steps[pair] for pair in pairs if steps[pair][0].service == "vpush"), steps[pairs[-1]])
        way = " -> ".join(repr(place.key) for place in cycle)
        yield at("loop", part, end, f"messages loop for ever: {way}; expected a vpush with maxHops on the way")
        for pair in pairs:
            steps.pop(pair)


def rivals(composition: Composition) -> Iterator[Finding]:
    """Find readers of one branch of a fan-out that are not replicas, so that each gets only some of its messages."""
    for leg in sorted({end.place for _, end in composition.ends("writes") if end.copies}):
        readers = [(part, end) for part, end in composition.at(leg, "reads") if end.role == "in"]
        for part, end in readers[1:]:
            first, _ = readers[0]
            if _who(part) != _who(first):
                some = f"{display_name(first)} reads this leg of a fan-out, too: each gets only some of its messages"
                yield at("rivals", part, end, f"{some}; expected a list of its own, in `out` of the mpush")


def flows(part: Part) -> Iterator[tuple[End, End]]:
    """Yield each input of the part with each output that its messages go to."""
    for taken in part.using("reads"):
        for given in part.using("writes"):
            if given.role == FLOWS.get(taken.role):
                yield taken, given


def _who(part: Part) -> object:
    """Return a value that is equal for replicas; programs that read and write the same lists are replicas."""
    if part.service and part.namespace:
        return part.service, part.namespace
    return part.service, frozenset((end.use, end.place) for end in part.ends)


def _cycle(steps: Iterable[tuple[Place, Place]]) -> list[Place]:
    """Return a cycle; empty if there is none."""
    graph = TopologicalSorter[Place]()
    for taken, given in steps:
        graph.add(given, taken)
    try:
        graph.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _lone(composition: Composition, user: End, use: Use, opposite: Use) -> list[str]:
    """Return keys with ``use`` but without ``opposite`` use, one of which ``user`` may be a misspelling of.

    Keys that a part with that place uses itself are left out; all are if several parts agree on its name.
    """
    parts = {part.name: part for part, _ in composition.at(user.place, opposite)}
    if len(parts) > 1:
        return []
    opposed = {end.place for _, end in composition.ends(opposite)}
    ends = [end for _, end in composition.ends(use) if end.place not in opposed and end.role != "dead"]
    keys = [end.key for end in ends if not composition.external.does(opposite, end.key)]
    used = {end.key for _, end in composition.ends(opposite)}
    external = composition.external.reads if use == "reads" else composition.external.writes
    keys += [name for name in external if name not in used]
    own = {end.key for part in parts.values() for end in part.ends}
    return [key for key in keys if key not in own]


def _elsewhere(end: End, places: Iterable[Place]) -> str:
    servers = sorted({place.server for place in places if place.key == end.key} - {end.place.server})
    if not servers:
        return ""
    opposite = "read" if end.use == "writes" else "written"
    return f" on {end.place.server}: it is {opposite} on {', '.join(servers)}"


def _todo(composition: Composition, part: Part, use: Use) -> str:
    undeclared = [repr(part.name) for part in composition.parts if part.service is None and not part.ends]
    verb = "reads" if use == "reads" else "writes to"
    programs = f", or what {', '.join(undeclared)} {use} under programs" if undeclared else ""
    hand = f", or keeps of {part.name!r} if it is its pending list," if part.service is None else ""
    return f"expected a part that {verb} it, or external.{use}{programs}{hand} in {DECLARED}"


RULES: Final[tuple[Callable[[Composition], Iterator[Finding]], ...]] = (
    orphans,
    unfed,
    watched,
    loops,
    rivals,
    namespaces,
    own_keys,
    pendings,
    kinds,
    metrics,
    answers,
    replies,
    nested,
    slots,
)
