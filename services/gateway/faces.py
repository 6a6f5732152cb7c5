"""What a browser's client takes from the rows of a bus: ``python -m services.gateway.faces`` writes it anew.

In ``bus.js`` it is the part between two lines; in ``bus.d.ts`` the same, and all around it is written by hand.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import Final

from penstock.bus.federation.frames import LISTENING
from penstock.bus.message import PEEKED
from penstock.bus.queue import QueueMethods
from penstock.core.objects import KINDS, Kind, Row, rows_of
from services.gateway.creation import CLASSES

STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = "queue", "channel"
"""Those that a browser has."""
PART: Final = re.compile(r"(?<=// Made from the rows\.\n).*?(?=// The rest is written\.\n)", re.DOTALL)
SCRIPT: Final[Mapping[Kind, str]] = {PEEKED: "asMessages(%s)"}
"""What a result is made of that is not used as it comes."""
DECLARED: Final[Mapping[Kind, str]] = {
    KINDS[type(None)]: "void",
    KINDS[bool]: "boolean",
    KINDS[int]: "number",
    KINDS[int | None]: "number | null",
    KINDS[str | None]: "string | null",
    PEEKED: "Peeked[]",
}
"""What each kind is in TypeScript."""


def script(text: str) -> str:
    """Return ``bus.js`` with the part that is made from the rows."""
    names = {type_: [*LISTENING, *CLASSES[type_].ROWS, "handled"] for type_ in TYPES}
    again = {type_: [wire for wire, row in CLASSES[type_].ROWS.items() if row.facts.again] for type_ in TYPES}
    since = {wire: row.facts.since for wire, row in CLASSES["queue"].ROWS.items() if row.facts.since > 1}
    lines = [
        "const METHODS = {",
        *(f"  {type_}: {_array(found)}," for type_, found in names.items()),
        "};",
        "const AGAIN = {",
        *(f"  {type_}: new Set({_array(found)})," for type_, found in again.items()),
        "};",
        f"const SINCE = {dumps(since)};",
        "",
        "class QueueMethods extends Remote {",
        *(f"  {line}" if line else "" for row in _plain() for line in _method(row)),
        "}",
        "",
    ]
    return PART.sub(lambda _: "\n".join(lines), text)


def declarations(text: str) -> str:
    """Return ``bus.d.ts`` with the part that is made from the rows."""
    lines = ["interface QueueMethods {"]
    for row in _plain():
        given = ", ".join(f"{name}?: {DECLARED[kind]}" for name, kind in row.takes.items())
        lines += [f"  /** {_said(row)} */", f"  {row.facts.wire}({given}): Promise<{DECLARED[row.gives]}>;"]
    return PART.sub(lambda _: "\n".join([*lines, "}", ""]), text)


def _plain() -> list[Row]:
    return [row for row in rows_of(QueueMethods).values() if row.gives in DECLARED]


def _method(row: Row) -> Iterator[str]:
    parameters = row.signature.parameters.values()
    call = f"this.call({', '.join([repr(row.facts.wire), *(each.name for each in parameters)])})"
    given = ", ".join(f"{each.name} = {each.default}" for each in parameters)
    made = SCRIPT.get(row.gives)
    yield f"/** {_said(row)} */"
    yield f"async {row.facts.wire}({given}) {{ return {made % f'await {call}' if made else call}; }}"


def _said(row: Row) -> str:
    text = inspect.getdoc(getattr(QueueMethods, row.name)) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("``", "`").replace("None", "null")


def _array(words: list[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


FILES: Final = {"bus.js": script, "bus.d.ts": declarations}


if __name__ == "__main__":
    for name, made in FILES.items():
        (STATIC / name).write_text(made((STATIC / name).read_text()))
