"""What a drawing of a composition shows: boxes for its parts, lists between them, servers around them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.composition.model import Part, Place, Topology

OTHERS = "others"
"""Whoever is no part of the composition."""


@dataclass(frozen=True)
class Figures:
    """What is going on in a list, in words for people; nothing where nobody has looked."""

    words: str = ""
    piles_up: bool = False


@dataclass(frozen=True)
class Sketch:
    """The parts and lists of ``topology`` with whatever was seen of them."""

    topology: Topology
    lists: Mapping[Place, Figures] = field(default_factory=dict)
    activity: Mapping[str, str] = field(default_factory=dict)
    """By namespace, what its service is doing."""

    @property
    def places(self) -> list[Place]:
        """Lists and streams, in the order of the parts; no stream that nobody reads."""
        read = {end.place for _, end in self.topology.ends("reads")}
        ends = [end for _, end in self.topology.ends("reads", "writes")]
        return list(dict.fromkeys(end.place for end in ends if end.kind == "list" or end.place in read))

    @property
    def servers(self) -> list[str]:
        return list(dict.fromkeys([*(part.server for part in self.parts), *(each.server for each in self.places)]))

    @property
    def parts(self) -> list[Part]:
        return [part for part in self.topology.parts if part.ends]

    @property
    def mute(self) -> list[str]:
        """Names of parts of which nobody says what they read and write."""
        return [part.name for part in self.topology.parts if not part.ends]

    def writers(self, place: Place) -> list[Part]:
        """Those that put messages there, but for the events of what is given back."""
        found = _parts(self.topology, place, writes=True)
        return [part for part in found if not (self.is_stream(place) and gives_back(part))]

    def readers(self, place: Place) -> list[Part]:
        return _parts(self.topology, place, writes=False)

    def written(self, part: Part) -> list[Place]:
        return [place for place in self.places if part in self.writers(place)]

    def is_stream(self, place: Place) -> bool:
        return any(end.kind == "stream" for _, end in self.topology.at(place, "reads", "writes"))

    def is_dead(self, place: Place) -> bool:
        return any(end.role == "dead" for _, end in self.topology.at(place, "writes"))

    def from_others(self, place: Place) -> bool:
        return self.topology.outside.does("writes", place.key)

    def to_others(self, place: Place) -> bool:
        return self.topology.outside.does("reads", place.key)

    def label(self, part: Part) -> list[str]:
        """Name, what it is, and what it is doing."""
        kind = part.service or "program"
        named = part.name if kind == part.name else f"{part.name} ({kind})"
        activity = self.activity.get(part.namespace or "", "")
        return [named, activity] if activity else [named]

    def figures(self, place: Place) -> Figures:
        return self.lists.get(place, Figures())


def gives_back(part: Part) -> bool:
    """Whether what it writes are messages of others, as a monitor's retries are."""
    roles = {end.role for end in part.using("reads")}
    return bool(roles) and not roles & {"in", "answers", "events"}


def _parts(topology: Topology, place: Place, *, writes: bool) -> list[Part]:
    return list({part.name: part for part, _ in topology.at(place, "writes" if writes else "reads")}.values())
