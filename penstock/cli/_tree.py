"""A tree of a composition as text, from each list that messages enter to those they leave by."""

from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from penstock.base.shape import Place
from penstock.cli._text import shown
from penstock.composition.draw.sketch import Sketch, redelivers
from penstock.composition.model import Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Drawing:
    """One branch for each source; nodes that are already drawn are repeated with an arrow, and not followed."""

    def __init__(
        self, sketch: Sketch, title: str, remarks: "Sequence[str]" = (), queues: "Mapping[str, bool] | None" = None
    ) -> None:
        """``queues`` are lists, streams and queues of programs in words, and whether somebody has to look."""
        self._sketch, self._title, self._remarks, self._queues = sketch, title, remarks, queues or {}
        self._drawn: set[Place | str] = set()
        self._many = len(sketch.servers) > 1

    def tree(self) -> Tree:
        """Return the tree of the whole composition."""
        sketch = self._sketch
        root = Tree(Text(shown(self._title), "bold"))
        sources = [place for place in sketch.places if not sketch.writers(place)]
        for place in sorted(sources, key=lambda place: all(map(redelivers, sketch.readers(place)))):
            self._list(root, place, ())
        for part in sketch.parts:  # those that only write
            if part.name not in self._drawn and not any(part in sketch.readers(place) for place in sketch.places):
                self._part(root, part, ())
        for place in sketch.places:  # loops that nothing leads to
            if place not in self._drawn:
                self._list(root, place, ())
        if sketch.undeclared:
            names = ", ".join(map(shown, sketch.undeclared))
            root.add(Text(f"{names}: lists unknown: declare them under programs in composition.yaml", "dim"))
        branch = root.add(Text("of programs", "dim")) if self._queues else root
        for words, is_urgent in self._queues.items():
            branch.add(Text(words, "bold red" if is_urgent else ""))
        for remark in self._remarks:
            root.add(Text(shown(remark), "red"))
        return root

    def _list(self, above: Tree, place: Place, way: "Sequence[Place | str]", server: str = "") -> None:
        text = self._name(place, "" if place.server == server or not self._many else place.server)
        if place in self._drawn:
            above.add(_again(text, place in way))
            return
        self._drawn.add(place)
        branch = above.add(text)
        for part in self._sketch.readers(place):
            self._part(branch, part, (*way, place))

    def _part(self, above: Tree, part: Part, way: "Sequence[Place | str]") -> None:
        named, *doing = self._sketch.label(part)
        text = Text.assemble("─▶ " if way else "", (shown(named), "bold cyan"), *(f"  {words}" for words in doing))
        if part.name in self._drawn:
            above.add(_again(text, part.name in way))
            return
        self._drawn.add(part.name)
        branch = above.add(text)
        written = self._sketch.written(part)
        if redelivers(part):
            if written:
                branch.add(Text(f"gives back to {', '.join(shown(place.key) for place in written)}", "dim"))
            return
        for place in written:
            self._list(branch, place, (*way, part.name), part.server)

    def _name(self, place: Place, server: str) -> Text:
        sketch, text = self._sketch, Text(shown(place.key))
        notes = [f"on {server}"] if server else []
        if sketch.is_stream(place):
            notes.append("stream")
        if sketch.is_dead(place) and not sketch.readers(place):
            notes.append("dead letters")
        if sketch.from_others(place):
            notes.append("from others")
        if sketch.to_others(place):
            notes.append("to others")
        if notes:
            text.append(f"  {', '.join(map(shown, notes))}", "dim")
        figures = sketch.figures(place)
        if figures.words:
            text.append(f"  {figures.words}", "bold red" if figures.piles_up else "green")
        if figures.piles_up:
            text.append("  PILES UP", "bold red")
        return text


def _again(text: Text, loop: bool) -> Text:
    return Text.assemble(
        Text(text.plain, "dim"), ("  ↺ goes round" if loop else "  ↑ see above", "yellow" if loop else "dim")
    )
