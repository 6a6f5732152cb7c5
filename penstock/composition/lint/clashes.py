"""Lint rules on names that only one part of a composition may use."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from redis.crc import key_slot

from penstock.base.encoding import encoded
from penstock.base.keys import Keys, pending_of
from penstock.base.shape import End, property_of
from penstock.composition.draw.sketch import redelivers
from penstock.composition.findings import Finding, at, at_property, display_name
from penstock.composition.model import Composition, Part

COMMON: Final = (
    *("message_timeout", "message_expire", "message_capacity", "attempts", "backoff", "backoff_base", "backoff_cap"),
    *(
        "reply_expire",
        "reply_lists",
        "event_capacity",
        "service_expire",
        "service_renew",
        "metrics_expire",
        "lease_expire",
        "ordered",
    ),
)
"""Settings that replicas share in Redis, so that the start of one would change them for the others."""


def namespaces(composition: Composition) -> Iterator[Finding]:
    """Find different services under one namespace, and replicas with different lists or lifetimes."""
    for part, other in combinations(_settled(composition), 2):
        if part.namespace is None or (part.namespace, part.server) != (other.namespace, other.server):
            continue
        if part.service != other.service or _lists(part) != _lists(other):
            both = f"{part.namespace!r} is the namespace of {display_name(part)}, too, which has other lists"
            yield at_property("namespace", other, "redisNamespace", f"{both}; expected a namespace of its own")
            continue
        for name in COMMON:
            mine, theirs = other.setting(name), part.setting(name)
            if mine != theirs:
                differs = f"{mine} here and {theirs} in {part.file}, another replica of {part.namespace!r}"
                yield at_property("replicas", other, property_of(name), f"{differs}; expected the same in both")


def own_keys(composition: Composition) -> Iterator[Finding]:
    """Find lists whose names are those of a service's own keys."""
    for owner in _settled(composition):
        if owner.namespace is None:
            continue
        keys = Keys(owner.namespace)
        for part, end in composition.ends("reads", "writes", "keeps"):
            allowed = end.key in (keys.done, keys.dead, keys.events) or part.namespace == owner.namespace
            if not allowed and end.place.server == owner.server and keys.owns(end.key):
                of = f"{end.key!r} is a key of {display_name(owner)} itself, in its namespace {owner.namespace!r}"
                yield at("collision", part, end, f"{of}; expected another name")


def pendings(composition: Composition) -> Iterator[Finding]:
    """Find pending lists of one service that another one uses."""
    for part, end in composition.ends("keeps"):
        for other, theirs in composition.ends("reads", "writes", "keeps"):
            if other is part or _replicas(part, other) or not _is_in_hand(theirs, end):
                continue
            if theirs.use == "keeps" and composition.parts.index(other) < composition.parts.index(part):
                continue  # reported once, for the later one
            holds = f"{theirs.key!r} is a pending list of {display_name(part)}"
            yield at("pending", other, theirs, f"{holds}; expected another list")


def kinds(composition: Composition) -> Iterator[Finding]:
    """Find lists that are streams of another part. A program may read either: its kind is not declared."""
    writers = [(part, end) for part, end in composition.ends("writes") if not redelivers(part)]
    streams = {end.place: part for part, end in writers if end.kind == "stream"}
    for part, end in composition.ends("reads", "writes", "keeps"):
        owner = streams.get(end.place)
        if owner and end.kind == "list" and (part.service or end.use != "reads"):
            stream = f"{end.key!r} is a stream, the events of {display_name(owner)}"
            yield at("collision", part, end, f"{stream}; expected another name for a list")


def slots(composition: Composition) -> Iterator[Finding]:
    """Find keys of one service that a Redis Cluster may keep on different nodes; the findings are notes."""
    for part in _settled(composition):
        names = [end.key for end in part.ends if end.place.server == part.server]
        names += [Keys(part.namespace).ids] if part.namespace else []
        if len({key_slot(encoded(name)) for name in names}) > 1:
            tag = f"expected a common hash tag in all of them, as in {{{part.name}}}:..."
            property = "redisNamespace" if part.namespace else "in"
            found = at_property(
                "slots", part, property, f"{', '.join(sorted(set(names)))} are in different slots; {tag}"
            )
            yield Finding(found.rule, found.problem, note=True)


def _settled(composition: Composition) -> list[Part]:
    return [part for part in composition.parts if part.settings is not None]


def _lists(part: Part) -> frozenset[object]:
    return frozenset((end.place, end.role) for end in part.shape.ends if end.kind == "list")


def _replicas(part: Part, other: Part) -> bool:
    """Return True for replicas of one service. Different lists in one namespace are reported by ``namespaces``."""
    if part.service != other.service or part.settings is None:
        return False
    return part.namespace == other.namespace and (part.namespace is not None or _lists(part) == _lists(other))


def _is_in_hand(theirs: End, held: End) -> bool:
    if theirs.place.server != held.place.server:
        return False
    return theirs.key == held.key or bool(re.fullmatch(re.escape(pending_of(held.key, "")) + "[0-9]+", theirs.key))
