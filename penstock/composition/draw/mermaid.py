"""A Mermaid flowchart of a composition, for GitHub, GitLab and wikis."""

from collections.abc import Iterator

from penstock.composition.draw.sketch import OTHERS, Sketch, redelivers

STYLES = (
    "classDef service fill:#dbe9f6,stroke:#2b5c8a,color:#111",
    "classDef pile fill:#f8d0c8,stroke:#b02a1b,color:#111",
)


def mermaid(sketch: Sketch) -> str:
    """Return the flowchart as text."""
    return "\n".join(_lines(sketch)) + "\n"


def _lines(sketch: Sketch) -> Iterator[str]:
    boxes = {part.name: f"part{number}" for number, part in enumerate(sketch.parts)}
    lists = {place: f"list{number}" for number, place in enumerate(sketch.places)}
    yield "flowchart LR"
    for number, server in enumerate(sketch.servers):
        yield f'  subgraph server{number}["{_escaped(server)}"]'
        for part in sketch.parts:
            if part.server == server:
                yield f'    {boxes[part.name]}["{_joined(sketch.label(part))}"]:::service'
        for place, name in lists.items():
            if place.server == server:
                figures = sketch.figures(place)
                begin, end = ("[(", ")]") if sketch.is_stream(place) else ("([", "])")
                pile = ":::pile" if figures.piles_up else ""
                yield f'    {name}{begin}"{_joined([place.key, figures.words])}"{end}{pile}'
        yield "  end"
    for place, name in lists.items():
        for part in sketch.writers(place):
            yield f"  {boxes[part.name]} {'-.->' if redelivers(part) else '-->'} {name}"
        yield from (f"  {name} --> {boxes[part.name]}" for part in sketch.readers(place))
        if sketch.from_others(place):
            yield f"  from{{{{{OTHERS}}}}} --> {name}"
        if sketch.to_others(place):
            yield f"  {name} --> to{{{{{OTHERS}}}}}"
    yield from (f"  {style}" for style in STYLES)


def _joined(lines: list[str]) -> str:
    return "<br/>".join(_escaped(line) for line in lines if line)


def _escaped(text: str) -> str:
    """Replace characters that are special in Mermaid or HTML by their code points."""
    return "".join(letter if letter.isalnum() or letter in " :./_-(),+*@~" else f"#{ord(letter)};" for letter in text)
