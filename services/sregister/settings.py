"""Settings of sregister."""

from pathlib import Path
from typing import Annotated, ClassVar, Final

from annotated_types import Ge, Le
from pydantic import StringConstraints

from common.settings.base import ServiceSettings
from common.settings.fields import Name, Seconds, Whole, setting
from common.settings.validation import Rule
from penstock.base.keys import Keys
from penstock.base.shape import Shape
from penstock.core.acl import Rights
from penstock.inspect.discovery import ADDRESS

LUA: Final = Path(__file__).parent / "lua"
Text = Annotated[str, StringConstraints(strict=True, min_length=1)]
Address = Annotated[str, StringConstraints(strict=True, pattern=f"^{ADDRESS}$")]


def the_registration_is_on_redis(service_redis: str | None) -> str | None:
    return "has no effect: sregister registers on redis" if service_redis else None


def health_answers_before_the_next(health_timeout: float, health_interval: float) -> str | None:
    if health_timeout > health_interval:
        return f"healthTimeout ({health_timeout:g} s) must be at most healthInterval ({health_interval:g} s)"
    return None


def a_stop_leaves_time_to_drain(drain: float, stop_timeout: float) -> str | None:
    if drain > stop_timeout / 2:
        return f"drain ({drain:g} s) must be at most half of stopTimeout ({stop_timeout:g} s)"
    return None


class Settings(ServiceSettings):
    """Settings of sregister, which registers a program of any language while it runs."""

    service: ClassVar[str] = "sregister"
    runs_anew: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        *ServiceSettings.rules,
        the_registration_is_on_redis,
        health_answers_before_the_next,
        a_stop_leaves_time_to_drain,
    )
    scripts: ClassVar[tuple[Path, ...]] = tuple(sorted(LUA.glob("*.lua")))

    service_capacity: Whole = setting(
        "instances", "Instances that the list of ids shows, the newest first.", 1_000, least=1, most=10_000
    )
    redis_namespace: Name = setting("name", "What others find the program by, e.g. orders:api.")
    command: Text = setting(
        "command", "What a shell runs; it gets SIGTERM at a stop, and has to stay in the foreground."
    )
    address: Address | None = setting(
        "URL or host:port", "Where others reach the program; it finds it in the variable PENSTOCK_ADDRESS.", None
    )
    health: Text | None = setting(
        "URL or command",
        "What tells whether the program is ready: a URL that answers with a status below 400, or a command that ends "
        "with status 0. Without it the program is ready as soon as it runs.",
        None,
    )
    health_interval: Annotated[Seconds, Ge(0.1), Le(3_600)] = setting("seconds", "Seconds between two checks.", 2.0)
    health_timeout: Annotated[Seconds, Ge(0.1), Le(60)] = setting(
        "seconds", "Longest wait for one, at most healthInterval.", 1.0
    )
    health_failures: Whole = setting(
        "checks", "How many have to fail in a row before a program that was ready is not.", 2, least=1, most=100
    )
    drain: Seconds = setting(
        "seconds",
        "Seconds between the end of the registration and SIGTERM, in which others notice. At most half of stopTimeout.",
        0.0,
        least=0,
        most=3_600,
    )

    def metrics(self) -> tuple[str, ...]:
        return ("ready",)

    def rights(self) -> dict[str, Rights]:
        """Add the channel on which it says that the program is ready, or not any more."""
        found = super().rights()
        return {**found, self.redis: found[self.redis] | Rights((), frozenset(), (Keys(self.redis_namespace).ready,))}

    def shape(self) -> Shape:
        return Shape()
