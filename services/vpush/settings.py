"""The settings of vpush."""

from pathlib import Path
from typing import ClassVar, Literal

from common.acl import of
from common.settings.base import ServiceSettings
from common.settings.fields import Name, PopTimeout, Seconds, Url, Whole, setting
from common.settings.kernel import renewal_is_in_time
from common.settings.roles import In, Pending, Target
from common.settings.validation import Rule
from penstock.base.keys import glob_escaped
from penstock.core.script import LUA


def one_instance_is_active(ordered: bool) -> str | None:
    return None if ordered else "false would let instances overtake each other: leave it out"


def unpacked_is_not_compressed(unpack: bool, compression: str) -> str | None:
    if unpack and compression != "none":
        return (
            f"this and compression: {compression} exclude each other: leave one out; "
            "to send on compressed, run a second vpush"
        )
    return None


def hops_are_counted_before(max_hops: int | None, unpack: bool) -> str | None:
    if unpack and max_hops:
        return "cannot be counted in what comes compressed: leave it out here, and set it on the vpush that compresses"
    return None


class Settings(ServiceSettings):
    """From ``in`` on the server ``redis`` to ``out`` on the server ``outRedis``."""

    service: ClassVar[str] = "vpush"
    buries: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        renewal_is_in_time,
        one_instance_is_active,
        unpacked_is_not_compressed,
        hops_are_counted_before,
    )

    scripts: ClassVar[tuple[Path, ...]] = tuple(
        LUA / f"{verb}.lua" for verb in ("begin", "next", "settle", "disown", "observe")
    )

    redis_namespace: Name = setting("name", "Prefix of all keys of the service, among them the lease and the sequence.")
    in_: In
    pending: Pending = setting("name", "The list of messages taken that have not arrived yet.")
    out_redis: Url = setting("URL", "The other server.")
    out: Target
    pop_timeout: PopTimeout = 10
    batch: Whole = setting(
        "messages", "Maximum number of messages that are sent at a time.", 5_000, least=1, most=5_000
    )
    batch_bytes: Whole = setting(
        "bytes",
        "No more messages are added to a batch once it has this many bytes.",
        1_048_576,
        least=1,
        most=536_870_912,
    )
    window: Whole = setting("batches", "Maximum number of batches in transit at a time.", 200, least=1, most=10_000)
    window_bytes: Whole = setting(
        "bytes", "No more batches are sent while this many bytes are in transit.", 67_108_864, least=1, most=2**40
    )
    link_timeout: Whole = setting(
        "seconds", "Seconds without an answer after which the link is closed and opened again.", 10, least=1, most=600
    )
    compression: Literal["none", "zstd"] = setting(
        "", "Send batches compressed; a vpush with unpack on the other side restores the messages.", "none"
    )
    unpack: bool = setting("true | false", "The messages in `in` are batches that another vpush has compressed.", False)
    max_hops: Whole | None = setting(
        "links",
        "Drop a JSON message that has crossed this many links (its meta.hops).",
        None,
        least=1,
        most=1_000,
    )
    ordered: bool = setting("true", "One active instance, so that order holds: there is no other way.", True)
    lease_expire: Seconds = setting(
        "seconds", "Seconds after which a standby takes over from a dead active instance.", 1.2, least=1, most=3_600
    )

    def fixed(self) -> frozenset[str]:
        """Add what decides where and how messages are sent: a batch of unknown outcome is sent again unchanged."""
        return super().fixed() | {"out_redis", "out", "compression", "unpack", "max_hops"}

    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {self.out_redis: (f"{glob_escaped(self.out)}:from:*",)}

    def sends_elsewhere(self) -> frozenset[str]:
        sent = {"MULTI", "EXEC", "DISCARD", "EVAL", "EVALSHA", "INFO", "SCRIPT|LOAD", "CONFIG|GET", "LPUSHX"}
        scripts = of(LUA / f"{verb}.lua" for verb in ("arrive", "meet"))
        return scripts | frozenset({*sent, "CLIENT|SETNAME", "RENAMENX", "RPOP", "RPUSH"})

    def metrics(self) -> tuple[str, ...]:
        return ("taken", "settled", "delivered", "dead", "dropped", "batches")
