"""The content of a drawing of a composition: its parts, the lists between them, and their servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.base.shape import Place
from penstock.composition.model import Composition, Part

OTHERS = "others"
"""Label of clients outside of the composition."""


@dataclass(frozen=True)
class Figures:
    """The length, rates and age of a list as text; empty without a sample."""

    words: str = ""
    piles_up: bool = False


@dataclass(frozen=True)
class Sketch:
    """The parts and lists of ``composition``, with the figures of the last sample if there is one."""

    composition: Composition
    lists: Mapping[Place, Figures] = field(default_factory=dict)
    activity: Mapping[str, str] = field(default_factory=dict)
    """By namespace: live instances, rate and pending messages of its service, as text."""

    @property
    def places(self) -> list[Place]:
        """Return the lists and streams in the order of the parts, without streams that no part reads."""
        read = {end.place for _, end in self.composition.ends("reads")}
        ends = [end for _, end in self.composition.ends("reads", "writes")]
        return list(dict.fromkeys(end.place for end in ends if end.kind == "list" or end.place in read))

    @property
    def servers(self) -> list[str]:
        return list(dict.fromkeys([*(part.server for part in self.parts), *(each.server for each in self.places)]))

    @property
    def parts(self) -> list[Part]:
        """Return the parts that are drawn: a service without lists, such as a gateway, stands by itself."""
        return [part for part in self.composition.parts if part.ends or part.service]

    @property
    def undeclared(self) -> list[str]:
        """Return the names of programs whose lists are not declared."""
        return [part.name for part in self.composition.parts if not (part.ends or part.service)]

    def writers(self, place: Place) -> list[Part]:
        """Return the parts that write to ``place``, except that redelivering writes no events."""
        found = _parts(self.composition, place, writes=True)
        return [part for part in found if not (self.is_stream(place) and redelivers(part))]

    def readers(self, place: Place) -> list[Part]:
        return _parts(self.composition, place, writes=False)

    def written(self, part: Part) -> list[Place]:
        return [place for place in self.places if part in self.writers(place)]

    def is_stream(self, place: Place) -> bool:
        return any(end.kind == "stream" for _, end in self.composition.at(place, "reads", "writes"))

    def is_dead(self, place: Place) -> bool:
        return any(end.role == "dead" for _, end in self.composition.at(place, "writes"))

    def from_others(self, place: Place) -> bool:
        return self.composition.external.does("writes", place.key)

    def to_others(self, place: Place) -> bool:
        return self.composition.external.does("reads", place.key)

    def label(self, part: Part) -> list[str]:
        """Return the name of the part with its service, and its activity if known."""
        kind = part.service or "program"
        named = part.name if kind == part.name else f"{part.name} ({kind})"
        activity = self.activity.get(part.namespace or "", "")
        return [named, *([] if part.ends else ["no lists"]), *([activity] if activity else [])]

    def figures(self, place: Place) -> Figures:
        return self.lists.get(place, Figures())


def redelivers(part: Part) -> bool:
    """Return True if the part writes only messages of other parts, as a monitor does with retries."""
    roles = {end.role for end in part.using("reads")}
    return bool(roles) and not roles & {"in", "answers", "events"}


def _parts(composition: Composition, place: Place, *, writes: bool) -> list[Part]:
    return list({part.name: part for part, _ in composition.at(place, "writes" if writes else "reads")}.values())
