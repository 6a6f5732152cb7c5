"""Where rows go: to the key that an option names, or to that of each row's own column ``key``."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from penstock.encoding import encoded
from penstock.spark.options import Options

COLUMN: Final = "key"


class Out:
    """Raises ``WrongOption`` where neither is given, or both are."""

    def __init__(self, options: Options, schema: StructType) -> None:
        key = options.text("key", "")
        self.only = encoded(key) if key else None
        """The one key of all rows; None where each has its own."""
        if not key and COLUMN not in schema.names:
            raise options.wrong("key", "missing: give it, or a column key")
        if key and COLUMN in schema.names:
            raise options.wrong("key", "given, and there is a column key, too: expected one of them")
        if not key and not isinstance(schema[COLUMN].dataType, StringType):
            raise options.wrong("key", f"the column key is {schema[COLUMN].dataType.simpleString()}: expected string")

    def share(self, batch: pa.RecordBatch, rows: Sequence[bytes]) -> dict[bytes, list[bytes]]:
        """``rows``, made of those of ``batch``, by the key that they go to. No key may be null."""
        if self.only is not None:
            return {self.only: list(rows)}
        shares: dict[bytes, list[bytes]] = {}
        for out, row in zip(batch.column(COLUMN).cast(pa.binary()).to_pylist(), rows, strict=True):
            shares.setdefault(out, []).append(row)
        return shares
