"""Settings of monitor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import MinLen
from pydantic import Strict

from common import tracking as finishing
from common.settings.base import ServiceSettings
from common.settings.fields import Name, PopTimeout, Whole, setting
from common.settings.redaction import quoted
from common.settings.validation import Rule
from penstock import tracking
from penstock.base.keys import glob_escaped
from penstock.base.listening import ALL
from penstock.base.shape import Shape
from penstock.core.acl import FOUND_COMMANDS, FOUND_KEYS, Rights


def monitors_register(redis_namespace: str | None) -> str | None:
    return "missing: expected a name of the monitor's own" if redis_namespace is None else None


def watched_are_others(watch: list[str], redis_namespace: str | None) -> str | None:
    """Keep the monitor's registration and lists apart from those of the services that it watches."""
    if redis_namespace in watch:
        return f"{quoted(str(redis_namespace))} is redisNamespace as well: a monitor needs a namespace of its own"
    twice = sorted({name for name in watch if watch.count(name) > 1})
    return f"{', '.join(map(quoted, twice))} more than once" if twice else None


class Settings(ServiceSettings):
    """Settings of a monitor, which carries out what is due in other namespaces and shows their state."""

    service: ClassVar[str] = "monitor"
    rules: ClassVar[tuple[Rule, ...]] = (*ServiceSettings.rules, monitors_register, watched_are_others)

    sends: ClassVar[frozenset[str]] = frozenset(
        {
            *("SUBSCRIBE", "EXPIRE", "HGET", "LLEN", "LRANGE", "SCAN", "TTL", "XLEN", "XRANGE"),
            *("ZADD", "ZCARD", "ZMSCORE", "ZRANGE", "ZSCORE"),
        }
    )
    scripts: ClassVar[tuple[Path, ...]] = (
        *(finishing.LUA / f"{verb}.lua" for verb in ("finish", "identify")),
        tracking.LUA / "touch.lua",
    )

    watch: Annotated[list[Name], Strict(), MinLen(1)] = setting(
        "list of names", "The namespaces (redisNamespace) to watch; those of mdispatch are acted on."
    )
    pop_timeout: PopTimeout = setting(
        "seconds", "Longest wait for a finished message, in seconds; a stop does not wait for it.", 30, least=5, most=30
    )
    batch: Whole = setting(
        "messages", "Maximum number of messages taken, or acted on when due, at a time.", 500, least=1, most=1_000
    )
    batch_bytes: Whole = setting(
        "bytes",
        "Bytes after which no more entries are taken, or messages acted on, at a time.",
        2_097_152,
        least=1,
        most=536_870_912,
    )
    metrics_port: Whole = setting(
        "port", "Where /metrics, /live and /ready are served; 0 for nowhere.", 9464, least=0, most=65_535
    )
    metrics_host: Name = setting(
        "address", "Which of the machine's addresses to serve them on; all by default, of IPv6 and IPv4.", ALL
    )

    def pending_of(self, namespace: str) -> str:
        """Return the pending list for the ``done`` list of a watched namespace; each instance adds its id."""
        return f"{self.redis_namespace}:pending:{namespace}"

    @property
    def pending_lists(self) -> tuple[str, ...]:
        return tuple(map(self.pending_of, self.watch))

    def adopts(self, former: Sequence[str]) -> dict[str, str]:
        """Map each former pending list still in use to itself: entries of one namespace suit no other."""
        return {name: name for name in former if name in self.pending_lists}

    def metrics(self) -> tuple[str, ...]:
        return ("taken", "settled")

    def lists(self) -> dict[str, str]:
        return dict.fromkeys(self.pending_lists, "pending")

    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {self.redis: tuple(f"{glob_escaped(name)}:*" for name in self.watch)}

    def rights(self) -> dict[str, Rights]:
        """Add what ``penstock.inspect.waiting`` reads; without it the monitor shows less."""
        looks = (
            Rights((), FOUND_COMMANDS, (), FOUND_KEYS, lengths=("*",)) if self.metrics_port else Rights((), frozenset())
        )
        return {url: found | looks if url == self.redis else found for url, found in super().rights().items()}

    def apart(self, directory: Path) -> dict[str, object]:
        return {"metrics_port": 0}

    def shape(self) -> Shape:
        return Shape(
            [self.end(name, "pending", "keeps", "watch") for name in self.pending_lists],
            watches=self.watch,
            promise="at-least-once",
        )
