"""Load and call Lua scripts: one atomic operation a file, whose header declares keys and arguments by name.

``-- KEYS name type what`` declares a key; ``name?`` is optional (``nil`` in the script), and ``name...``, only last,
takes several (some thousand at most, unless it is the only one). ``-- ARGV name what`` declares an argument; the last
may take several, too. Each name is a local variable of the script, so no script counts positions, and a call that does
not match the header never reaches the server.

``-- WITH part: names`` inserts ``lua/parts/part.lua`` before the body, and its declarations before the script's own;
``names`` are those of the part's ``-- GIVES`` that the script uses. ``-- USES`` lists what a part needs of the script
or of the parts before it.

``-- FLAGS allow-oom`` lets a script write when the server is full; use it only if memory grows by at most a few bytes.
A full Redis refuses the first write of a script if it may use memory, but no later write. So the loader puts a write
that changes nothing before the body. ``#!lua flags=allow-oom`` does the same since Redis 7.0, but is a syntax error in
6.2; this works on all versions, whatever server a failover leads to.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from zipimport import zipimporter

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ClusterCrossSlotError, NoScriptError, ResponseError

from penstock.base.encoding import decoded
from penstock.base.errors import Fenced, Gone, Moving, Occupied, Unsuitable, WrongCall, WrongType
from penstock.core.raw_connection import LARGE, Command, Packed, Prefix, Word, pack, pack_small

LUA: Final = Path(__file__).parent / "lua"
PARTS: Final = LUA / "parts"
PART: Final = re.compile(r"^-- WITH (\w+)(?:: .+)?$", re.MULTILINE)
FLAGS: Final = re.compile(r"^-- FLAGS (.*)$", re.MULTILINE)
FIRST_WRITE: Final = (
    "if redis.call('EXISTS',KEYS[1])==1 then redis.call('RENAMENX',KEYS[1],KEYS[1]) "
    "else redis.call('UNLINK',KEYS[1]) end;"
)
"""First write of a script flagged ``allow-oom``: changes nothing, sends no notification, is not replicated."""
TAG: Final = re.compile(r"\{[^}]+\}")
"""The hash tag of a name: of the others, a Redis Cluster looks only at this part."""
DECLARATION: Final = re.compile(r"^-- (KEYS|ARGV) (\w+)(\?|\.\.\.)?(?: |$)")


def in_one_slot(names: Sequence[str]) -> str:
    """Return what a Redis Cluster expects of ``names`` that lie in several slots."""
    tag = TAG.search(names[0])
    given = tag[0] if tag else f"{{{names[0]}}}"
    return f"on a Redis Cluster all names must lie in one slot: give them a common hash tag, as in {given}"


def translate_error(error: Exception, names: Sequence[str] = ("orders",)) -> Exception:
    """Return an error that one of our scripts returned as our exception; any other error unchanged.

    ``names`` are those of the call, of which a Redis Cluster may say that they lie in several slots.
    """
    if isinstance(error, ClusterCrossSlotError):
        return Unsuitable(f"{in_one_slot(names)}: {', '.join(names)}")
    word, _, text = str(error).partition(" ")
    kinds: dict[str, type[Exception]] = {
        "WRONGTYPE": WrongType,
        "FENCED": Fenced,
        "GONE": Gone,
        "OCCUPIED": Occupied,
        "MOVING": Moving,
    }
    return kinds[word](text) if word in kinds else error


class _Fitting(NamedTuple):
    """What calls with certain names and types have in common."""

    source: str
    digest: str
    given: tuple[str, ...]
    """The keys."""
    words: Callable[[dict[str, Any]], tuple[Word | Packed, ...]] | None
    """Returns keys and arguments in their order, without ``last``; None if another of them may be several."""
    last: str
    """The last argument if it is a list, else empty."""


class Fixed:
    """Calls of a script that differ only in the last key and the last argument: see ``Script.fixed``."""

    def __init__(self, head: Command, keys: Command, arguments: Command) -> None:
        self._head, self._keys, self._arguments = head, keys, arguments

    def pack(self, keys: Sequence[Word], words: Sequence[Word], size: int) -> bytes:
        """Return a call as RESP; ``size`` is about the length of its longest word, or more."""
        command = (*self._head, len(self._keys) + len(keys), *self._keys, *keys, *self._arguments, *words)
        return pack_small(command) if size <= LARGE else pack([command])


class Script:
    """One Lua script, called by name: ``await move(redis, source="in", subscribers=["a", "b"], batch=500)``."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        parts = [_text(PARTS / f"{part}.lua") for part in PART.findall(text)]
        lines = [line for each in (*parts, text) for line in each.splitlines()]
        declared = [found.groups() for found in map(DECLARATION.match, lines) if found]
        self._keys = [(key, mark) for kind, key, mark in declared if kind == "KEYS"]
        self._arguments = [(argument, mark) for kind, argument, mark in declared if kind == "ARGV"]
        self._first_write = self._first_write_for(FLAGS.findall(text))
        if any(mark == "..." for _, mark in self._keys[:-1] + self._arguments[:-1]):
            raise WrongCall(f"{name}: only the last key and the last argument may take several")
        self._several = {word for word, mark in self._keys + self._arguments if mark == "..."}
        self._known = {word for word, _ in self._keys + self._arguments}
        self._needed = self._known - {key for key, mark in self._keys if mark == "?"}
        first = "".join(f"{line} " for part in parts for line in _code(part))  # so that line numbers hold
        self._body = first + "\n".join(_code(text))
        self._fitting: dict[tuple[object, ...], _Fitting] = {}
        """By the names and types of a call that matches the header."""

    def _first_write_for(self, flags: list[str]) -> str:
        if not flags:
            return ""
        if flags != ["allow-oom"]:
            raise WrongCall(f"{self.name}: FLAGS {' '.join(flags)} is unknown: expected allow-oom")
        if not any(mark != "?" for _, mark in self._keys):
            raise WrongCall(f"{self.name}: FLAGS allow-oom needs a key that every call gives")
        return FIRST_WRITE

    @classmethod
    def read(cls, path: Path, *, grows: bool = False) -> "Script":
        """Load ``path``, which may be in the zip archive that we are imported from (Spark's ``--py-files``).

        With ``grows`` ignore its FLAGS: a full server refuses the script.
        """
        text = _text(path)
        return cls(path.name, FLAGS.sub("--", text) if grows else text)

    async def __call__(self, redis: "Redis", /, **named: Any) -> Any:
        """Run the script by its digest, or by its source if the server does not know it (SCRIPT FLUSH, a restart).

        Raise ``WrongType`` or ``Fenced`` if the script returns one.
        """
        try:
            return await self._run(redis, named)
        except ResponseError as error:
            raise translate_error(error, self.names(**named)) from None

    def names(self, **named: Any) -> list[str]:
        """Return the names of the keys of a call."""
        keys = _flat([named[key] for key, _ in self._keys if named.get(key) is not None])
        return [decoded(key) if isinstance(key, bytes) else str(key) for key in keys if not isinstance(key, Packed)]

    async def _run(self, redis: "Redis", named: dict[str, Any]) -> Any:
        try:
            return await redis.execute_command(*self.by_digest(**named))
        except NoScriptError:
            return await redis.execute_command(*self.by_source(**named))

    def queue(self, transaction: "Pipeline", /, **named: Any) -> None:
        """Add the script to a MULTI, by its source.

        EXEC does not stop at a command that fails with NOSCRIPT. So a digest could make a transaction partial, and a
        second run would repeat its other commands.
        """
        transaction.execute_command(*self.by_source(**named))

    def by_digest(self, **named: Any) -> Command:
        """Return the EVALSHA command; a server that does not know the script does nothing and replies NOSCRIPT."""
        _, digest, call = self._prepare(named)
        return "EVALSHA", digest, *call

    def prefix(self, **named: Any) -> Prefix:
        """Return ``by_digest`` without the last argument, which takes several, for calls that give one."""
        last, mark = self._arguments[-1]
        if mark != "...":
            raise WrongCall(f"{self.name}: its last argument {last} takes one")
        return Prefix(*cast(tuple[Word, ...], self.by_digest(**named, **{last: []})))

    def fixed(self, **named: Any) -> "Fixed":
        """Return calls with all but the last key and the last argument, which both take several."""
        (key, mark), (argument, mark_too) = self._keys[-1], self._arguments[-1]
        if (mark, mark_too) != ("...", "..."):
            raise WrongCall(f"{self.name}: its last key {key} or its last argument {argument} takes one")
        _, digest, (_, *words) = self._prepare(named | {key: [], argument: []})
        keys = len(words) - len(self._arguments) + 1
        return Fixed(("EVALSHA", digest), tuple(words[:keys]), tuple(words[keys:]))

    def by_source(self, **named: Any) -> Command:
        """Return the EVAL command, which every server can run."""
        source, _, call = self._prepare(named)
        return "EVAL", source, *call

    def _prepare(self, named: dict[str, Any]) -> tuple[str, str, list[Word | Packed]]:
        """Return the source for the given keys, its digest, and the further words of EVAL and EVALSHA."""
        shape = (*named, *map(type, named.values()))
        found = self._fitting.get(shape)
        if found is None:
            self._check(named)
            found = self._fitting[shape] = self._fit(named)
        if found.words:
            last = named[found.last] if found.last else ()
            return found.source, found.digest, [len(found.given), *found.words(named), *last]
        keys = _flat([named[key] for key in found.given])
        count = sum(key.count if isinstance(key, Packed) else 1 for key in keys)
        return found.source, found.digest, [count, *keys, *_flat([named[argument] for argument, _ in self._arguments])]

    def _fit(self, named: dict[str, Any]) -> "_Fitting":
        given = tuple(key for key, _ in self._keys if named.get(key) is not None)
        source = self._prelude(given) + self._body
        names = [*given, *(argument for argument, _ in self._arguments)]
        last = names.pop() if self._arguments and isinstance(named[names[-1]], list) else ""
        words = itemgetter(*names) if len(names) > 1 and self._several.isdisjoint(names) else None
        return _Fitting(source, sha1(source.encode(), usedforsecurity=False).hexdigest(), given, words, last)

    def _check(self, named: dict[str, Any]) -> None:
        problems = [f"{name} is missing" for name in sorted(self._needed) if named.get(name) is None]
        problems += [f"{name} is not declared in its header" for name in sorted(named.keys() - self._known)]
        listed = {name for name in named if isinstance(named[name], list | tuple | Packed)}
        problems += [f"{name} takes a list" for name in sorted(self._several & named.keys() - listed)]
        problems += [f"{name} takes one" for name in sorted(self._known & listed - self._several)]
        if problems:
            raise WrongCall(f"{self.name}: {', '.join(problems)}")

    def _prelude(self, given: tuple[str, ...]) -> str:
        """Return local variables for the header's names, on one line to preserve the server's line numbers."""
        absent = [key for key, _ in self._keys if key not in given]
        locals_ = [f"local {','.join(absent)}"] if absent else []
        for table, words in (("KEYS", given), ("ARGV", [argument for argument, _ in self._arguments])):
            for place, word in enumerate(words, start=1):
                rest = table if place == 1 else f"{{unpack({table},{place})}}"
                value = rest if word in self._several else f"{table}[{place}]"
                locals_.append(f"local {word}={value}")
        return self._first_write + ";".join(locals_) + " "


def _text(path: Path) -> str:
    loader = __spec__.loader
    if isinstance(loader, zipimporter) and path.is_relative_to(loader.archive):
        return loader.get_data(str(path.relative_to(loader.archive))).decode()
    return path.read_text()


def _code(text: str) -> list[str]:
    """Return the lines of ``text``, with comment lines empty."""
    return ["" if line.startswith("--") else line for line in map(str.strip, text.splitlines())]


def _flat(values: Iterable[Word | Packed | list[Word]]) -> list[Word | Packed]:
    flat: list[Word | Packed] = []
    for value in values:
        if isinstance(value, list | tuple):
            flat += value
        else:
            flat.append(value)
    return flat
