"""The settings that every service has, and the rules over them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, StringConstraints
from pydantic_settings import BaseSettings

from common.settings.fields import YEAR, Name, Seconds, Url, Whole, setting
from penstock.core.durability import DURABILITY

LEVELS = {"trace": "debug", "warn": "warning", "fatal": "critical"}
"""Levels as Node's loggers name them."""


def _level(value: object) -> object:
    return LEVELS.get(value.lower(), value.lower()) if isinstance(value, str) else value


def renewal_is_in_time(service_renew: int, service_expire: int) -> str | None:
    if service_renew > service_expire - 5:
        return f"serviceRenew ({service_renew} s) must be at most serviceExpire - 5 ({service_expire - 5} s)"
    return None


def order_needs_a_namespace(ordered: bool, redis_namespace: str | None) -> str | None:
    if ordered and redis_namespace is None:
        return "needs redisNamespace, where the lease lies that makes one instance the active one"
    return None


class KernelSettings(BaseSettings):
    """What the kernel itself needs to know."""

    redis: Url = setting("URL", "The server of the lists.")
    service_redis: Url | None = setting("URL", "The server of the registrations; the same as redis by default.", None)
    redis_namespace: Name | None = setting(
        "name", "Prefix of all keys of the service; without it there is no registration and no metrics.", None
    )
    service_expire: Whole = setting(
        "seconds", "Seconds after which the registration of a dead instance is gone.", 60, least=30, most=86_400
    )
    service_renew: Whole = setting(
        "seconds", "Seconds between two renewals, at most serviceExpire - 5.", 15, least=5, most=86_395
    )
    service_capacity: Whole = setting(
        "instances", "Instances that the list of ids shows, the newest first.", 10, least=1, most=10_000
    )
    stop_timeout: Whole = setting(
        "seconds", "Seconds a stop may take before the process ends with status 1.", 30, least=1, most=3_600
    )
    metrics_expire: Whole | None = setting(
        "seconds", "Seconds that metrics outlive the last instance; without it they stay.", None, least=1, most=YEAR
    )
    logger_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_level)] = (
        setting("", "The least level that is logged; debug by default where NODE_ENV is development.", "info")
    )
    ordered: bool = setting("true | false", "One active instance, so that order holds; the others stand by.", False)
    lease_expire: Seconds = setting(
        "seconds", "Seconds after which a standby takes over from a dead active instance.", 10, least=2, most=3_600
    )
    durability: Annotated[str, StringConstraints(strict=True, pattern=rf"^{DURABILITY}\z")] = setting(
        "memory | aof | replicas:N | replicas:majority", "Where a batch must be before the next one is taken.", "memory"
    )
    durability_timeout: Whole = setting(
        "seconds", "Seconds to wait for the server's disk or its replicas.", 5, least=1, most=60
    )
