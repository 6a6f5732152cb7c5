"""Generated calls of every Lua script: its keys with contents, and its arguments, by its header and ``CASES``.

A header names keys with their types, so most of a call needs no case. ``ARGUMENTS`` has values of arguments by their
names; a script whose arguments depend on its keys has a function in ``CASES`` that returns both.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any, Final

from redis import Redis

from penstock.core.script import PARTS, Script
from tests.support.lua_files import SCRIPTS, declared_for

Content = Any
"""What a key holds: a list, a dict (hash), ``Zset``, ``Stream``, bytes (string); None: the key is missing."""
MANY: Final = 3
HUGE: Final = 300_000_000
"""Redis 7.2 writes this number of Lua as 3e+8."""


class Zset(dict[Any, float]):
    """Members with their scores."""


class Stream(list[tuple[str, dict[Any, Any]]]):
    """Entries, of which a group ``g`` has given the first half to consumer ``me``."""

    has_group = True


class Same(str):
    """The name of another key of the call, to be given here, too."""


GARBAGE: Final = (
    *(
        "",
        "x",
        "-0",
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "1.5",
        " 1",
        "0x10",
        "1e3",
        "-5",
        "00",
        "\0",
        "9" * 30,
        "[",
        "{}",
    ),
    *(
        "9223372036854775807",
        "-9223372036854775808",
        "gone:x",
        "1-1",
        '{"a": 1e999}',
        "null",
        "[1]",
        "3e+8",
        "a b c d e f g",
    ),
)
"""What somebody may write into a record, a counter or a list."""
SCALARS: Final[tuple[Any, ...]] = (
    *(
        -0.0,
        0,
        0.0,
        1e-7,
        5e-324,
        1e22,
        float("nan"),
        float("inf"),
        -1,
        10**30,
        2.5,
        3e8,
        1e11,
        99_999_999_999.5,
        True,
        None,
    ),
    *(
        "",
        "k:answer",
        "a",
        "\ud800",
        "\0",
        "a\nb\\c",
        "1",
        "2026-01-31T12:00:00Z",
        "9999-12-31T23:59:59+00:00",
        [],
        {},
        [[]],
    ),
    "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
)
META: Final = ("id", "delay", "deliverAt", "attempts", "replyTo", "deadline", "budget", "traceparent", "x")
"""What services read of a message."""
PAIRS: Final = list(product(META, SCALARS))
FIELDS: Final[dict[str, Sequence[str]]] = {
    **dict.fromkeys(
        ("host", "owner", "source", "last_consumer", "holder"),
        (
            "me",
            "other",
        ),
    ),
    **dict.fromkeys(
        ("queue",),
        (
            "k:out",
            "k:queue",
        ),
    ),
    **dict.fromkeys(
        ("xid", "service", "message", "error", "reason", "words"),
        (
            "a",
            "b\nc",
            "\\",
        ),
    ),
    **dict.fromkeys(("token", "pid"), ("1",)),
    **dict.fromkeys(
        ("timestamp", "delivered", "deadline", "until", "taken"),
        (
            "PAST",
            "NOW",
            "FUTURE.5",
        ),
    ),
    **dict.fromkeys(
        ("ttl", "messageTimeout", "messageExpire"),
        (
            "60",
            "300000000",
        ),
    ),
    "details": ['{"budget": 1.5}'],
    "attempt": ["0", "1", "2"],
    "state": ["dead"],
    "staged": ["k:parts:0\nk:parts:1", "x"],
    "moving": ["carried 1 there", "1"],
    "done": ["1", "0"],
    "looks": ["1:5.5 3:7"],
}
"""Values of fields that are no numbers, or none of any size."""
ARGUMENTS: Final[dict[str, Sequence[Any]]] = {
    **dict.fromkeys(("token", "pid", "number", "attempt", "ticket"), ("1",)),
    **dict.fromkeys(
        ("batch", "most", "capacity", "window", "outs", "burst", "unseen"),
        (
            1,
            3,
            500,
        ),
    ),
    **dict.fromkeys(
        ("bytes", "largest", "room"),
        (
            1,
            100,
            1_000_000,
        ),
    ),
    **dict.fromkeys(
        ("skip", "offset", "held", "older", "index", "step"),
        (
            0,
            1,
        ),
    ),
    **dict.fromkeys(
        ("history", "limit"),
        (
            0,
            1,
            2000,
        ),
    ),
    **dict.fromkeys(
        ("expire", "ttl", "life", "kept", "seconds", "keep", "span", "linger", "timespan", "timeout"),
        (
            1,
            60,
            HUGE,
        ),
    ),
    **dict.fromkeys(
        ("renew", "grace", "every", "nap", "forget", "silent", "idle", "wait", "patience", "away", "least"),
        (
            0,
            1,
            60,
        ),
    ),
    **dict.fromkeys(
        ("who", "owner", "consumer", "service", "host", "source", "holder", "taker", "worker"),
        (
            "me",
            "me",
            "other",
        ),
    ),
    **dict.fromkeys(("channel", "news", "control", "name", "mark", "origin", "version", "direct", "due"), ("word",)),
    **dict.fromkeys(
        ("id", "survived"),
        (
            "1",
            "2",
        ),
    ),
    **dict.fromkeys(
        (
            "whole",
            "takes",
            "joins",
            "waited",
            "inhand",
            "registered",
            "replace",
            "payloads",
            "is_limited",
            "parks",
            "dead_only",
            "spare",
            "accept",
            "forgotten",
        ),
        (
            0,
            1,
        ),
    ),
    **dict.fromkeys(
        ("lists", "trouble", "refused", "progress", "reason", "former", "process"),
        (
            "",
            "word",
        ),
    ),
    **dict.fromkeys(("queue",), ("q",)),
    **dict.fromkeys(
        ("round", "from", "totals"),
        (
            0,
            1,
            2,
        ),
    ),
    "expires": [0],
    "group": ["g"],
    "interval": [0, 1, 1000],
    "lasting": ["[]", '["k:answer"]'],
    "prefix": ["", "m"],
    "share": ["", "0.1", "1"],
    "order": ["SIGHUP 1"],
}
TOGETHER: Final = (
    ("holds", "missing", "taken", "settled", "delivered", "dead", "dropped", "broken"),
    ("events", "events_written", "events_marks"),
    ("owners", "holdings"),
    ("under_way", "ended_well", "ended_badly", "failed", "retry"),
)
"""Optional keys of which a call gives all or none."""
STATE: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1], found[#found + 2] = key, redis.call('DUMP', key)
  found[#found + 1] = redis.call('PEXPIRETIME', key)
end
return found
"""
LISTS_OF_PAIRS: Final = ("messages", "toack", "held_messages", "held_toack", "held", "strays")
"""Lists of a bus: id and body in turn."""
Case = Callable[["Draw"], dict[str, Any]]
CASES: Final[dict[str, Case]] = {}
"""By ``folder/verb``; the folder is that of the service or the package."""


def case(*names: str) -> Callable[[Case], Case]:
    def noted(function: Case) -> Case:
        CASES.update(dict.fromkeys(names, function))
        return function

    return noted


def name_of(file: Path) -> str:
    return f"{file.parent.parent.name}/{file.stem}"


class Draw(Random):
    """Draws the parts of calls at random, the same for the same seed."""

    def __init__(self, name: str, pairs: "Iterator[tuple[str, Any]]", now: int) -> None:
        """``pairs`` are the next fields of ``meta``, ``now`` is the server's time."""
        super().__init__(name)
        self.now, self._pairs = now, pairs

    def scalar(self) -> Any:
        return self.choice(
            [
                *SCALARS,
                float(self.now + self.choice([-5, 5])),
                -self.random(),
                self.random() * 10 ** self.randint(-9, 30),
            ]
        )

    def text(self) -> str:
        return self.choice(["", "a", "a\nb\\c", "\0", "é", "k:out", "x" * 300, "1", "-0.0"])

    def message(self, *, by_pairs: bool = False) -> bytes:
        """Return what an author may push: any bytes, or JSON with any ``meta``."""
        if self.random() < 0.3:
            return self.choice(
                [
                    b"",
                    b"x",
                    b"\0",
                    b"\xff\xfe",
                    b"{",
                    b"[" * 2000,
                    b'{"meta":',
                    b'{"meta":1e999}',
                    b"9" * 400,
                    b"x" * 9000,
                ]
            )
        meta = {name: self.scalar() for name in META if self.random() < 0.2}
        if by_pairs and self.random() < 0.8:
            return json.dumps({"meta": dict([next(self._pairs)])}).encode()
        return json.dumps(self.choice([{"meta": meta}, {"meta": meta}, meta]), ensure_ascii=True).encode()

    def entry(self) -> bytes:
        """Return what a worker may push to ``done``, or as an answer."""
        if self.random() < 0.3:
            return self.message()
        fields = {name: self.scalar() for name in ("attempt", "work", "error", "retry", "touch") if self.random() < 0.4}
        name = {self.choice(["id", "xid"]): self.choice([1, "a", self.scalar()])}
        return json.dumps(self.choice([fields | name, {"meta": fields | {"id": "a"}}])).encode()

    def bucket(self) -> bytes | None:
        return self.choice([None, str(int((self.now + self.choice([-5, 5])) * 1e6)).encode()])

    def waiting(self) -> Zset | None:
        """Return what mlimit delays."""
        found = [
            (b"%016d" % place + self.message(), (self.now + self.choice([-5, 5])) * 1e6)
            for place in range(self.randint(0, MANY))
        ]
        return Zset(found) or None

    def messages(self, most: int = MANY) -> list[bytes]:
        """Return messages; if they may be many, their ``meta`` takes all values in turn."""
        return [self.message(by_pairs=most > MANY) for _ in range(self.randint(0, most))]

    def pairs(self) -> list[Any]:
        return [word for id in range(1, self.randint(1, MANY) + 1) for word in (id, self.message())]

    def moment(self, text: str) -> str:
        for word, seconds in (("PAST", -100), ("NOW", 0), ("FUTURE", 100)):
            text = text.replace(word, str(self.now + seconds))
        return text

    def value(self, field: str) -> str:
        return self.moment(self.choice(FIELDS.get(field.rsplit(":")[0], ["0", "1", "2", "5"])))

    def record(self, *fields: str) -> dict[str, Any]:
        return {field: self.value(field) for field in fields}

    def tracked(self) -> dict[str, Any] | None:
        """Return a record of a message in flight; None if somebody has deleted it."""
        optional = (
            "error",
            "final",
            "taken",
            "number",
            "until",
            "replyTo",
            "delivered",
            "deadline",
            "details",
            "attempts",
        )
        found = self.record("xid", "timestamp", "attempt", "queue", "service", "type", "deadline")
        found |= {field: self.value(field) for field in optional if self.random() < 0.4}
        return (
            found | {"message": self.message()}
            if self.random() < 0.9
            else self.choice([None, {"state": "dead", "xid": "a"}])
        )

    def chain(self, *ids: int) -> dict[str, Any] | None:
        """Return the record of an xid with the messages ``ids``, the oldest first."""
        found: dict[str, Any] = {"id": ids[0], "type": "meta"}
        for before, after in pairwise(ids):
            found |= {f"next:{before}": after, f"before:{after}": before, "last": after}
        return found if self.random() < 0.9 else self.choice([None, {"id": ids[0], "dead": 1, "type": "meta"}])

    def scores(self, *members: Any) -> Zset:
        return Zset({member: float(self.choice([self.now - 50, self.now - 1, self.now + 50])) for member in members})

    def content(self, name: str, kind: str, fields: list[str]) -> Content:
        """Return what a key with that name and type may hold, or None."""
        if self.random() < 0.15:
            return None
        match kind:
            case "list":
                return self.pairs() if name in LISTS_OF_PAIRS else self.messages()
            case "hash":
                return {field: self.value(field) for field in fields if self.random() < 0.6} or None
            case "zset":
                return self.scores(*(str(id) for id in range(1, self.randint(2, 5))), *["me"] * self.randint(0, 1))
            case "stream":
                return Stream([(f"{place}-1", {"job": "j", "prd": "p"}) for place in range(1, self.randint(2, 5))])
        return self.choice([b"1", b"5", b"me"]) if name in ("lease", "leases", "batch") else self.choice([b"1", b"7"])


class Call:
    """One call of a script on keys with contents."""

    def __init__(self, file: Path, draw: Draw) -> None:
        self.script, declared, fields = _known(file)
        self.draw, self.contents = draw, dict[str | bytes, Content]()
        self.has_written = False
        found = CASES.get(name_of(file))
        given = found(draw) if found else {}
        self.named: dict[str, Any] = {}
        needed = {name for kind, name, _ in declared if kind == "KEYS" and name[-1] not in "?."}
        self._absent = {
            name
            for names in TOGETHER
            if draw.random() < 0.2
            and not given.get("whole")
            and not ("holds" in names and needed & {"settled", "delivered"})
            for name in names
        }
        for kind, name, words in declared:
            bare, several = name.rstrip("?."), name.endswith("...")
            if kind == "KEYS":
                self._give_key(bare, several, words.split()[0], name.endswith("?"), given, fields)
            elif several:
                assert bare in given, f"{name_of(file)}: a case in tests/support/scripted.py must give {name}"
                self.named[bare] = [str(word) if isinstance(word, float) else word for word in given[bare]]
            else:
                assert bare in given or bare in ARGUMENTS, (
                    f"{name_of(file)}: a case in tests/support/scripted.py must give {bare}"
                )
                self.named[bare] = given[bare] if bare in given else draw.choice(ARGUMENTS[bare])
        self.commands: list[tuple[Any, ...]] = given.get("commands", [])

    def _give_key(
        self, bare: str, several: bool, kind: str, optional: bool, given: dict[str, Any], fields: list[str]
    ) -> None:
        draw = self.draw
        if not several:
            lonely = not any(bare in names for names in TOGETHER) and bare not in given and draw.random() < 0.2
            if optional and (given.get(bare, ...) is None or lonely or (bare not in given and bare in self._absent)):
                return
            content = given[bare] if bare in given else draw.content(bare, kind, fields)
            self.named[bare] = content if isinstance(content, Same) else f"k:{bare}"
            if not isinstance(content, Same):
                self.contents[f"k:{bare}"] = content
            return
        found = given.get(bare)
        if found is None:
            found = [draw.content(bare, kind, fields) for _ in range(draw.randint(1, MANY))]
        names: list[str | bytes] = []
        for place, content in enumerate(found):
            key: str | bytes = content if isinstance(content, Same) else f"k:{bare}:{place}"
            if isinstance(content, tuple):
                key, content = content
            if not isinstance(content, Same):
                self.contents[key] = content
            names.append(key)
        self.named[bare] = names

    def prepare(self, redis: Redis) -> None:
        with redis.pipeline(transaction=False) as wire:
            wire.flushall()
            for key, content in self.contents.items():
                write(wire, key, content)
            for command in self.commands:
                wire.execute_command(*command)
            wire.execute()

    def run(self, redis: Redis) -> Any:
        return redis.execute_command(*self.script.by_source(**self.named))

    def tamper(self) -> str:
        """Change a key as somebody might by hand; return what was changed."""
        draw = self.draw
        key = draw.choice([*self.contents] or [""])
        if not key:
            return "nothing"
        content, garbage = self.contents[key], draw.choice(GARBAGE)
        if not content or draw.random() < 0.25:
            self.contents[key] = draw.choice(
                [b"a string", ["a list"], {"a": "hash"}, Zset(member=1.0), Stream([("1-1", {"a": "b"})])]
            )
        elif isinstance(content, Zset):
            member = draw.choice(list(content))
            if draw.random() < 0.5:
                content[member] = draw.choice([float("inf"), float("-inf"), 1e300, -1.0, 0.0])
            else:
                content[garbage] = content.pop(member)
        elif isinstance(content, Stream):
            place = draw.randrange(len(content))
            content[place] = content[place][0], {garbage: garbage}
            content.has_group = draw.random() < 0.6
        elif isinstance(content, dict):
            field = draw.choice(list(content))
            content[field] = garbage
            if draw.random() < 0.3:
                del content[field]
        elif isinstance(content, list):
            content[draw.randrange(len(content))] = garbage
        else:
            self.contents[key] = garbage.encode()
        return f"{key!r}: {self.contents[key]!r}"


def write(wire: Any, key: str | bytes, content: Content) -> None:
    if content is None or (isinstance(content, list | dict) and not content):
        return
    if isinstance(content, Zset):
        wire.execute_command("ZADD", key, *(word for member, score in content.items() for word in (score, member)))
    elif isinstance(content, Stream):
        for id, entry in content:
            wire.execute_command("XADD", key, id, *(word for pair in entry.items() for word in pair))
        if not content.has_group:
            return
        wire.execute_command("XGROUP", "CREATE", key, "g", "0")
        wire.execute_command("XREADGROUP", "GROUP", "g", "me", "COUNT", len(content) // 2 + 1, "STREAMS", key, ">")
    elif isinstance(content, dict):
        wire.execute_command("HSET", key, *(word for pair in content.items() for word in pair))
    elif isinstance(content, list):
        wire.execute_command("RPUSH", key, *content)
    else:
        wire.execute_command("SET", key, content)


def state_of(redis: Redis) -> dict[bytes, tuple[Any, int]]:
    """Return of each key what DUMP says, and when it expires."""
    found: list[Any] = redis.eval(STATE, 0)
    return dict(zip(found[::3], zip(found[1::3], found[2::3], strict=True), strict=True))


@cache
def _known(file: Path) -> tuple[Script, list[tuple[str, str, str]], list[str]]:
    return Script.read(file), declared_for(file), fields_in(file)


def fields_in(file: Path) -> list[str]:
    """Return words of a script that may be fields of hashes, and names of its lists, by which counters are kept."""
    parts = [PARTS / f"{name}.lua" for name in re.findall(r"-- WITH (\w+)", file.read_text())]
    code = "\n".join(re.sub(r"--.*", "", path.read_text()) for path in (file, *parts))
    words = {"count", *re.findall(r"'([a-z][a-zA-Z_]*)'", code)}
    keys = [f"k:{name.rstrip('?.')}" for kind, name, _ in declared_for(file) if kind == "KEYS"]
    return [*sorted(words), *keys, *(f"{key}:0" for key in keys), "me", "1", "2"]


def failing(name: str, before_line: str, words: str, unless: str = "false") -> Script:
    """Return script ``name`` (``mdispatch/dispatch``), failing before it writes if ``words`` of Lua have ``bad``."""
    (file,) = (each for each in SCRIPTS if name_of(each) == name)
    before, line, after = file.read_text().partition(before_line)
    assert line
    fails = (
        f"if string.find(table.concat({words}, ' '), 'bad', 1, true) and not ({unless}) then error('unforeseen') end"
    )
    return Script(f"failing {file.name}", f"{before}{fails}\n{line}{after}")
