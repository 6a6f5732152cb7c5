"""Settings of himporter."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Strict

from common.http.access import LUA
from common.http.settings import HttpSettings
from common.settings.fields import YEAR, Whole, setting
from common.settings.roles import Out
from common.settings.validation import Rule
from penstock.base.keys import Keys, glob_escaped
from penstock.base.shape import Shape
from penstock.core.acl import Rights


def importers_register(redis_namespace: str | None) -> str | None:
    return "missing: expected a name, in which the lists of answers lie" if redis_namespace is None else None


def _path(text: str) -> str:
    if not text.startswith("/") or not text.strip("/"):
        raise ValueError(f"expected a path such as /_requests, found {text!r}")
    return text


Path_ = Annotated[str, AfterValidator(_path)]


def _pattern(text: str) -> str:
    if not text.startswith(("/", "*", "?", "[")):
        raise ValueError(f"expected a pattern of paths such as /reports/*, found {text!r}")
    return text


Pattern = Annotated[str, Strict(), AfterValidator(_pattern)]


def _rule(text: str) -> str:
    pattern, _, seconds = text.rpartition(" ")
    if not pattern.startswith(("/", "*")) or not (seconds.isascii() and seconds.isdigit()) or int(seconds) > YEAR:
        raise ValueError(f"expected a pattern of paths and seconds up to {YEAR:,}, such as /days/* 60, found {text!r}")
    return text


CacheRule = Annotated[str, Strict(), AfterValidator(_rule)]


class Settings(HttpSettings):
    """Push each HTTP request to ``out`` as a message, and answer it with what comes back."""

    service: ClassVar[str] = "himporter"
    rules: ClassVar[tuple[Rule, ...]] = (*HttpSettings.rules, importers_register)
    sends: ClassVar[frozenset[str]] = frozenset(
        {"LPUSH", "LRANGE", "LTRIM", "BLMOVE", "PUBLISH", "SET", "GET", "MGET", "TIME", "HGETALL", "ZSCORE"}
    )
    scripts: ClassVar[tuple[Path, ...]] = (LUA / "count.lua",)

    out: Out
    timeout: Whole = setting("seconds", "Seconds in which a request is answered; then 504.", 30, least=1, most=3_600)
    max_waiting: Whole = setting(
        "requests", "Maximum number of requests that wait for an answer; more get 503.", 10_000, least=1, most=1_000_000
    )
    accept: Annotated[list[Pattern], Strict()] = setting(
        "list of patterns", "Paths whose requests get 202 at once, and their answers later, e.g. /reports/*.", []
    )
    prefer: bool = setting("true | false", "Do the same for a client that sends Prefer: respond-async.", False)
    accept_timeout: Whole = setting(
        "seconds", "Seconds in which such a request is answered: its deadline.", 3_600, least=1, most=YEAR
    )
    accept_expire: Whole = setting(
        "seconds", "Seconds that its answer is kept after the deadline.", 3_600, least=1, most=YEAR
    )
    max_accepted: Whole = setting(
        "requests", "Maximum number of them whose answers are kept; more get 503.", 10_000, least=1, most=10_000_000
    )
    status_path: Path_ = setting(
        "path", "Below this path clients see what becomes of them; it is not passed on.", "/_requests"
    )
    cache: Annotated[list[CacheRule], Strict()] = setting(
        "list of patterns",
        "Paths whose pages are kept, and seconds for those that do not say it, e.g. /days/* 60; the first that matches"
        " counts, 0 keeps none.",
        [],
    )
    cache_stale: Whole = setting(
        "seconds", "Seconds that a page is kept beyond its time, for rules of hrouter with the breaker cached.", 600,
        least=0, most=YEAR,
    )  # fmt: skip
    cache_pages: Whole = setting(
        "pages",
        "Maximum number of pages that are kept; beyond that those go that end soonest.",
        10_000,
        least=1,
        most=10_000_000,
    )
    cache_bytes: Whole = setting(
        "bytes", "Maximum number of bytes of the body of a page that is kept.", 65_536, least=0, most=536_870_912
    )
    probes: bool = setting("true | false", "Answer GET /live and /ready itself, for an orchestrator's probes.", True)

    @property
    def cache_rules(self) -> list[tuple[str, int]]:
        """Return the patterns of ``cache``, each with its seconds."""
        pairs = (rule.rpartition(" ") for rule in self.cache)
        return [(pattern.strip(), int(seconds)) for pattern, _, seconds in pairs]

    def metrics(self) -> tuple[str, ...]:
        return ("http", "taken", "settled", "delivered")

    def rights(self) -> dict[str, Rights]:
        """Add the channel on which workers hear of clients that have gone."""
        channel = Rights((), frozenset(), (Keys(glob_escaped(str(self.redis_namespace))).cancellations,))
        return {url: found | channel if url == self.redis else found for url, found in super().rights().items()}

    def apart(self, directory: Path) -> dict[str, object]:
        return {"listen_port": 0}

    def shape(self) -> Shape:
        shape = super().shape()
        shape.promise = "at-least-once"
        return shape
