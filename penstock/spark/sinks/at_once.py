"""Base of sinks whose tasks write their rows at once: writing a row again changes nothing."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from redis import Redis

from penstock.core.raw_connection import Command
from penstock.spark.options import connect, exchange, transact
from penstock.spark.staging import MAX_KEYS, Staged


class AtOnce:
    """Writes 1,000 rows a round trip."""

    url: str
    in_transactions = False
    """Whether no reader may see a key between two commands."""

    @abstractmethod
    def groups(self, batch: pa.RecordBatch) -> list[list[Command]]:
        """Return the commands that write ``batch``, those for one key together."""

    @abstractmethod
    def check(self, redis: "Redis", key: bytes, reply: Any) -> None:
        """Raise the reply to a command for ``key`` if it is an error: see ``checked``."""

    def write(self, batches: Iterator[pa.RecordBatch], query: Callable[[], str]) -> Staged:
        with connect(self.url) as redis:
            for batch in batches:
                for first in range(0, batch.num_rows, MAX_KEYS):
                    groups = self.groups(batch.slice(first, MAX_KEYS))
                    commands = [command for group in groups for command in group]
                    if commands:
                        replies = transact(redis, groups) if self.in_transactions else exchange(redis, commands)
                        for command, reply in zip(commands, replies, strict=True):
                            assert isinstance(command[1], bytes)
                            self.check(redis, command[1], reply)
        return Staged("", {})

    def publish(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int, life: int) -> None:
        """Do nothing: tasks have written their rows, and a repeated task writes the same."""
