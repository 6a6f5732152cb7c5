"""Comparison of the running composition with its files: which lists are renamed, removed or new."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.base.shape import Place, Use
from penstock.composition.draw.sketch import redelivers
from penstock.composition.model import Composition
from penstock.composition.rollout.current import CurrentState, ListUse
from penstock.composition.rollout.steps import InvalidOption, Options
from penstock.inspect.changes import REMOVED, target


@dataclass(frozen=True)
class Rename:
    """A new name of a list; ``by`` keeps the note of it, and ``note`` is empty until that is written."""

    old: Place
    new: Place
    by: CurrentState
    note: str = ""


@dataclass(frozen=True)
class Removal:
    """A list that no part reads, or writes, any more; ``by`` was the last."""

    list: Place
    by: CurrentState
    use: Use


@dataclass
class Difference:
    renames: dict[Place, Rename] = field(default_factory=dict)
    """By the old name."""
    removals: dict[Place, Removal] = field(default_factory=dict)
    added: list[tuple[CurrentState, Place]] = field(default_factory=list)
    """New outputs of services that fan out."""
    stale: list[tuple[CurrentState, str]] = field(default_factory=list)
    """Notes of lists that the files name again."""
    sources: set[Place] = field(default_factory=set)
    """Lists that a back-fill copies from."""

    def places(self) -> set[Place]:
        """Return the lists whose lengths the plan needs."""
        renamed = {place for each in self.renames.values() for place in (each.old, each.new)}
        return renamed | set(self.removals) | self.sources


def compare(composition: Composition, states: Sequence[CurrentState], options: Options) -> Difference:
    """Compare ``composition`` with ``states``, one for each of its namespaces. Raise ``InvalidOption``."""
    return _Comparison(composition, states).found(options)


class _Comparison:
    def __init__(self, composition: Composition, states: Sequence[CurrentState]) -> None:
        self._composition, self._states = composition, states
        self._found = Difference()
        self._before = {(state.place(one.key), one.use) for state in states for one in state.before}

    def found(self, options: Options) -> Difference:
        self._read_notes()
        for old, new in options.renames.items():
            self._apply_rename(old, new)
        for state in self._states:
            for role in sorted({one.role for one in state.before | state.after}):
                self._compare(state, role)
            self._found.sources |= {state.place(old) for old in options.backfills.values()}
        for state, one in self._gone():
            place = state.place(one.key)
            if place not in self._found.renames and not self._is_used(place, one.use):
                self._found.removals[place] = Removal(place, state, one.use)
        return self._found

    def _read_notes(self) -> None:
        for state in self._states:
            for key, note in state.notes.items():
                place = state.place(key)
                if any(self._is_used(place, use) for use in ("reads", "writes")):
                    self._found.stale.append((state, key))
                elif (new := target(note)) is not None:
                    self._found.renames[place] = Rename(place, state.place(new), state, note)
                elif note == REMOVED:
                    self._found.removals[place] = Removal(place, state, "writes")
        self._follow()

    def _follow(self) -> None:
        """Resolve chains: a list that was renamed twice goes to its last name."""
        renames = self._found.renames
        for old, rename in renames.items():
            new, seen = rename.new, {old}
            while new in renames and new not in seen:
                seen.add(new)
                new = renames[new].new
            renames[old] = Rename(old, new, rename.by, rename.note)

    def _apply_rename(self, old: str, new: str) -> None:
        holders = [(state, one) for state, one in self._gone() if one.key == old]
        for state, one in holders:
            if not any(other.key == new and other.role == one.role for other in state.after - state.before):
                names = ", ".join(sorted(other.key for other in state.after - state.before if other.role == one.role))
                found = f"{state.namespace} has no new list {new}; its new lists are {names or 'none'}"
                raise InvalidOption(f"--rename {old}={new}: {found}")
            place = state.place(old)
            self._found.renames.setdefault(place, Rename(place, state.place(new), state))
        known = any(rename.old.key == old and rename.new.key == new for rename in self._found.renames.values())
        if not holders and not known:
            gone = ", ".join(sorted({one.key for _, one in self._gone()})) or "none"
            raise InvalidOption(f"--rename {old}: the files do not remove this list; they remove {gone}")

    def _compare(self, state: CurrentState, role: str) -> None:
        gone = {one for one in state.before - state.after if one.role == role}
        new = {one for one in state.after - state.before if one.role == role}
        if role == "out" and state.fans_out:
            self._found.added += [(state, state.place(one.key)) for one in sorted(new)]
        elif len(gone) == len(new) == 1:
            (old,), (now,) = gone, new
            place, other = state.place(old.key), state.place(now.key)
            used = any(self._is_used(place, use) for use in ("reads", "writes"))
            if not used and (other, now.use) not in self._before:
                self._found.renames.setdefault(place, Rename(place, other, state))

    def _gone(self) -> Iterator[tuple[CurrentState, ListUse]]:
        return ((state, one) for state in self._states for one in sorted(state.before - state.after))

    def _is_used(self, place: Place, use: Use) -> bool:
        """Return True if a part of the files uses ``place`` so; a monitor, which redelivers, is no writer."""
        return any(use == "reads" or not redelivers(part) for part, _ in self._composition.at(place, use))
