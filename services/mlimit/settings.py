"""Settings of mlimit."""

from math import ceil
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from common.settings.base import PromptSettings
from common.settings.fields import YEAR, Name, PopTimeout, Seconds, Whole, setting
from common.settings.roles import In, Out, Pending, ReplyLists
from common.settings.validation import Rule
from penstock.base.keys import Keys


def buckets_need_a_namespace(redis_namespace: str | None) -> str | None:
    return "missing: expected a name, under which the buckets lie" if redis_namespace is None else None


def a_field_is_read(by: str, field: str | None) -> str | None:
    if by == "all":
        return "has no effect with by: all" if field else None
    what = "the path of a JSON field" if by == "field" else "the name of a header"
    return f"field is missing: expected {what}, as by is {by}" if field is None else None


def a_list_is_named(over_list: str | None, over: str) -> str | None:
    if over == "list":
        return "overList is missing: expected a name, as over is list" if over_list is None else None
    return "has no effect unless over is list" if over_list else None


def answers_need_lists(reply_lists: list[str], over: str) -> str | None:
    return "has no effect unless over is answer" if reply_lists and over != "answer" else None


class Settings(PromptSettings):
    """Settings of mlimit, which moves messages from ``in`` to ``out``, at most ``rate`` a second."""

    service: ClassVar[str] = "mlimit"
    buries: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        *PromptSettings.rules,
        buckets_need_a_namespace,
        a_field_is_read,
        a_list_is_named,
        answers_need_lists,
    )

    in_: In
    pending: Pending
    out: Out
    pop_timeout: PopTimeout = 10
    rate: Annotated[Seconds, Ge(0.001), Le(1_000_000)] = setting(
        "messages a second", "Messages that pass in a second, on average."
    )
    burst: Whole | None = setting(
        "messages",
        "Messages that pass at once after a pause; those of one second by default.",
        None,
        least=1,
        most=10**6,
    )
    by: Literal["all", "field", "header"] = setting(
        "all | field | header", "Which messages share a limit: all, or those with the same field or header.", "all"
    )
    field: Name | None = setting("path or name", "The JSON field, such as meta.user, or the header.", None)
    over: Literal["wait", "drop", "dead", "list", "answer"] = setting(
        "wait | drop | dead | list | answer",
        "What is done with messages over the limit: overList gets those of list, answer sends clients status 429.",
        "wait",
    )
    over_list: Out | None = setting("name", "The list for messages over the limit, with over: list.", None)
    capacity: Whole = setting(
        "messages",
        "Maximum number of messages that wait by field or header; others stay in `in`.",
        100_000,
        least=1,
        most=10**9,
    )
    reply_lists: ReplyLists = setting(
        "list of names",
        "The lists that replyTo may name, and patterns (* ? [abc]); <redisNamespace>:reply:* by default.",
        [],
    )
    reply_expire: Whole = setting(
        "seconds", "Seconds that a list lives which an answer has created.", 60, least=1, most=YEAR
    )
    batch: Whole = setting("messages", "Maximum number of messages that one move takes.", 500, least=1, most=1_000)
    batch_bytes: Whole = setting(
        "bytes",
        "Maximum number of bytes that one move takes; one message always goes.",
        1_048_576,
        least=1,
        most=536_870_912,
    )

    @property
    def burst_size(self) -> int:
        """Return how many tokens a full bucket has."""
        return self.burst or ceil(self.rate)

    @property
    def replies(self) -> list[str]:
        """Return the lists that requests may name for their answers, and patterns of them."""
        return self.reply_lists or [Keys(str(self.redis_namespace)).replies]

    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {self.redis: tuple(self.replies)} if self.over == "answer" else {}

    def metrics(self) -> tuple[str, ...]:
        return (*super().metrics(), "limited")
