"""Settings of pipeline."""

from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import MinLen
from pydantic import AfterValidator, Strict

from common.settings.base import ServiceSettings
from common.settings.fields import YEAR, Name, Whole, setting
from common.settings.kernel import renewal_is_in_time
from common.settings.validation import Rule
from penstock.base.keys import Keys
from penstock.base.shape import Shape
from penstock.core.acl import SPARK_COMMANDS
from penstock.spark.masking import checked


def pipelines_register(redis_namespace: str | None) -> str | None:
    return "missing: expected a name of the pipeline's own" if redis_namespace is None else None


def one_instance_writes(ordered: bool) -> str | None:
    return None if ordered else "false would let two instances write one archive: leave it out"


def masks_need_payloads(mask: list[str], payloads: bool) -> str | None:
    return "means nothing without payloads: true" if mask and not payloads else None


class Settings(ServiceSettings):
    """Archive the event streams of ``watch`` as Parquet files in ``archive``."""

    service: ClassVar[str] = "pipeline"
    changes_login: ClassVar[bool] = False
    rules: ClassVar[tuple[Rule, ...]] = (
        renewal_is_in_time,
        pipelines_register,
        one_instance_writes,
        masks_need_payloads,
    )

    sends: ClassVar[frozenset[str]] = SPARK_COMMANDS
    scripts: ClassVar[tuple[Path, ...]] = ()

    watch: Annotated[list[Name], Strict(), MinLen(1)] = setting(
        "list of names", "Namespaces whose events are archived; a name may be a pattern, e.g. shop:*."
    )
    archive: Name = setting("directory", "Directory of the archive; on a cluster a URL that Spark can write to.")
    checkpoint: Name | None = setting(
        "directory", "Directory of Spark's checkpoint; <archive>/_checkpoint by default.", None
    )
    trigger: Whole = setting(
        "seconds", "Seconds between two reads of new events; 0: no pause.", 1, least=0, most=86_400
    )
    max_events: Whole = setting(
        "events", "Maximum number of events of a micro-batch.", 500_000, least=1_000, most=100_000_000
    )
    discover: Whole = setting(
        "seconds",
        "Seconds between two scans of all keys for namespaces that match a pattern.",
        30,
        most=86_400,
        least=1,
    )
    payloads: bool = setting(
        "true | false", "Archive the messages in events; mdispatch adds them with eventMessages.", False
    )
    mask: Annotated[list[Annotated[str, AfterValidator(checked)]], Strict()] = setting(
        "list of JSON paths",
        'JSON paths whose values are replaced by "***" in archived messages, e.g. $.card.number.',
        [],
    )
    rollups: bool = setting("true | false", "Write roll-ups of minutes, hours and days, too.", True)
    keep_minutes: Whole = setting(
        "seconds",
        "Seconds that the roll-up hash of a minute lives after that minute; 0: no hash.",
        86_400,
        most=10 * YEAR,
    )
    keep_hours: Whole = setting("seconds", "As keepMinutes, for the hash of an hour.", 7 * 86_400, most=10 * YEAR)
    keep_days: Whole = setting("seconds", "As keepMinutes, for the hash of a day.", 90 * 86_400, most=10 * YEAR)
    lateness: Whole = setting(
        "seconds",
        "Seconds without an event after which a window that is over is closed; later events count as late.",
        600,
        most=7 * 86_400,
    )
    merge_every: Whole = setting(
        "seconds",
        "Seconds between two merges, which publish small files as large ones; 0: publish each micro-batch, small.",
        900,
        most=YEAR,
    )
    fail_on_data_loss: bool = setting(
        "true | false",
        "Stop if events were trimmed before they were read; false: record the loss and go on.",
        True,
    )
    master: Name = setting(
        "URL",
        "Spark's master: local[N,F] runs N tasks here, each at most F times; spark://host:7077 is a cluster.",
        "local[2,4]",
    )
    memory: Name = setting("size", "Memory of Spark's driver, e.g. 1g.", "1g")
    ordered: bool = setting("true", "One active instance: an archive has one writer, so only true is allowed.", True)

    def fixed(self) -> frozenset[str]:
        """Return all settings: a running query cannot change its options."""
        return frozenset(type(self).model_fields)

    def lists(self) -> dict[str, str]:
        return {f"{namespace}:events": "events" for namespace in self.watch}

    @property
    def kept(self) -> dict[str, int]:
        """Return the seconds that roll-up hashes live, by the size of the window."""
        return {"minute": self.keep_minutes, "hour": self.keep_hours, "day": self.keep_days}

    @property
    def progress(self) -> str:
        return self.checkpoint or f"{self.archive}/_checkpoint"

    def metrics(self) -> tuple[str, ...]:
        return ("pipeline",)

    def patterns(self) -> dict[str, tuple[str, ...]]:
        parts = ("events*", "policy", "metrics:events", "rollup:*")
        return {self.redis: tuple(f"{namespace}:{part}" for namespace in self.watch for part in parts)}

    def apart(self, directory: Path) -> dict[str, object]:
        return {"archive": directory / "archive"}

    def shape(self) -> Shape:
        streams = [Keys(namespace).events for namespace in self.watch]
        return Shape([self.end(name, "events", "reads", "watch", kind="stream") for name in streams])
