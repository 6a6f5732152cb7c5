"""What a message may repeat of an operator's words: enough to be recognised, and never a password."""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

LONGEST: Final = 60
"""Characters of a value that a message repeats."""


def shown(value: object) -> str:
    """``value`` as a message quotes it. A text that may hold a password, and whatever is long, is described only."""
    if isinstance(value, str):
        secret = len(value) > LONGEST or re.search(r"@|://|passw", value, re.IGNORECASE)
        return f"a text of {len(value)} characters" if secret else quoted(value)
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if value.bit_length() < 128 else f"a number of {value.bit_length()} bits"
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return repr(value) if isinstance(value, float) else f"a {type(value).__name__}"


def quoted(text: str) -> str:
    """``text`` in quotes; unlike ``repr`` in the same quotes always, and printable wherever UTF-8 is."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def plain(name: str) -> str:
    """The name of a property or a variable: as it is, or as ``shown`` where it is no such name at all."""
    return name if re.fullmatch(rf"[\w.$-]{{1,{LONGEST}}}", name) else shown(name)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that was probably meant; ``pop_timeout`` and ``POPTIMEOUT`` are near ``popTimeout``."""
    by_letters = {_letters(each): each for each in known}
    found = get_close_matches(_letters(name[:LONGEST]), by_letters, n=1)
    return by_letters[found[0]] if found else None


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
