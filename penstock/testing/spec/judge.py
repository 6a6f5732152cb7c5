"""The comparison of a list with what was expected, with differences worded for people."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.testing.spec.declared import Expectation, Messages
from penstock.testing.spec.schema import json_path

Load = Callable[[Messages], list[bytes]]
MAX_SHOWN: Final = 5
"""Messages that a difference shows; the rest is counted."""
MAX_CHARACTERS: Final = 160
"""Characters of a message that are shown."""


def differences(expected: Expectation, got: list[bytes], load: Load) -> list[str]:
    """Return lines, an indented one explaining the line before; ``got`` is oldest first."""
    lines = list[str]()
    if expected.equal is not None:
        lines += _equal(load(expected.equal), got)
    if expected.any_order is not None:
        wanted = load(expected.any_order)
        lines += _compared("in any order", wanted, got, Counter(wanted) - Counter(got), Counter(got) - Counter(wanted))
    if expected.at_least_once is not None:
        wanted = load(expected.at_least_once)
        foreign = Counter(each for each in got if each not in set(wanted))
        lines += _compared("each at least once", wanted, got, Counter(set(wanted) - set(got)), foreign)
    if expected.contains is not None:
        wanted = load(expected.contains)
        lines += _compared("among others", wanted, got, Counter(wanted) - Counter(got), Counter())
    if expected.matches is not None:
        lines += _each(expected.matches, got, _matches)
    if expected.json_ is not None:
        lines += _each(expected.json_, got, _has)
    if expected.count is not None and len(got) != expected.count:
        lines += [f"expected {messages(expected.count)}, got {len(got):,}", *_listed("got", got)]
    if expected.at_least is not None and len(got) < expected.at_least:
        lines += [f"expected at least {messages(expected.at_least)}, got {len(got):,}", *_listed("got", got)]
    return lines


def messages(count: int) -> str:
    return {0: "no message", 1: "1 message"}.get(count, f"{count:,} messages")


def shown(message: bytes) -> str:
    """Return a message in quotes, safe for a terminal, with the middle of a long one left out."""
    text = json.dumps(message.decode(errors="backslashreplace"), ensure_ascii=False)
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[:half]} … {text[-half:]} ({len(message):,} bytes)"


def _equal(wanted: list[bytes], got: list[bytes]) -> list[str]:
    missing, extra = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
    lines = _compared("in this order", wanted, got, missing, extra)
    place = next((place for place, pair in enumerate(zip(wanted, got, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return lines
    first = lines or [f"expected {messages(len(wanted))}, in this order; they came in another"]
    return [
        *first,
        f"  first difference at message {place + 1}",
        f"    expected {shown(wanted[place])}",
        f"    got      {shown(got[place])}",
    ]


def _compared(
    how: str, wanted: list[bytes], got: list[bytes], missing: Counter[bytes], extra: Counter[bytes]
) -> list[str]:
    """Return lines about ``missing`` and ``extra`` messages, none if there are none."""
    if not missing and not extra:
        return []
    head = f"expected {messages(len(wanted))}, {how}; got {len(got):,}"
    known = set(wanted)
    doubled = [each for each in extra.elements() if each in known]
    foreign = [each for each in extra.elements() if each not in known]
    return [
        head,
        *_listed("missing", list(missing.elements())),
        *_listed("too many", doubled),
        *_listed("not expected", foreign),
    ]


def _listed(title: str, found: list[bytes]) -> Iterator[str]:
    if found:
        yield f"  {title}: {len(found):,}"
        yield from (f"    {shown(each)}" for each in found[:MAX_SHOWN])
        if len(found) > MAX_SHOWN:
            yield f"    … and {len(found) - MAX_SHOWN:,} more"


def _each(wanted: Any, got: list[bytes], fault: Callable[[Any, bytes], str | None]) -> Iterator[str]:
    """Compare ``wanted`` with every message, at least one, or a list of it with one message each."""
    if isinstance(wanted, list) and len(wanted) != len(got):
        yield f"expected {messages(len(wanted))}, got {len(got):,}"
        yield from _listed("got", got)
        return
    if not got and not isinstance(wanted, list):
        yield "expected 1 message at least, got none"
        return
    wants = wanted if isinstance(wanted, list) else [wanted] * len(got)
    faults = [
        (place, each, why)
        for place, (want, each) in enumerate(zip(wants, got, strict=True), start=1)
        if (why := fault(want, each))
    ]
    if faults:
        yield f"{len(faults):,} of {messages(len(got))} not as expected"
        for place, each, why in faults[:MAX_SHOWN]:
            yield f"  message {place}: {why}"
            yield f"    got {shown(each)}"
        if len(faults) > MAX_SHOWN:
            yield f"  … and {len(faults) - MAX_SHOWN:,} more"


def _matches(pattern: str, message: bytes) -> str | None:
    text = message.decode(errors="surrogateescape")
    return None if re.search(pattern, text) else f"expected {_as_json(pattern)} to be found in it"


def _has(wanted: dict[str, Any], message: bytes) -> str | None:
    try:
        document = json.loads(message)
    except ValueError as error:
        return f"expected JSON: {error}"
    for path, value in wanted.items():
        found = [match.value for match in json_path(path).find(document)]
        if not any(_same(each, value) for each in found):
            instead = ", ".join(map(_as_json, found[:MAX_SHOWN])) or "nothing"
            return f"expected {path} to be {_as_json(value)}, got {instead}"
    return None


def _same(one: Any, other: Any) -> bool:
    """Compare as in JSON: 1 equals 1.0, but not true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
