"""An SVG image of a composition, drawn by Graphviz."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.base.errors import PenstockError
from penstock.composition.draw.sketch import OTHERS, Sketch, redelivers


def svg(sketch: Sketch) -> bytes:
    """Return the image. Raise ``PenstockError`` if Graphviz is not installed."""
    try:
        from pygraphviz import AGraph
    except ImportError as error:
        raise PenstockError("--svg needs Graphviz: pip install 'penstock[map]'; --mermaid needs nothing") from error
    font = {"fontname": "Helvetica, Arial, sans-serif", "fontsize": "11"}
    graph = AGraph(directed=True, rankdir="LR", nodesep="0.3", ranksep="0.5", encoding="UTF-8")
    graph.graph_attr.update(**font, color="#9aa5b1", style="rounded", fontcolor="#52606d")
    graph.node_attr.update(**font, shape="box", color="#52606d", margin="0.15,0.08")
    graph.edge_attr.update(color="#52606d", arrowsize="0.7")
    _add_nodes(graph, sketch)
    _add_arrows(graph, sketch)
    with _quiet():
        drawn: bytes = graph.draw(format="svg", prog="dot")
    return drawn


def _add_nodes(graph: Any, sketch: Sketch) -> None:
    for number, server in enumerate(sketch.servers):
        with_server = []
        for index, part in enumerate(sketch.parts):
            if part.server == server:
                fill = "#dbe9f6" if part.service else "#eef3e2"
                graph.add_node(f"part{index}", label=_label(sketch.label(part)), style="filled", fillcolor=fill)
                with_server.append(f"part{index}")
        for index, place in enumerate(sketch.places):
            if place.server == server:
                figures = sketch.figures(place)
                style = "rounded,dashed" if sketch.is_stream(place) else "rounded"
                colour = "#b02a1b" if figures.piles_up else "#9aa5b1"
                label = _label([place.key, *([figures.words] if figures.words else [])])
                graph.add_node(
                    f"list{index}", label=label, style=style, color=colour, fontcolor=colour_of(figures.piles_up)
                )
                with_server.append(f"list{index}")
        graph.add_subgraph(with_server, name=f"cluster{number}", label=_label([server]))


def _add_arrows(graph: Any, sketch: Sketch) -> None:
    boxes = {part.name: f"part{index}" for index, part in enumerate(sketch.parts)}
    for index, place in enumerate(sketch.places):
        for part in sketch.writers(place):
            back = redelivers(part)
            graph.add_edge(boxes[part.name], f"list{index}", style="dashed" if back else "solid", constraint=not back)
        for part in sketch.readers(place):
            graph.add_edge(f"list{index}", boxes[part.name])
        if sketch.from_others(place):
            graph.add_node("from", label=OTHERS, shape="plaintext")
            graph.add_edge("from", f"list{index}")
        if sketch.to_others(place):
            graph.add_node("to", label=OTHERS, shape="plaintext")
            graph.add_edge(f"list{index}", "to")


def colour_of(piles_up: bool) -> str:
    return "#b02a1b" if piles_up else "#1f2933"


def _label(lines: list[str]) -> str:
    """Join and escape ``lines``: backslashes, entities and text in angle brackets are special in Graphviz."""
    whole = "\\n".join(line.replace("\\", "\\\\").replace("&", "&amp;") for line in lines)
    return f" {whole}" if whole.startswith("<") else whole


@contextmanager
def _quiet() -> Iterator[None]:
    """Redirect the file descriptor of stderr to /dev/null: Graphviz writes warnings about fonts to it."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
