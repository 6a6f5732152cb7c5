"""Planning of the steps from the running composition to its files, such that no message is lost, doubled or overtaken.

The writers of a list are changed before its readers. So the messages under the old name are older than those under the
new one, and are moved in front of them before the first reader takes from there.
"""

from collections.abc import Iterator, Mapping, Sequence

from penstock.base.encoding import counted
from penstock.base.shape import Place, Use, property_of
from penstock.composition.draw.sketch import redelivers
from penstock.composition.model import Composition, Part
from penstock.composition.rollout.current import CurrentState
from penstock.composition.rollout.difference import Difference, Removal, Rename
from penstock.composition.rollout.steps import InvalidOption, Options, Plan, Step
from penstock.inspect.changes import REMOVED, begun, is_moved, renamed


def plan(
    composition: Composition,
    states: Sequence[CurrentState],
    difference: Difference,
    lengths: Mapping[Place, int],
    options: Options,
) -> Plan:
    """Return the plan. Raise ``InvalidOption`` if an option does not fit the composition."""
    return _Planning(composition, states, difference, lengths, options).plan()


class _Planning:
    def __init__(
        self,
        composition: Composition,
        states: Sequence[CurrentState],
        difference: Difference,
        lengths: Mapping[Place, int],
        options: Options,
    ) -> None:
        self._composition, self._difference, self._lengths, self._options = composition, difference, lengths, options
        self._states = _upstream_first(composition, states)
        self._last = {old: self._last_of(rename) for old, rename in difference.renames.items()}

    def plan(self) -> Plan:
        steps = [step for state in self._states for step in self._steps(state)]
        for new in self._options.backfills:
            if not any(step.kind == "backfill" and step.to and step.to.key == new for step in steps):
                raise InvalidOption(f"{new} is not an output of a service that fans out: it cannot be back-filled")
        return Plan(tuple(steps), tuple(self._notes()), tuple(self._difference.stale))

    def _notes(self) -> Iterator[tuple[CurrentState, Mapping[str, str]]]:
        for state in self._states:
            renames = [rename for rename in self._difference.renames.values() if rename.by is state]
            notes = {one.old.key: renamed(one.new.key) for one in renames if not one.note}
            notes |= {one.list.key: REMOVED for one in self._difference.removals.values() if one.by is state}
            if notes:
                yield state, notes

    def _steps(self, state: CurrentState) -> Iterator[Step]:
        removals = [one for one in self._difference.removals.values() if self._after_whom(one) is state]
        renames = [one for old, one in self._difference.renames.items() if self._last[old] is state]
        if self._options.drain:
            yield from (self._removed(one) for one in removals if one.use == "reads")
        yield from self._moves_before(renames)
        yield from self._changed(state)
        yield from self._moves(renames)
        yield from (self._removed(one) for one in removals if one.use == "writes" or not self._options.drain)
        yield from self._backfills(state)

    def _changed(self, state: CurrentState) -> Iterator[Step]:
        changes = _changes(state, self._difference)
        if not state.instances:
            if state.part.command:
                yield Step("start", state, "it does not run: start it")
        elif state.shape is None:
            why = "it has not registered its lists: restart it with a version that does"
            yield Step("restart", state, "unknown", refused=why)
        elif fixed := _fixed_properties(state):
            why = f"{', '.join(fixed)} cannot change while it runs: restart it, or undo the change"
            yield Step("restart", state, changes, refused=why)
        elif state.shape != state.desired or state.reload_unfinished or self._options.reload or self._begins(state):
            yield Step("reload", state, changes or "its settings", begins=self._begins(state))

    def _begins(self, state: CurrentState) -> tuple[str, ...]:
        """Return new outputs of a service that fans out, and those to back-fill of which that is not known yet."""
        new = [place.key for other, place in self._difference.added if other is state]
        outs = {one.key for one in state.after if one.role == "out"} if state.fans_out else set()
        more = [key for key in self._options.backfills if key in outs and begun(key) not in state.notes]
        return tuple(dict.fromkeys([*new, *more]))

    def _moves_before(self, renames: Sequence[Rename]) -> Iterator[Step]:
        """Yield moves of lists that only programs fill: what they already pushed to the new name is newer."""
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
        if self._options.drain:
            return Step("drain", one.by, f"wait until {one.list.key} is empty", one.list, None, held)
        if self._options.drop:
            return Step("drop", one.by, f"delete {one.list.key}", one.list, None, held, writers)
        ways = "--drain waits until its reader has emptied it, --drop deletes its messages"
        several = any(state is one.by for state, _ in self._difference.added)
        again = f", --rename {one.list.key}=NEW gives it a new name" if several else ""
        refused = f"{one.list.key} holds {counted(held, 'message')}: {ways}{again}" if held else ""
        return Step("empty", one.by, f"{one.list.key} must be empty", one.list, None, held, refused=refused)

    def _backfills(self, state: CurrentState) -> Iterator[Step]:
        outs = {one.key for one in state.after if one.role == "out"}
        for new, old in self._options.backfills.items():
            if new in outs and state.fans_out:
                words, refused = f"{new} gets what {old} still holds", self._why_not(state, new, old)
                source, target = state.place(old), state.place(new)
                count = max(0, self._lengths[source] - state.owed.get(new, 0))
                yield Step("backfill", state, words, source, target, count, refused=refused)

    def _why_not(self, state: CurrentState, new: str, old: str) -> str:
        """Return why the back-fill is refused, empty if it is not: it needs the counts of both lists."""
        if not any(one.key == old for one in state.before & state.after):
            return f"{old} is not an output of {state.namespace} before and after the change"
        for key in (new, old):
            if self._writers(state.place(key)) != (state,):
                return f"others fill {key}, too, so it is not known which messages both lists have had"
        if state.part.setting("overflow") == "dead":
            return f"with `overflow: dead` it is not known which messages {old} has had"
        if state.owed.get(new) and (begun(new) not in state.notes or new in self._begins(state)):
            return f"{new} was an output before, so it is not known which messages it has had; see penstock replay"
        return ""

    def _writers(self, place: Place) -> tuple[CurrentState, ...]:
        """Return the services that fill a list, by their files."""
        names = {
            id(part) for part, _ in self._composition.at(place, "writes") if part.namespace and not redelivers(part)
        }
        return tuple(state for state in self._states if id(state.part) in names)

    def _writers_before(self, place: Place) -> tuple[CurrentState, ...]:
        """Return the services that have counted messages for a list."""
        return tuple(one for one in self._states if one.owed.get(place.key) and one.place(place.key) == place)

    def _after_whom(self, one: Removal) -> CurrentState:
        """Return the service with whose change the list is removed; with --drain, its reader drains it before that."""
        holders = [state for state in self._states if one.list in _places(state, one.use)] or [one.by]
        return holders[0 if self._options.drain and one.use == "reads" else -1]

    def _last_of(self, rename: Rename) -> CurrentState:
        """Return the service after whose change the messages are moved."""
        if writers := self._writers(rename.new):
            return writers[-1]
        readers = {id(part) for part, _ in self._composition.at(rename.new, "reads")}
        return [one for one in self._states if id(one.part) in readers or one is rename.by][-1]


def _upstream_first(composition: Composition, states: Sequence[CurrentState]) -> list[CurrentState]:
    """Return ``states`` with the writers of a list before its readers; in a loop, from an arbitrary start."""
    by_part = {id(state.part): state for state in states}
    ordered: dict[int, CurrentState] = {}

    def add(part: Part, above: tuple[int, ...]) -> None:
        if id(part) in above or id(part) in ordered:
            return
        for end in part.using("reads"):
            for other, _ in composition.at(end.place, "writes"):
                if not redelivers(other):
                    add(other, (*above, id(part)))
        if id(part) in by_part:
            ordered[id(part)] = by_part[id(part)]

    for state in states:
        add(state.part, ())
    return list(ordered.values())


def _places(state: CurrentState, use: Use) -> set[Place]:
    """Return the lists that the service no longer uses so."""
    return {state.place(one.key) for one in state.before - state.after if one.use == use}


def _changes(state: CurrentState, difference: Difference) -> str:
    """Return the changes of the service's lists as text; empty if there are none."""
    if state.shape is None:
        return ""
    before, after = (
        {(end["role"], end["key"]) for end in [*shape["ends"], *shape["watched"]]}
        for shape in (state.shape, state.desired)
    )
    before |= {("watch", name) for name in state.shape["watches"]}
    after |= {("watch", name) for name in state.desired["watches"]}
    words = []
    for role in sorted({role for role, _ in before ^ after}):
        gone = sorted(key for each, key in before - after if each == role)
        new = sorted(key for each, key in after - before if each == role)
        for key in gone:
            rename = difference.renames.get(state.place(key))
            other = rename.new.key if rename else new[0] if len(gone) == len(new) == 1 and role == "pending" else None
            if other in new:
                new.remove(other)
                words.append(f"{role}: {key} -> {other}")
            else:
                words.append(f"{role}: - {key}")
        words += [f"{role}: + {key}" for key in new]
    return "; ".join(words)


def _fixed_properties(state: CurrentState) -> list[str]:
    """Return the properties that differ and cannot change while the service runs."""
    settings = state.part.settings
    if settings is None or state.shape is None or state.shape["service"] != settings.service:
        return ["redisNamespace"]
    before, after = (
        {(end["role"], end["key"], end.get("server")) for end in shape["ends"]}
        for shape in (state.shape, state.desired)
    )
    roles = {role for role, *_ in before ^ after}
    fixed = {property_of(name) for name in settings.fixed()}
    return sorted({end.setting for end in settings.shape().ends if end.role in roles} & fixed)
