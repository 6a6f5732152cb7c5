"""The steps from what runs to what the files say, in an order in which nothing is lost, doubled or overtaken.

Whoever fills a list comes before whoever takes from it. So once a list has a new name, everything that the old one
holds is older than what comes, and goes before it while nobody takes from there yet.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.composition.draw.sketch import gives_back
from penstock.composition.model import Place, Topology, Use
from penstock.composition.rollout.current import Present
from penstock.composition.rollout.difference import Difference, Removal, Rename
from penstock.composition.rollout.notes import REMOVED, is_moved, renamed
from penstock.composition.rollout.steps import Plan, Step, Unclear, Wishes


def plan(
    topology: Topology,
    presents: Sequence[Present],
    difference: Difference,
    lengths: Mapping[Place, int],
    wishes: Wishes,
) -> Plan:
    """Raises ``Unclear`` where a wish does not fit."""
    return _Planning(topology, presents, difference, lengths, wishes).plan()


class _Planning:
    def __init__(
        self,
        topology: Topology,
        presents: Sequence[Present],
        difference: Difference,
        lengths: Mapping[Place, int],
        wishes: Wishes,
    ) -> None:
        self._topology, self._difference, self._lengths, self._wishes = topology, difference, lengths, wishes
        self._presents = _downstream(topology, presents)
        self._last = {old: self._last_of(rename) for old, rename in difference.renames.items()}

    def plan(self) -> Plan:
        steps = [step for present in self._presents for step in self._steps(present)]
        for new in self._wishes.backfills:
            if not any(step.kind == "backfill" and step.to and step.to.key == new for step in steps):
                raise Unclear(f"{new} is no output of a service that copies to several: it cannot be back-filled")
        return Plan(tuple(steps), tuple(self._notes()), tuple(self._difference.stale))

    def _notes(self) -> Iterator[tuple[Present, Mapping[str, str]]]:
        for present in self._presents:
            renames = [rename for rename in self._difference.renames.values() if rename.by is present]
            notes = {one.old.key: renamed(one.new.key) for one in renames if not one.note}
            notes |= {one.list.key: REMOVED for one in self._difference.removals.values() if one.by is present}
            if notes:
                yield present, notes

    def _steps(self, present: Present) -> Iterator[Step]:
        removals = [one for one in self._difference.removals.values() if self._after_whom(one) is present]
        renames = [one for old, one in self._difference.renames.items() if self._last[old] is present]
        if self._wishes.drain:
            yield from (self._removed(one) for one in removals if one.use == "reads")
        yield from self._moves_before(renames)
        yield from self._changed(present)
        yield from self._moves(renames)
        yield from (self._removed(one) for one in removals if one.use == "writes" or not self._wishes.drain)
        yield from self._backfills(present)

    def _changed(self, present: Present) -> Iterator[Step]:
        changes = _changes(present, self._difference)
        if not present.instances:
            if present.part.command:
                yield Step("start", present, "it does not run: start it")
        elif present.shape is None:
            why = "it has not registered what it reads and writes: restart it by a version that does"
            yield Step("restart", present, "unknown", refused=why)
        elif fixed := _fixed(present):
            why = f"{', '.join(fixed)} cannot change while it runs: restart it, or leave that as it is"
            yield Step("restart", present, changes, refused=why)
        elif present.shape != present.wanted or present.disagrees or self._wishes.reload:
            yield Step("reload", present, changes or "its settings")

    def _moves_before(self, renames: Sequence[Rename]) -> Iterator[Step]:
        """Where others fill a list that is renamed, and do so under its new name already: theirs are the newer ones."""
        for one in renames:
            both = self._lengths[one.old] and self._lengths[one.new]
            if both and not is_moved(one.note) and not self._writers(one.new):
                yield self._move(one)

    def _moves(self, renames: Sequence[Rename]) -> Iterator[Step]:
        for one in renames:
            if self._lengths[one.old] or not is_moved(one.note):
                yield self._move(one)

    def _move(self, one: Rename) -> Step:
        words = f"{one.old.key} -> {one.new.key}"
        return Step("move", one.by, words, one.old, one.new, self._lengths[one.old], self._writers(one.new))

    def _removed(self, one: Removal) -> Step:
        held, writers = self._lengths[one.list], self._writers_before(one.list)
        if self._wishes.drain:
            return Step("drain", one.by, f"wait until {one.list.key} is empty", one.list, None, held)
        if self._wishes.drop:
            return Step("drop", one.by, f"delete {one.list.key}", one.list, None, held, writers)
        ways = "--drain waits until its reader has emptied it, --drop deletes what is in it"
        several = any(present is one.by for present, _ in self._difference.added)
        again = f", --rename {one.list.key}=NEW says that it is called otherwise now" if several else ""
        refused = f"{one.list.key} holds {held:,} message{'' if held == 1 else 's'}: {ways}{again}" if held else ""
        return Step("empty", one.by, f"{one.list.key} must be empty", one.list, None, held, refused=refused)

    def _backfills(self, present: Present) -> Iterator[Step]:
        outs = {one.key for one in present.after if one.role == "out"}
        for new, old in self._wishes.backfills.items():
            if new in outs and present.fans_out:
                words, refused = f"{new} gets what {old} still holds", self._why_not(present, new, old)
                source, target = present.place(old), present.place(new)
                count = max(0, self._lengths[source] - present.owed.get(new, 0))
                yield Step("backfill", present, words, source, target, count, refused=refused)

    def _why_not(self, present: Present, new: str, old: str) -> str:
        """What was delivered to both must be known by its number."""
        if not any(one.key == old for one in present.before & present.after):
            return f"{old} is no output of {present.namespace} that stays one"
        for key in (new, old):
            if self._writers(present.place(key)) != (present,):
                return f"{key} is filled by others, too, so nobody knows what both lists have got"
        if present.part.settings.overflow == "dead":
            return f"with overflow dead nobody knows what {old} has got"
        if present.owed.get(new) and any(place.key == new for _, place in self._difference.added):
            return f"{new} was an output before, so nobody knows what it has got; see penstock replay"
        return ""

    def _writers(self, place: Place) -> tuple[Present, ...]:
        """Services that fill a list by their files."""
        names = {id(part) for part, _ in self._topology.at(place, "writes") if part.namespace and not gives_back(part)}
        return tuple(present for present in self._presents if id(present.part) in names)

    def _writers_before(self, place: Place) -> tuple[Present, ...]:
        """Services that have counted what they put into a list."""
        return tuple(one for one in self._presents if one.owed.get(place.key) and one.place(place.key) == place)

    def _after_whom(self, one: Removal) -> Present:
        """After whose change the list is removed; before that where its reader shall empty it first."""
        holders = [present for present in self._presents if one.list in _places(present, one.use)] or [one.by]
        return holders[0 if self._wishes.drain and one.use == "reads" else -1]

    def _last_of(self, rename: Rename) -> Present:
        """After whom messages are moved."""
        if writers := self._writers(rename.new):
            return writers[-1]
        readers = {id(part) for part, _ in self._topology.at(rename.new, "reads")}
        return [one for one in self._presents if id(one.part) in readers or one is rename.by][-1]


def _downstream(topology: Topology, presents: Sequence[Present]) -> list[Present]:
    """Those who fill a list before those who take from it; in a loop some of them."""
    by_part = {id(present.part): present for present in presents}
    ordered: dict[int, Present] = {}

    def add(part: Any, above: tuple[int, ...]) -> None:
        if id(part) in above or id(part) in ordered:
            return
        for end in part.using("reads"):
            for other, _ in topology.at(end.place, "writes"):
                if not gives_back(other):
                    add(other, (*above, id(part)))
        if id(part) in by_part:
            ordered[id(part)] = by_part[id(part)]

    for present in presents:
        add(present.part, ())
    return list(ordered.values())


def _places(present: Present, use: Use) -> set[Place]:
    """Lists that the service uses so no more."""
    return {present.place(one.key) for one in present.before - present.after if one.use == use}


def _changes(present: Present, difference: Difference) -> str:
    """What the service is to do otherwise, in words; empty where its place stays the same."""
    if present.shape is None:
        return ""
    before, after = (
        {(end["role"], end["key"]) for end in [*shape["ends"], *shape["watched"]]}
        for shape in (present.shape, present.wanted)
    )
    before |= {("watch", name) for name in present.shape["watches"]}
    after |= {("watch", name) for name in present.wanted["watches"]}
    words = []
    for role in sorted({role for role, _ in before ^ after}):
        gone = sorted(key for each, key in before - after if each == role)
        new = sorted(key for each, key in after - before if each == role)
        for key in gone:
            rename = difference.renames.get(present.place(key))
            other = rename.new.key if rename else new[0] if len(gone) == len(new) == 1 and role == "pending" else None
            if other in new:
                new.remove(other)
                words.append(f"{role}: {key} -> {other}")
            else:
                words.append(f"{role}: - {key}")
        words += [f"{role}: + {key}" for key in new]
    return "; ".join(words)


def _fixed(present: Present) -> list[str]:
    """Properties that differ and cannot change while the service runs."""
    settings = present.part.settings
    if present.shape is None or present.shape["service"] != settings.service:
        return ["redisNamespace"]
    before, after = (
        {(end["role"], end["key"], end.get("server")) for end in shape["ends"]}
        for shape in (present.shape, present.wanted)
    )
    roles = {role for role, *_ in before ^ after}
    fixed = {re.sub(r"_(\w)", lambda letter: letter[1].upper(), name.rstrip("_")) for name in settings.fixed()}
    return sorted({end.setting for end in settings.shape().ends if end.role in roles} & fixed)
