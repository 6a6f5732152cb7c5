"""Settings of mdispatch."""

import json
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, MaxLen

from common.settings.base import PromptSettings
from common.settings.fields import YEAR, PopTimeout, Seconds, Whole, setting
from common.settings.roles import Answers, Done, In, Out, Pending, ReplyList, ReplyLists
from common.settings.validation import Rule
from common.tracking import LUA
from penstock.base.keys import Keys
from penstock.base.shape import Shape
from penstock.core.backoff import Backoff
from penstock.tracking.policy import untaken_check_interval


def tracking_needs_a_namespace(redis_namespace: str | None) -> str | None:
    return (
        "missing: expected a name, under which records, deadlines and metrics lie" if redis_namespace is None else None
    )


def replies_need_a_list_of_answers(reply_to: str | None, res: str | None) -> str | None:
    return "has no effect without res, where workers push answers" if reply_to and not res else None


def untaken_wait_for_their_first_deadline(queue_timeout: int, message_timeout: int) -> str | None:
    if 0 < queue_timeout < message_timeout:
        return f"queueTimeout ({queue_timeout} s) must be 0 or at least messageTimeout ({message_timeout} s)"
    return None


def messages_need_events(event_messages: bool, event_capacity: int) -> str | None:
    return "has no effect with eventCapacity 0" if event_messages and not event_capacity else None


def records_outlive_all_attempts(
    message_expire: int,
    message_timeout: int,
    attempts: int,
    backoff: list[float],
    backoff_base: float,
    backoff_cap: float,
) -> str | None:
    """Require records to outlive all attempts: without its record a message gets no further one."""
    longest = Backoff(backoff, backoff_base, backoff_cap).longest_delay(attempts)
    needed = attempts * (message_timeout + longest)
    if message_expire > needed:
        return None
    return (
        f"messageExpire ({message_expire} s) must be longer than attempts x (messageTimeout + longest back-off) = "
        f"{attempts} x ({message_timeout} s + {longest:g} s) = {needed:g} s"
    )


class Settings(PromptSettings):
    """Settings of mdispatch, which tracks requests from ``in`` to ``out`` and delivers answers from ``res``."""

    service: ClassVar[str] = "mdispatch"
    buries: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        *PromptSettings.rules,
        tracking_needs_a_namespace,
        replies_need_a_list_of_answers,
        messages_need_events,
        untaken_wait_for_their_first_deadline,
        records_outlive_all_attempts,
    )

    sends: ClassVar[frozenset[str]] = frozenset({"PUBLISH", "HGET", "HSET", "DEL", "INCRBY"})
    scripts: ClassVar[tuple[Path, ...]] = (LUA / "finish.lua", LUA / "identify.lua")

    in_: In = setting("name", "The list that clients push requests to.")
    pending: Pending = setting("name", "The list of requests taken and not settled; each instance adds its id.")
    out: Out = setting("name", "The list that workers take requests from.")
    done: Done | None = setting(
        "name", "The list that workers push ids or xids to, for the monitor; <redisNamespace>:done by default.", None
    )
    done_by: Literal["either", "xid", "id"] = setting(
        "either | xid | id", "What plain text in done is; either: the xid of a message in flight, else an id.", "either"
    )
    res: Answers | None = setting("name", "The list that workers push answers to; none by default.", None)
    reply_to: ReplyList | None = setting("name", "Where answers go whose request has no meta.replyTo.", None)
    reply_lists: ReplyLists = setting(
        "list of names",
        "The lists that meta.replyTo may name, and patterns (* ? [abc]); <redisNamespace>:reply:* by default.",
        [],
    )
    reply_expire: Whole = setting(
        "seconds",
        "Seconds after its last answer until a list expires that matches a pattern of replyLists.",
        60,
        least=1,
        most=YEAR,
    )
    pop_timeout: PopTimeout = 10
    batch: Whole = setting("messages", "Maximum number of messages that are taken at a time.", 500, least=1, most=1_000)
    batch_bytes: Whole = setting(
        "bytes",
        "Bytes after which no more messages are taken at a time.",
        2_097_152,
        least=1,
        most=536_870_912,
    )
    message_timeout: Whole = setting("seconds", "Seconds that a worker has for an attempt.", 10, least=1, most=3_600)
    queue_timeout: Whole = setting(
        "seconds",
        "Seconds after which a message that no worker has taken is a dead letter; 0: it waits for as long as it takes.",
        0,
        least=0,
        most=YEAR,
    )
    message_expire: Whole = setting("seconds", "Seconds that a message's record is kept.", 60, least=2, most=YEAR)
    message_capacity: Whole = setting(
        "messages",
        "Maximum number of messages tracked at a time; any others are delivered untracked.",
        100_000,
        least=1,
        most=10**9,
    )
    attempts: Whole = setting("attempts", "Deliveries before a message goes to the dead letters.", 3, least=1, most=100)
    retry_budget: Whole | None = setting(
        "per cent",
        "Maximum retries, in per cent of the requests; a failed attempt beyond them is the last. Unlimited by default.",
        None,
        least=1,
        most=1_000,
    )
    message_attempts: Literal["obey", "ignore"] = setting(
        "obey | ignore",
        "Whether `meta.attempts` of a request may ask for fewer deliveries, e.g. 1 for what must not be done twice.",
        "obey",
    )
    accept_late: bool = setting(
        "true | false",
        "Whether the done of an attempt that timed out ends a message while a later one is under way.",
        False,
    )
    backoff: Annotated[list[Annotated[Seconds, Ge(0), Le(86_400)]], MaxLen(100)] = setting(
        "list of seconds",
        "Seconds before each retry, the last one again and again; by default ever longer: see backoffBase.",
        [],
    )
    backoff_base: Seconds = setting(
        "seconds",
        "Seconds before the first retry, doubled for each further one, with jitter.",
        1.0,
        least=0,
        most=3_600,
    )
    backoff_cap: Seconds = setting("seconds", "Longest wait in seconds before a retry.", 5.0, least=0, most=86_400)
    event_capacity: Whole = setting(
        "events",
        "Maximum number of events kept in <redisNamespace>:events, roughly; 0 for none.",
        100_000,
        least=0,
        most=10**9,
    )
    event_messages: bool = setting(
        "true | false", "Whether the events `registered` carry the messages themselves, for an archive.", False
    )

    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {self.redis: tuple(self.replies)}

    @property
    def replies(self) -> list[str]:
        """Return the reply lists, and patterns of them, that requests may name."""
        return self.reply_lists or [Keys(str(self.redis_namespace)).replies]

    @property
    def taken_lists(self) -> tuple[str, ...]:
        return (self.pending,)

    def named(self, field: str) -> list[str]:
        return super().named(field) or ([Keys(str(self.redis_namespace)).done] if field == "done" else [])

    def shape(self) -> Shape:
        shape, keys = super().shape(), Keys(str(self.redis_namespace))
        if self.event_capacity:
            shape.ends.append(self.end(keys.events, "events", "writes", "event_capacity", kind="stream"))
        shape.watched += [end for end in shape.ends if end.role in ("out", "dead", "events")]
        shape.promise = "at-least-once"
        backoff = Backoff(self.backoff, self.backoff_base, self.backoff_cap)
        noticed_after = self.message_timeout + untaken_check_interval(self.message_timeout)
        shape.again = noticed_after + backoff.longest_delay(self.attempts)
        return shape

    def metrics(self) -> tuple[str, ...]:
        done = ("done", "done:late", "done:unknown", "timeout", "overdue", "failed", "retry", "dead", "expired")
        return ("taken", "delivered", "dropped", "registered", "untracked", *done, "answers", "touched")

    def policy(self) -> dict[str, str | int]:
        """Return what monitors and the command line need to know of this namespace: see docs/keys.md."""
        backoff = Backoff(self.backoff, self.backoff_base, self.backoff_cap)
        pending = self.pending_for("res") if self.res else None
        optional = {"res": self.res, "resPending": pending, "replyTo": self.reply_to, "retryBudget": self.retry_budget}
        return {
            "messageTimeout": self.message_timeout,
            "queueTimeout": self.queue_timeout,
            "messageExpire": self.message_expire,
            "messageCapacity": self.message_capacity,
            "attempts": self.attempts,
            "backoff": backoff.as_json,
            "replyExpire": self.reply_expire,
            "replyLists": json.dumps(self.replies),
            "eventCapacity": self.event_capacity,
            "source": self.in_,
            "pending": self.pending,
            "out": self.out,
            "done": self.done or Keys(str(self.redis_namespace)).done,
            "doneBy": self.done_by,
            "acceptLate": int(self.accept_late),
            **{name: value for name, value in optional.items() if value},
        }
