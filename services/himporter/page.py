"""A page that is kept in Redis, so that a request for it costs no message."""

from collections.abc import Callable
from functools import partial
from hashlib import sha1
from math import ceil, inf
from pathlib import Path
from typing import Any, Final

from common.http.answers import Header
from common.http.direct import Exchange
from common.http.json import loads
from common.http.message import Answer
from penstock.base.exact_json import as_json
from penstock.core.script import Script
from penstock.core.wire import Reply
from services.himporter.cache import Cache, name_of
from services.himporter.freshness import TAG, Terms, directives, has_credentials, seconds_of, terms_of

LUA: Final = Path(__file__).parent / "lua"
_look, _keep = (Script.read(LUA / f"{verb}.lua") for verb in ("look", "keep"))
HEAD: Final = frozenset({"asked", "age", "until", "stale", "public", "tags", "headers"})
"""What is kept beside the body of a page."""
Found = Callable[[Answer | None], None]


class Page:
    """What is kept, or may be, for one request. ``headers`` are those that the worker gets."""

    def __init__(self, cache: Cache, exchange: Exchange, headers: list[Header], seconds: int) -> None:
        self._cache, self._headers, self._seconds = cache, headers, seconds
        self._control = directives(headers)
        self._is_private = has_credentials(exchange.headers)
        self._key = cache.keys.page(name_of(exchange.method, exchange, headers))
        self._mark = b""
        """The first line of what ``_key`` holds; empty while nobody knows."""
        self._varies: list[bytes] = []
        self._asked = b"0"
        """When it was asked, by the server's clock."""
        self._answered: Answer | None = None
        """What came before ``_mark``."""
        self._now = 0.0
        self._may_be_stale = False

    def look(self, found: Found, *, stale: bool = False) -> None:
        """Call ``found`` with the page, None if there is none; with ``stale`` also if it is past its time."""
        self._may_be_stale, bridge = stale, self._cache.bridge
        self._now = bridge.now
        if not bridge.fetch(("GET", self._key), Reply(partial(self._looked, found))):
            found(None)

    def keep(self, answer: Answer) -> Answer:
        """Keep ``answer`` if that is allowed; return it as clients see it."""
        if self._mark:
            self._consider(answer)
        else:  # the worker was faster than the mark's reply
            self._answered = answer
        return _shown(answer)

    def _consider(self, answer: Answer) -> None:
        """Keep ``answer`` if that is allowed."""
        terms = terms_of(answer, self._seconds, float(self._asked))
        fits = len(answer.body) <= self._cache.settings.cache_bytes
        may_be_kept = b"no-store" not in self._control
        if terms and may_be_kept and fits and (terms.is_public or not self._is_private):
            self._keep(_shown(answer), terms)

    def _keep(self, answer: Answer, terms: Terms) -> None:
        settings, keys = self._cache.settings, self._cache.keys
        place, mark, varies = self._key, self._mark, b""
        if terms.varies:
            if terms.varies != self._varies:
                names = [name.decode("latin-1") for name in terms.varies]
                mark, varies = self._asked, b"%b\n%b\n" % (self._asked, as_json({"varies": names}))
            place = self._variant(mark, terms.varies)
        head = {
            "asked": float(self._asked),
            "age": terms.age,
            "until": float(self._asked) + terms.seconds,
            "stale": terms.may_be_stale,
            "public": terms.is_public,
            "tags": terms.tags,
            "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers],
        }
        self._cache.bridge.call(
            _keep,
            self._kept,
            pages=keys.pages,
            page=self._key,
            place=place,
            tags=[keys.page_tag(tag) for tag in terms.tags],
            mark=self._mark,
            asked=self._asked,
            varies=varies,
            content=b"%b\n%b\n%b" % (self._asked, as_json(head), answer.body),
            life=terms.seconds + (settings.cache_stale if terms.may_be_stale else 0),
            most=settings.cache_pages,
        )

    def _kept(self, reply: Reply) -> None:
        if not reply.error and (surplus := reply.value()):
            self._cache.clear(surplus)

    def _variant(self, mark: bytes, names: list[bytes]) -> str:
        """Return the key of the page for the headers of this request, given the ``names`` of those that matter."""
        given = [[value.decode("latin-1") for each, value in self._headers if each == name] for name in names]
        return f"{self._key} {sha1(mark + as_json(given), usedforsecurity=False).hexdigest()}"

    # What is found

    def _looked(self, found: Found, reply: Reply) -> None:
        content = None if reply.error else reply.value()
        mark, head, body = _parsed(content or b"")
        if "varies" not in head:
            self._judge(found, head, body)
        else:
            place = self._variant(mark, [name.encode("latin-1") for name in head["varies"]])
            if not self._cache.bridge.fetch(("GET", place), Reply(partial(self._looked_further, found))):
                found(None)

    def _looked_further(self, found: Found, reply: Reply) -> None:
        content = None if reply.error else reply.value()
        _, head, body = _parsed(content or b"")
        self._judge(found, head, body)

    def _judge(self, found: Found, head: dict[str, Any], body: bytes) -> None:
        """Call ``found`` with a page if this request may have it."""
        if not head or (self._is_private and not head["public"]) or not self._is_fresh(head):
            self._missed(found)
            return
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
        headers = [*(pair for pair in headers if pair[0] != b"age"), (b"age", b"%d" % self._age(head))]
        answer = Answer(200, headers, body)
        if not head["tags"]:
            self._found(found, answer)
            return
        tags = map(self._cache.keys.page_tag, head["tags"])
        checked = Reply(partial(self._checked, found, answer, head["asked"]))
        if not self._cache.bridge.fetch(("MGET", *tags), checked):
            found(None)

    def _checked(self, found: Found, answer: Answer, asked: float, reply: Reply) -> None:
        """Call ``found`` with ``answer`` unless one of its tags was cleared."""
        if reply.error or any(since is None or _time(since) > asked for since in reply.value()):
            self._missed(found)
        else:
            self._found(found, answer)

    def _missed(self, found: Found) -> None:
        """Call ``found`` with None; mark the page as asked first, which needs no reply until there is an answer."""
        if not self._may_be_stale:
            expire = self._cache.settings.timeout + 1
            self._cache.bridge.call(_look, self._marked, page=self._key, expire=expire)
        found(None)

    def _marked(self, reply: Reply) -> None:
        if not reply.error:
            content, self._asked = reply.value()
            self._mark, head, _ = _parsed(content)
            self._varies = [name.encode("latin-1") for name in head.get("varies", ())]
            if self._answered:
                self._consider(self._answered)

    def _found(self, found: Found, answer: Answer) -> None:
        self._cache.count("stale" if self._may_be_stale else "cached")
        found(answer)

    def _age(self, head: dict[str, Any]) -> int:
        age: int = head["age"] + max(0, ceil(self._now - head["asked"]))
        return age

    def _is_fresh(self, head: dict[str, Any]) -> bool:
        """Return whether a page may answer this request; a breaker's answer may be replaced by an old one."""
        in_time: bool = self._now < head["until"]
        if self._may_be_stale:
            return in_time or bool(head["stale"])
        if not in_time or {b"no-cache", b"no-store"} & self._control.keys():
            return False
        longest = self._control.get(b"max-age")
        return longest is None or self._age(head) <= seconds_of(longest)


def _shown(answer: Answer) -> Answer:
    """Return ``answer`` as clients see it."""
    return answer._replace(headers=[pair for pair in answer.headers if pair[0] != TAG])


def _parsed(content: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    """Return the first line of a page, its head, and its body; the head of a mark, or of what is no page, is empty."""
    mark, _, rest = content.partition(b"\n")
    head, _, body = rest.partition(b"\n")
    try:
        found = loads(head) if head else {}
    except ValueError:
        found = {}
    is_page = isinstance(found, dict) and (found.keys() >= HEAD or "varies" in found)
    return mark, found if is_page else {}, body


def _time(text: bytes) -> float:
    """Return the time that a tag has; what is no time is later than all others."""
    try:
        return float(text)
    except ValueError:
        return inf
