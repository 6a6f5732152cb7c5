"""What an operator may set of mpush."""

import re
from typing import Annotated, ClassVar, Final, Literal

from annotated_types import MinLen
from pydantic import BeforeValidator, Strict

from common.settings.base import ServiceSettings
from common.settings.collisions import collision, in_is_free, pending_is_free, pending_is_not_in
from common.settings.fields import YEAR, Name, PopTimeout, Whole, setting
from common.settings.redaction import quoted
from common.settings.validation import Rule
from penstock.composition.model import Shape
from penstock.keys import Keys


def _on_this_server(name: object) -> object:
    if isinstance(name, str) and re.match(r"(rediss?(\+sentinel|\+cluster)?|unix)://", name):
        raise ValueError(
            "expected the name of a list on the same server, found a URL: use vpush to deliver to another one"
        )
    return name


MOST_OUTS: Final = 5_000
"""Lists that one script can take as keys: Lua's stack ends at some 8,000."""
Out = Annotated[list[Annotated[Name, BeforeValidator(_on_this_server)]], Strict(), MinLen(1)]


def out_is_not_in(out: list[str], in_: str) -> str | None:
    return f"{quoted(in_)} is `in` as well: its messages would go round for ever" if in_ in out else None


def out_is_not_pending(out: list[str], pending: str) -> str | None:
    return f"{quoted(pending)} is `pending` as well: expected another list" if pending in out else None


def out_fits_a_script(out: list[str]) -> str | None:
    if len(out) <= MOST_OUTS:
        return None
    return f"{len(out):,} lists: one step of the server can fill {MOST_OUTS:,}; make some of them `in` of another mpush"


def out_does_not_repeat(out: list[str]) -> str | None:
    twice = sorted({name for name in out if out.count(name) > 1})
    return f"{', '.join(map(quoted, twice))} more than once: each message would come more than once" if twice else None


def out_is_no_total(out: list[str], redis_namespace: str | None) -> str | None:
    taken = "count" in out and redis_namespace is not None
    return "`count` is the field of the total in the metrics, where each list has its own" if taken else None


def out_is_free(out: list[str], pending: str, redis_namespace: str | None) -> str | None:
    return next(filter(None, (collision(name, pending, redis_namespace) for name in out)), None)


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
    """From ``in`` to every list of ``out``, all on one server."""

    service: ClassVar[str] = "mpush"
    ignored: ClassVar[frozenset[str]] = frozenset({"done", "message_expire", "message_timeout", "message_capacity"})
    rules: ClassVar[tuple[Rule, ...]] = (
        *ServiceSettings.rules,
        pending_is_not_in,
        out_is_not_in,
        out_is_not_pending,
        out_fits_a_script,
        out_does_not_repeat,
        out_is_no_total,
        in_is_free,
        out_is_free,
        pending_is_free,
        overflow_needs_a_limit,
        dead_letters_need_a_namespace,
        messages_outlive_their_timeout,
    )

    in_: Name = setting("name", "The list that publishers push to.")
    pending: Name = setting("name", "The list of messages taken and not settled; each instance adds its id.")
    out: Out = setting("list of names", "The subscribers' lists; each gets every message.")
    pop_timeout: PopTimeout = setting(
        "seconds", "Longest wait for a message, in seconds; a stop does not wait for it.", 10, least=5, most=30
    )
    batch: Whole = setting("messages", "Most messages that one move takes.", 2000, least=1, most=100_000)
    batch_bytes: Whole = setting(
        "bytes", "Most bytes that one move writes; one message always goes.", 2_097_152, least=1, most=536_870_912
    )
    max_length: Whole | None = setting(
        "messages", "Most messages that a subscriber's list may hold; no limit by default.", None, least=1, most=10**9
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
    def pending_lists(self) -> tuple[str, ...]:
        return (self.pending,)

    def lists(self) -> dict[str, str]:
        roles = {self.in_: "in", self.pending: "pending"} | dict.fromkeys(self.out, "out")
        if self.overflow == "dead" and self.redis_namespace:
            roles[Keys(self.redis_namespace).dead] = "dead"
        return roles

    def shape(self) -> Shape:
        ends = [self.end(self.in_, "in", "reads", "in_"), self.end(self.pending, "pending", "keeps", "pending")]
        ends += [self.end(name, "out", "writes", "out", copies=len(self.out) > 1) for name in self.out]
        if self.overflow == "dead":
            ends.append(self.end(Keys(str(self.redis_namespace)).dead, "dead", "writes", "overflow"))
        return Shape(ends)

    def metrics(self) -> tuple[str, ...]:
        return ("taken", "settled", "delivered", "dropped", "dead")
