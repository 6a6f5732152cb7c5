"""The names of keys: those of hfxbus 2.2.0, and beside them our own."""

import json
import os
import re
import secrets
from functools import cache, lru_cache
from typing import Final

from penstock.base.errors import WrongCall
from penstock.base.keys import glob_escaped

PREFIX: Final = "hfxbus"
OURS: Final = "py-"
"""What random names of our consumers begin with."""
INLINE: Final = "v:"
"""What the fields of an entry begin with that have small values of its job. Node ignores them."""
SILENT_MS: Final = 3_600_000
"""Milliseconds after which a consumer that has nothing in hand is dead."""
CAPACITY: Final = 10_000
"""About how many completions and dead jobs a stream keeps."""
KEPT: Final = b',"kept":true}'
"""How a completion ends that was kept where it was published. Node ignores the field."""
IDS: Final = 250
"""Ids that are made at once."""
MAX_NAMES: Final = 1_000
"""Maximum number of values that an entry names; no more are set at once."""
_lone: Final = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")
"""What stands for no character and no byte."""
_forbidden: Final = re.compile(r'["\\\x00-\x1f]')
_glob: Final = re.compile(r"[*?\[\]]")


_ids: list[str] = []
"""Random ids that nobody has yet; a child process makes its own."""
os.register_at_fork(after_in_child=_ids.clear)


def new_id() -> str:
    """Return 16 random characters of A-Z a-z 0-9 _ -."""
    while True:
        if not _ids:
            text = secrets.token_urlsafe(12 * IDS)
            _ids.extend(text[first : first + 16] for first in range(0, len(text), 16))
        if (found := _ids.pop())[0] != "-":  # it would look like an option of a command
            return found


def checked_name(what: str, name: object, *, pattern: bool = False) -> str:
    """Return a name that Node's clients can read. Raise ``WrongCall``; ``pattern`` names may be in a pattern."""
    if not isinstance(name, str) or not name:
        raise WrongCall(f"{what}: expected a text that is not empty, found {name!r}")
    return _checked(what, name, pattern)


@lru_cache(4_096)
def _checked(what: str, name: str, pattern: bool) -> str:
    if _forbidden.search(name) or (pattern and _glob.search(name)):
        raise WrongCall(f'{what}: {name!r} has a character that it must not have: " \\ or a control character, * ? [ ]')
    return name


def names_in(text: bytes | str | None) -> list[str]:
    """Return the keys of values that a field ``keys`` names, without what can be none: strangers write it."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    names = [each for each in found[:MAX_NAMES] if isinstance(each, str)] if isinstance(found, list) else []
    return [each for each in names if not _lone.search(each)]


class JobKeys:
    """All keys and channels with one prefix."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self.prefix = checked_name("prefix", prefix)
        self.of_group = cache(self._of_group)

    def payload(self, job: str, key: str) -> str:
        """The value ``key`` of a job."""
        return f"{self.prefix}:job:{job}:{key}"

    def stream(self, stream: str) -> str:
        """The jobs of a stream, in order: ``prd`` the producer's id, ``job`` its id."""
        return f"{self.prefix}:str:{stream}"

    def group(self, group: str) -> str:
        """The name of a consumer group, in each of its streams."""
        return f"{self.prefix}:csr:{group}"

    def channel(self, stream: str, producer: str) -> str:
        """Where completions of a producer's jobs are published."""
        return f"{self.prefix}:chn:{stream}:{producer}"

    @property
    def channels(self) -> str:
        """The pattern of all channels of completions."""
        return f"{glob_escaped(self.prefix)}:chn:*:*"

    def done(self, stream: str) -> str:
        """The last completions of a stream: a producer that was away reads them here."""
        return f"{self.prefix}:done:{stream}"

    def heard(self, stream: str) -> str:
        """Digests of completions of Node's consumers that were kept lately."""
        return f"{self.prefix}:heard:{stream}"

    def keepers(self, stream: str) -> str:
        """Consumers of ours that keep the completions of Node's."""
        return f"{self.prefix}:keepers:{stream}"

    def dead(self, stream: str) -> str:
        """Jobs whose attempts are used up, with their payload and their errors."""
        return f"{self.prefix}:dead:{stream}"

    def forwarded(self, stream: str) -> str:
        """Which completions that another server had were published: the last one by server and group."""
        return f"{self.prefix}:forwarded:{stream}"

    def later(self, stream: str) -> str:
        """Jobs that wait for their time, by that time."""
        return f"{self.prefix}:later:{stream}"

    def control(self, stream: str) -> str:
        """Where consumers hear what changes: ``due SECONDS``, ``cancel ENTRY``, ``pause``, ``play``, ``read``."""
        return f"{self.prefix}:ctl:{stream}"

    @property
    def controls(self) -> str:
        """The pattern of all of these channels."""
        return f"{glob_escaped(self.prefix)}:ctl:*"

    def paused(self, stream: str) -> str:
        """While it is there, no consumer of ours begins a job of the stream."""
        return f"{self.prefix}:paused:{stream}"

    def repeats(self, stream: str) -> str:
        """Names of jobs that are repeated, by when they are due."""
        return f"{self.prefix}:repeats:{stream}"

    def repeated(self, stream: str) -> str:
        """What jobs that are repeated are, by name (JSON)."""
        return f"{self.prefix}:repeated:{stream}"

    def limits(self, stream: str, group: str) -> dict[str, str]:
        """The keys of the limit of one group of a stream, by the names that scripts give them."""
        names = ("limit", "busy", "parked")
        return {name: self._of_both(name, stream, group) for name in names}

    def _of_group(self, stream: str, group: str) -> dict[str, str]:
        """The keys of one group of one stream, by the names that scripts give them."""
        return {
            "stream": self.stream(stream),
            **{name: self._of_both(name, stream, group) for name in ("wait", "tries", "forward")},
        }

    def _of_both(self, name: str, stream: str, group: str) -> str:
        """A key of a group of a stream: ``a:b`` and ``c`` have other ones than ``a`` and ``b:c``."""
        return f"{self.prefix}:{name}:{stream.replace('%', '%25').replace(':', '%3A')}:{group}"
