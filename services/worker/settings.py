"""Settings of worker."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Strict, StringConstraints

import penstock.jobs
from common.settings.base import ServiceSettings
from common.settings.fields import Name, Seconds, Url, Whole, setting
from common.settings.validation import Rule
from penstock.base.keys import glob_escaped
from penstock.base.shape import Shape
from penstock.core.acl import Rights
from penstock.jobs.keys import PREFIX, JobKeys

LUA = Path(penstock.jobs.__file__).parent / "lua"


def jobs_have_a_namespace(redis_namespace: str | None) -> str | None:
    return "missing: expected a name, for the registration and the history of jobs" if redis_namespace is None else None


class Settings(ServiceSettings):
    """Do the jobs of a consumer of penstock.jobs that a Python module defines."""

    service: ClassVar[str] = "worker"
    runs_anew: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (*ServiceSettings.rules, jobs_have_a_namespace)
    sends: ClassVar[frozenset[str]] = frozenset(
        {
            *("XREADGROUP", "XGROUP|CREATE", "XRANGE", "XDEL", "MGET", "HGET", "ZREM", "SUBSCRIBE", "UNSUBSCRIBE"),
            *("PSUBSCRIBE", "PING", "ROLE", "CLIENT|UNBLOCK", "HDEL", "HSET"),
        }
    )
    scripts: ClassVar[tuple[Path, ...]] = tuple(sorted(LUA.glob("*.lua")))

    app: Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] = setting(
        "MODULE:NAME", "The consumer, e.g. shop.jobs:consumer. The folder where the service starts is searched first."
    )
    further: Annotated[list[Url], Strict()] = setting(
        "list of URLs", "The further servers of the jobs, in the order that all of their clients give them.", []
    )
    prefix: Name = setting("name", "What the keys of the jobs begin with.", PREFIX)
    processes: Whole = setting(
        "processes", "How many processes do jobs, each as many at a time as the consumer says.", 1, least=1, most=1_000
    )
    patience: Seconds = setting(
        "seconds", "Longest wait of a processor's call while a server is away.", 60.0, least=0, most=86_400
    )
    event_capacity: Whole = setting(
        "events", "Maximum number of events kept, roughly; 0 for none.", 100_000, least=0, most=100_000_000
    )

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the servers of the jobs."""
        return (self.redis, *self.further)

    def fixed(self) -> frozenset[str]:
        return super().fixed() | {"processes"}  # of one process; with several, the one that watches them obeys SIGHUP

    def metrics(self) -> tuple[str, ...]:
        return ("taken", "registered", "delivered", "failed", "retry", "done", "dead")

    def rights(self) -> dict[str, Rights]:
        """Add the keys and channels of jobs, on each of their servers."""
        keys = JobKeys(self.prefix)
        jobs = Rights((f"{glob_escaped(self.prefix)}:*",), self.sends, (keys.channels, keys.controls))
        found = super().rights()
        return {url: (found[url] | jobs if url in found else jobs) for url in dict.fromkeys((*found, *self.urls))}

    def shape(self) -> Shape:
        return Shape(promise="at-least-once")
