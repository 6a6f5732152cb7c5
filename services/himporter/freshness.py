"""Which answers may be kept, for how long and for whom: the rules of RFC 9111 for a cache that clients share."""

from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from common.http.answers import Header
from common.http.message import Answer

TAG: Final = b"cache-tag"
"""The header of an answer with its tags, separated by commas; clients do not see it."""
MAX_TAGS: Final = 32
MAX_TAG_LENGTH: Final = 256
FORBIDDEN: Final = frozenset({b"no-store", b"private", b"no-cache"})
ON_TIME: Final = frozenset({b"must-revalidate", b"proxy-revalidate", b"s-maxage"})
"""Directives of an answer that must not be used after its time."""
PUBLIC: Final = frozenset({b"public", b"s-maxage"})
"""Directives of an answer that all may see, also if its request had credentials."""
CREDENTIALS: Final = frozenset({b"authorization", b"cookie"})


class Terms(NamedTuple):
    """How an answer may be kept."""

    seconds: int
    """For how long it is fresh."""
    age: int
    """How old (s) it is already, since it comes from a cache."""
    is_public: bool
    may_be_stale: bool
    varies: list[bytes]
    """The headers of requests, sorted, that it depends on."""
    tags: list[str]


def values(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """Return the elements of all headers ``name``, which are lists with commas."""
    found: list[bytes] = []
    for each, value in headers:
        if each == name:
            found += filter(None, map(bytes.strip, value.split(b",")))
    return found


def directives(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Return what ``Cache-Control`` says: each directive, in lower case, with its argument; the first one counts."""
    found: dict[bytes, bytes] = {}
    for each in values(headers, b"cache-control"):
        name, _, argument = each.partition(b"=")
        found.setdefault(name.strip().lower(), argument.strip().strip(b'"'))
    return found


def seconds_of(argument: bytes) -> int:
    """Return the seconds that a directive names; 0 for what is no number."""
    return min(int(argument), 2**31) if argument.isdigit() and len(argument) < 20 else 0


def terms_of(answer: Answer, default: int, now: float) -> Terms | None:
    """Return how ``answer`` may be kept, None if it may not; ``default`` is its time (s) if it says none.

    ``now`` is in seconds since the epoch.
    """
    headers = answer.headers
    if answer.status != 200 or any(name == b"set-cookie" for name, _ in headers):
        return None
    control = directives(headers)
    varies = sorted({each.lower() for each in values(headers, b"vary")})
    tags = [each.decode("latin-1") for each in values(headers, TAG)]
    age = max([seconds_of(value) for name, value in headers if name == b"age"], default=0)
    seconds = _lifetime(control, headers, default, now) - age
    if FORBIDDEN & control.keys() or b"*" in varies or seconds <= 0:
        return None
    if len(tags) > MAX_TAGS or any(len(tag) > MAX_TAG_LENGTH for tag in tags):
        return None
    return Terms(seconds, age, bool(PUBLIC & control.keys()), not ON_TIME & control.keys(), varies, tags)


def _lifetime(control: dict[bytes, bytes], headers: list[Header], default: int, now: float) -> int:
    """Return for how long (s) an answer is fresh, by its own word if it has one."""
    fields = dict(headers)
    lifetime: float = default
    if b"s-maxage" in control or b"max-age" in control:
        lifetime = seconds_of(control[b"s-maxage"] if b"s-maxage" in control else control[b"max-age"])
    elif b"expires" in fields:
        try:
            expires = parsedate_to_datetime(fields[b"expires"].decode("latin-1"))
            lifetime = expires.replace(tzinfo=UTC).timestamp() - now
        except (ValueError, OverflowError):
            return 0
    return int(lifetime)


def has_credentials(headers: Iterable[Header]) -> bool:
    """Return whether the answer to a request with ``headers`` may be for its client alone."""
    return any(name in CREDENTIALS for name, _ in headers)
