"""Settings of hqueue."""

import re
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Strict, StringConstraints

import penstock.sealing
from common.http.access import LUA
from common.http.settings import HttpSettings
from common.settings.fields import YEAR, Seconds, Secret, Url, Whole, setting
from common.settings.validation import Rule
from penstock.base.keys import Keys, glob_escaped
from penstock.base.shape import Shape
from penstock.core.acl import Rights

WEEK = 604_800
SEALING = Path(penstock.sealing.__file__).parent / "lua"


def queues_have_a_namespace(redis_namespace: str | None) -> str | None:
    return "missing: expected a name, in which the queues lie" if redis_namespace is None else None


def keys_have_a_master(master_key: str | None, keys_redis: str | None) -> str | None:
    return "has no effect without masterKey" if keys_redis and not master_key else None


def webhooks_are_signed(webhook_hosts: list[str], webhook_secret: str | None) -> str | None:
    if webhook_hosts and not webhook_secret:
        return "missing: expected a secret, with which webhooks are signed: HQUEUE_WEBHOOK_SECRET_FILE names a file"
    return None


def webhook_host(text: str) -> str:
    """Return a pattern of ``webhookHosts``. Raise ``ValueError``."""
    if not re.fullmatch(
        r"(https?://)?(\*\.)?[A-Za-z0-9._-]+(:[0-9]{1,5})?|(https?://)?\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?", text
    ):
        raise ValueError(
            f"expected a host such as hooks.example.com, *.example.com:8443 or http://10.0.0.7, found {text!r}"
        )
    return text.lower()


def _master(text: str) -> str:
    if not text.startswith(("file:", "vault:")):
        raise ValueError("expected file:/run/secrets/master or vault:https://host:8200/transit/name")
    return text


HostName = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9._-]{1,253}$")]


class Settings(HttpSettings):
    """Serve queues of tasks over HTTP: workers fetch, do and acknowledge."""

    service: ClassVar[str] = "hqueue"
    rules: ClassVar[tuple[Rule, ...]] = (
        *HttpSettings.rules, queues_have_a_namespace, keys_have_a_master, webhooks_are_signed,
    )  # fmt: skip
    sends: ClassVar[frozenset[str]] = frozenset(
        {"HGETALL", "HGET", "SET", "GET", "SUBSCRIBE", "PING", "HSET", "HINCRBY", "PUBLISH"}
    )
    scripts: ClassVar[tuple[Path, ...]] = (LUA / "count.lua", *sorted(SEALING.glob("*.lua")))

    attempts: Whole = setting(
        "deliveries", "Deliveries before a task is dead; 0: no limit.", 5, least=0, most=1_000_000
    )
    backoff_base: Seconds = setting(
        "seconds", "Wait before the second attempt; doubled each time.", 1.0, least=0, most=WEEK
    )
    backoff_cap: Seconds = setting("seconds", "Longest wait before an attempt.", 60.0, least=0, most=WEEK)
    time_to_recover: Seconds = setting(
        "seconds", "Lease of a worker that does not ask for another.", 60.0, least=0, most=86_400
    )
    task_expire: Whole = setting(
        "seconds", "Seconds that a task lives which does not say it.", WEEK, least=1, most=WEEK
    )
    keep: Whole = setting("seconds", "Seconds that a task is kept once it has ended.", 86_400, least=1, most=YEAR)
    capacity: Whole = setting(
        "tasks", "Maximum number of tasks that a queue keeps; more get 429.", 10_000_000, least=1, most=1_000_000_000
    )
    max_waiting: Whole = setting(
        "requests",
        "Maximum number of requests that wait for a task or an outcome; more do not wait.",
        10_000,
        least=0,
        most=1_000_000,
    )
    event_capacity: Whole = setting(
        "events", "Maximum number of events kept, roughly; 0 for none.", 100_000, least=0, most=100_000_000
    )
    master_key: Annotated[str, AfterValidator(_master)] | None = setting(
        "file:PATH | vault:URL", "What wraps the keys of owners; without it nothing is sealed.", None
    )
    keys_redis: Url | None = setting("URL", "The server of these keys, if not `redis`: one without backups.", None)

    allowed_hosts: Annotated[list[HostName], Strict()] = setting(
        "list of names",
        "Without `tokens`: names by which clients call the service, besides localhost; with `insecure`, none: all.",
        [],
    )
    webhook_hosts: Annotated[list[Annotated[str, AfterValidator(webhook_host)]], Strict()] = setting(
        "list of hosts",
        "Hosts to which outcomes may be posted, e.g. `hooks.example.com:8443`, `*.example.com`, `http://10.0.0.7:80`.",
        [],
    )
    webhook_secret: Secret | None = setting(
        "text", "What the secrets of owners, who check our signatures, are made of; during a change, new and old.", None
    )
    webhook_timeout: Seconds = setting("seconds", "Longest wait for the answer to a webhook.", 10.0, least=0, most=300)
    webhook_patience: Whole = setting(
        "seconds", "How long after the end of a task its outcome is offered again.", 259_200, least=0, most=YEAR
    )

    def metrics(self) -> tuple[str, ...]:
        tried = ("delivered", "failed", "retry", "timeout", "touched", "done", "dead", "expired")
        return ("http", "taken", "registered", *tried, "outcomes")

    def rights(self) -> dict[str, Rights]:
        """Add the channels on which instances hear of each other's work."""
        keys = Keys(glob_escaped(str(self.redis_namespace)))
        channels = Rights((), frozenset(), (keys.task_news, keys.key_changes))
        return {url: found | channels if url == self.redis else found for url, found in super().rights().items()}

    def apart(self, directory: Path) -> dict[str, object]:
        return {"listen_port": 0}

    def shape(self) -> Shape:
        return Shape(promise="at-least-once")
