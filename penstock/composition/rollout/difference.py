"""Which lists are called otherwise, are no outputs any more, or are new ones: what runs, compared with its files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.composition.draw.sketch import gives_back
from penstock.composition.model import Place, Topology, Use
from penstock.composition.rollout.current import Listed, Present
from penstock.composition.rollout.notes import REMOVED, target
from penstock.composition.rollout.steps import Unclear, Wishes


@dataclass(frozen=True)
class Rename:
    """``by`` has the note of it, or will have; ``note`` is empty where there is none yet."""

    old: Place
    new: Place
    by: Present
    note: str = ""


@dataclass(frozen=True)
class Removal:
    """A list that a service reads or writes no more, and no other part either."""

    list: Place
    by: Present
    use: Use


@dataclass
class Difference:
    renames: dict[Place, Rename] = field(default_factory=dict)
    """By the old place."""
    removals: dict[Place, Removal] = field(default_factory=dict)
    added: list[tuple[Present, Place]] = field(default_factory=list)
    """New lists of those who copy to several."""
    stale: list[tuple[Present, str]] = field(default_factory=list)
    """Notes of lists that the files name."""
    sources: set[Place] = field(default_factory=set)
    """Lists that others are back-filled from."""

    def places(self) -> set[Place]:
        """Those whose lengths matter."""
        renamed = {place for each in self.renames.values() for place in (each.old, each.new)}
        return renamed | set(self.removals) | self.sources


def compare(topology: Topology, presents: Sequence[Present], wishes: Wishes) -> Difference:
    """``presents`` are the parts of ``topology`` that have a namespace. Raises ``Unclear``."""
    return _Comparison(topology, presents).found(wishes)


class _Comparison:
    def __init__(self, topology: Topology, presents: Sequence[Present]) -> None:
        self._topology, self._presents = topology, presents
        self._found = Difference()
        self._before = {(present.place(one.key), one.use) for present in presents for one in present.before}

    def found(self, wishes: Wishes) -> Difference:
        self._read_notes()
        for old, new in wishes.renames.items():
            self._wish(old, new)
        for present in self._presents:
            for role in sorted({one.role for one in present.before | present.after}):
                self._compare(present, role)
            self._found.sources |= {present.place(old) for old in wishes.backfills.values()}
        for present, one in self._gone():
            place = present.place(one.key)
            if place not in self._found.renames and not self._is_used(place, one.use):
                self._found.removals[place] = Removal(place, present, one.use)
        return self._found

    def _read_notes(self) -> None:
        for present in self._presents:
            for key, note in present.notes.items():
                place = present.place(key)
                if any(self._is_used(place, use) for use in ("reads", "writes")):
                    self._found.stale.append((present, key))
                elif (new := target(note)) is not None:
                    self._found.renames[place] = Rename(place, present.place(new), present, note)
                elif note == REMOVED:
                    self._found.removals[place] = Removal(place, present, "writes")
        self._follow()

    def _follow(self) -> None:
        """A list that was renamed twice goes to the last name."""
        renames = self._found.renames
        for old, rename in renames.items():
            new, seen = rename.new, {old}
            while new in renames and new not in seen:
                seen.add(new)
                new = renames[new].new
            renames[old] = Rename(old, new, rename.by, rename.note)

    def _wish(self, old: str, new: str) -> None:
        holders = [(present, one) for present, one in self._gone() if one.key == old]
        for present, one in holders:
            if not any(other.key == new and other.role == one.role for other in present.after - present.before):
                names = ", ".join(
                    sorted(other.key for other in present.after - present.before if other.role == one.role)
                )
                raise Unclear(f"{old} of {present.namespace} is not renamed {new}: new beside it are {names or 'none'}")
            place = present.place(old)
            self._found.renames.setdefault(place, Rename(place, present.place(new), present))
        known = any(rename.old.key == old and rename.new.key == new for rename in self._found.renames.values())
        if not holders and not known:
            gone = ", ".join(sorted({one.key for _, one in self._gone()}))
            raise Unclear(
                f"{old} is no list that the files take away: expected one of {gone or 'none, for there is none'}"
            )

    def _compare(self, present: Present, role: str) -> None:
        gone = {one for one in present.before - present.after if one.role == role}
        new = {one for one in present.after - present.before if one.role == role}
        if role == "out" and present.fans_out:
            self._found.added += [(present, present.place(one.key)) for one in sorted(new)]
        elif len(gone) == len(new) == 1:
            (old,), (now,) = gone, new
            place, other = present.place(old.key), present.place(now.key)
            used = any(self._is_used(place, use) for use in ("reads", "writes"))
            if not used and (other, now.use) not in self._before:
                self._found.renames.setdefault(place, Rename(place, other, present))

    def _gone(self) -> Iterator[tuple[Present, Listed]]:
        return ((present, one) for present in self._presents for one in sorted(present.before - present.after))

    def _is_used(self, place: Place, use: Use) -> bool:
        """By a part of the files; a monitor just gives back."""
        return any(use == "reads" or not gives_back(part) for part, _ in self._topology.at(place, use))
