"""Settings of mpush."""

from pathlib import Path
from typing import ClassVar, Final, Literal

from common.settings.base import ServiceSettings
from common.settings.fields import YEAR, Name, PopTimeout, Whole, setting
from common.settings.roles import In, Pending, Subscribers
from common.settings.validation import Rule

MAX_OUTS: Final = 5_000
"""Maximum number of lists that one script can take as keys: Lua's stack ends at about 8,000."""


def out_fits_a_script(out: list[str]) -> str | None:
    if len(out) <= MAX_OUTS:
        return None
    return f"{len(out):,} lists: one step of the server can fill {MAX_OUTS:,}; make some of them `in` of another mpush"


def overflow_needs_a_limit(overflow: str, max_length: int | None, given: frozenset[str]) -> str | None:
    return "has no effect without maxLength" if "overflow" in given and max_length is None else None


def dead_letters_need_a_namespace(overflow: str, redis_namespace: str | None) -> str | None:
    if overflow == "dead" and redis_namespace is None:
        return "dead needs redisNamespace: the dead letters lie in <redisNamespace>:dead"
    return None


def messages_outlive_their_timeout(message_expire: int, message_timeout: int) -> str | None:
    if message_expire <= message_timeout:
        return f"messageExpire ({message_expire} s) must be longer than messageTimeout ({message_timeout} s)"
    return None


class Settings(ServiceSettings):
    """Settings of mpush, which copies messages from ``in`` to every list of ``out`` on the same server."""

    service: ClassVar[str] = "mpush"
    scripts: ClassVar[tuple[Path, ...]] = ()
    ignored: ClassVar[frozenset[str]] = frozenset({"done", "message_expire", "message_timeout", "message_capacity"})
    rules: ClassVar[tuple[Rule, ...]] = (
        *ServiceSettings.rules,
        out_fits_a_script,
        overflow_needs_a_limit,
        dead_letters_need_a_namespace,
        messages_outlive_their_timeout,
    )

    in_: In
    pending: Pending
    out: Subscribers
    pop_timeout: PopTimeout = 10
    batch: Whole = setting("messages", "Maximum number of messages that one move takes.", 2000, least=1, most=100_000)
    batch_bytes: Whole = setting(
        "bytes",
        "Maximum number of bytes that one move writes; one message always goes.",
        2_097_152,
        least=1,
        most=536_870_912,
    )
    max_length: Whole | None = setting(
        "messages",
        "Maximum number of messages that a subscriber's list may hold; no limit by default.",
        None,
        least=1,
        most=10**9,
    )
    overflow: Literal["block", "drop-oldest", "dead"] = setting(
        "", "What is done with a message for a list of maxLength: wait, drop the oldest, or a dead letter.", "block"
    )
    done: Name | None = setting("name", "No effect in mpush, which tracks no messages.", None)
    message_expire: Whole = setting(
        "seconds", "No effect in mpush: seconds that a tracked message is known.", 60, least=2, most=YEAR
    )
    message_timeout: Whole = setting(
        "seconds", "No effect in mpush: seconds until a tracked message is late.", 10, least=1, most=3_600
    )
    message_capacity: Whole = setting(
        "messages", "No effect in mpush: most messages tracked at a time.", 1000, least=1, most=10**9
    )

    @property
    def dead_letters(self) -> str | None:
        return "overflow" if self.overflow == "dead" else None
