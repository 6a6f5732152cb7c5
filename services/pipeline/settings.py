"""What an operator may set of pipeline."""

from typing import Annotated, ClassVar

from annotated_types import MinLen
from pydantic import Strict

from common.checks import Rule
from common.fields import Name, Whole, setting
from common.settings import ServiceSettings, renewal_is_in_time


def pipelines_register(redis_namespace: str | None) -> str | None:
    return "missing: expected a name of the pipeline's own" if redis_namespace is None else None


def one_instance_writes(ordered: bool) -> str | None:
    return None if ordered else "false would let two instances write one archive: leave it out"


class Settings(ServiceSettings):
    """From the event streams of ``watch`` to the Parquet files of ``archive``."""

    service: ClassVar[str] = "pipeline"
    rules: ClassVar[tuple[Rule, ...]] = (renewal_is_in_time, pipelines_register, one_instance_writes)

    watch: Annotated[list[Name], Strict(), MinLen(1)] = setting(
        "list of names", "The namespaces whose events are archived; a name may be a pattern, e.g. shop:*."
    )
    archive: Name = setting("directory", "Where the events are kept; a URL that Spark can write to, on a cluster.")
    checkpoint: Name | None = setting(
        "directory", "Where Spark notes how far it is; <archive>/_checkpoint by default.", None
    )
    trigger: Whole = setting("seconds", "Seconds between two looks for events; 0 for at once.", 1, least=0, most=86_400)
    max_events: Whole = setting(
        "events", "Most events that are archived at a time.", 500_000, least=1_000, most=100_000_000
    )
    discover: Whole = setting(
        "seconds",
        "Seconds between two looks, through all keys, for namespaces that a pattern names.",
        30,
        most=86_400,
        least=1,
    )
    fail_on_data_loss: bool = setting(
        "true | false", "End where events were trimmed before they were read; else go on and keep word of it.", True
    )
    master: Name = setting(
        "URL", "Spark's master: local[N] for this process, spark://host:7077 for a cluster.", "local[2]"
    )
    memory: Name = setting("size", "Memory of Spark's driver, e.g. 1g.", "1g")
    ordered: bool = setting(
        "true", "One active instance, since an archive has one writer: there is no other way.", True
    )

    def lists(self) -> dict[str, str]:
        return {f"{namespace}:events": "events" for namespace in self.watch}

    @property
    def progress(self) -> str:
        return self.checkpoint or f"{self.archive}/_checkpoint"

    def metrics(self) -> tuple[str, ...]:
        return ("pipeline",)
