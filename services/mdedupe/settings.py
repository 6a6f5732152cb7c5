"""Settings of mdedupe."""

from pathlib import Path
from typing import ClassVar, Literal

from common.acl import LUA
from common.settings.base import PromptSettings
from common.settings.fields import YEAR, Name, PopTimeout, Whole, setting
from common.settings.roles import In, Out, Pending
from common.settings.validation import Rule


def keys_need_a_namespace(redis_namespace: str | None) -> str | None:
    return "missing: expected a name, under which the remembered keys lie" if redis_namespace is None else None


def a_field_is_read(by: str, field: str | None) -> str | None:
    if by == "field":
        return "field is missing: expected the path of a JSON field, as by is field" if field is None else None
    return "has no effect unless by is field" if field else None


class Settings(PromptSettings):
    """Settings of mdedupe, which moves messages from ``in`` to ``out`` and drops duplicates."""

    service: ClassVar[str] = "mdedupe"
    scripts: ClassVar[tuple[Path, ...]] = (LUA / "hold_batch.lua",)
    rules: ClassVar[tuple[Rule, ...]] = (*PromptSettings.rules, keys_need_a_namespace, a_field_is_read)

    in_: In
    pending: Pending
    out: Out
    pop_timeout: PopTimeout = 10
    duplicates: Out | None = setting("name", "The list that duplicates go to; by default they are dropped.", None)
    by: Literal["digest", "id", "field"] = setting(
        "digest | id | field", "What makes two messages equal: their bytes, their correlation id, or field.", "digest"
    )
    field: Name | None = setting("path", "The JSON field by which messages are equal, such as meta.order.", None)
    expire: Whole = setting(
        "seconds", "Seconds after a message within which an equal one is a duplicate.", 600, least=1, most=YEAR
    )
    capacity: Whole = setting(
        "keys",
        "Maximum number of keys remembered, of some 150 bytes each; beyond it the oldest is forgotten.",
        1_000_000,
        least=1,
        most=10**9,
    )
    batch: Whole = setting("messages", "Maximum number of messages that one move takes.", 500, least=1, most=5_000)
    batch_bytes: Whole = setting(
        "bytes",
        "Maximum number of bytes that one move takes; one message always goes.",
        1_048_576,
        least=1,
        most=536_870_912,
    )

    def metrics(self) -> tuple[str, ...]:
        return ("taken", "settled", "delivered", "dropped", "duplicate", "forgotten")
