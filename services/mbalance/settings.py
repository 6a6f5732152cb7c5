"""Settings of mbalance."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Strict

from common.settings.base import PromptSettings
from common.settings.fields import Name, PopTimeout, Seconds, Whole, setting
from common.settings.roles import In, Outs, Pending
from common.settings.validation import Rule
from penstock.base.keys import glob_escaped

MAX_OUTS: Final = 1_000
"""Maximum number of lists to choose from, so that a script has room for them and for what belongs to them."""
Names = Annotated[list[Name], Strict()]


def out_fits_a_script(out: list[str]) -> str | None:
    return None if len(out) <= MAX_OUTS else f"{len(out):,} lists: one mbalance chooses from {MAX_OUTS:,}"


def weighted_needs_weights(policy: str, weights: list[int]) -> str | None:
    return "weighted needs weights, one for each list of out" if policy == "weighted" and not weights else None


def one_weight_for_each_list(weights: list[int], out: list[str], policy: str) -> str | None:
    if weights and policy != "weighted":
        return "has no effect without policy: weighted"
    if any(weight < 1 for weight in weights):
        return "a weight is at least 1"
    return _one_for_each("weights", weights, out)


def a_field_is_hashed(field: str | None, policy: str) -> str | None:
    return "has no effect without policy: hash" if field and policy != "hash" else None


def one_worker_for_each_list(workers: list[str], out: list[str]) -> str | None:
    return _one_for_each("namespaces", workers, out)


def one_registration_for_each_list(registrations: list[str], out: list[str]) -> str | None:
    return _one_for_each("keys", registrations, out)


def one_in_hand_for_each_list(in_hand: list[str], out: list[str]) -> str | None:
    return _one_for_each("lists", in_hand, out)


def workers_register_in_one_way(registrations: list[str], workers: list[str]) -> str | None:
    return "this and workers exclude each other: leave one out" if registrations and workers else None


def _one_for_each(what: str, given: list[int] | list[str], out: list[str]) -> str | None:
    if not given or len(given) == len(out):
        return None
    return f"{len(given)} {what} for {len(out)} lists: expected one for each list of out, in the same order"


class Settings(PromptSettings):
    """Settings of mbalance, which moves each message of ``in`` to the one of ``out`` that will serve it soonest."""

    service: ClassVar[str] = "mbalance"
    sends: ClassVar[frozenset[str]] = frozenset({"LRANGE"})
    rules: ClassVar[tuple[Rule, ...]] = (
        *PromptSettings.rules,
        out_fits_a_script,
        weighted_needs_weights,
        one_weight_for_each_list,
        a_field_is_hashed,
        one_worker_for_each_list,
        one_registration_for_each_list,
        one_in_hand_for_each_list,
        workers_register_in_one_way,
    )

    redis_namespace: Name = setting("name", "Prefix of all keys of the service, among them the measured rates.")
    in_: In
    pending: Pending
    out: Outs
    policy: Literal["expectedWait", "length", "roundRobin", "weighted", "hash"] = setting(
        "", "How a list is chosen: least wait, least messages, in turn, by weights, or by a hash.", "expectedWait"
    )
    pop_timeout: PopTimeout = 10
    batch: Whole = setting("messages", "Maximum number of messages that one move takes.", 2000, least=1, most=100_000)
    batch_bytes: Whole = setting(
        "bytes",
        "Maximum number of bytes that one move takes; one message always goes.",
        2_097_152,
        least=1,
        most=536_870_912,
    )
    workers: Names = setting(
        "list of names", "For each list the namespace of its workers: without a live instance it gets nothing.", []
    )
    registrations: Names = setting(
        "list of names", "For each list a key that its worker keeps alive: without it the list gets nothing.", []
    )
    in_hand: Names = setting(
        "list of names", "For each list the pending list of its workers; with workers, of each live instance.", []
    )
    weights: list[Whole] = setting("list of numbers", "For each list its share of the messages, with weighted.", [])
    field: Name | None = setting(
        "path", "The JSON field that hash is of, such as meta.id; by default the whole message.", None
    )
    rate_expire: Seconds = setting(
        "seconds", "Seconds in which what was measured of an unused list fades.", 60.0, least=1, most=86_400
    )

    def reads(self) -> dict[str, tuple[str, ...]]:
        """Return the keys of workers: what registers them, and what they have in hand."""
        hands = [glob_escaped(name) + (":[0-9]*" if self.workers else "") for name in self.in_hand]
        workers = [f"{glob_escaped(name)}:{kind}" for name in self.workers for kind in ("ids", "[0-9]*")]
        registrations = [f"{glob_escaped(name)}{kind}" for name in self.registrations for kind in ("", ":steps")]
        return {self.redis: (*hands, *workers, *registrations)}

    def metrics(self) -> tuple[str, ...]:
        return ("taken", "settled", "delivered", "rebalanced")
