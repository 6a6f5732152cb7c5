"""Quote an operator's words in messages: enough to recognise them, and never a password."""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_SHOWN: Final = 60
"""Maximum number of characters of a value that a message quotes."""


def shown(value: object) -> str:
    """Return ``value`` as a message quotes it. Only describe a long text, or one that may hold a password."""
    if isinstance(value, str):
        secret = len(value) > MAX_SHOWN or re.search(r"@|://|passw", value, re.IGNORECASE)
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
    """Return ``text`` in double quotes always, unlike ``repr``, and printable in UTF-8."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def plain(name: str) -> str:
    """Return the name of a property or a variable as it is, or as ``shown`` if it cannot be such a name."""
    return name if re.fullmatch(rf"[\w.$-]{{1,{MAX_SHOWN}}}", name) else shown(name)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that was probably meant: ``popTimeout`` for ``pop_timeout``, ``in`` for ``input``."""
    by_letters, letters = {_letters(each): each for each in known}, _letters(name[:MAX_SHOWN])
    if (meant := f"listen{letters}") in by_letters:  # `port` looks more like sharePort
        return by_letters[meant]
    begins = sorted(filter(letters.startswith, by_letters), key=len, reverse=True)
    found = get_close_matches(letters, by_letters, n=1) or begins
    return by_letters[found[0]] if found else None


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
