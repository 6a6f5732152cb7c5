"""Target keys of rows: the option ``key``, or the column ``key`` of each row."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from penstock.base.encoding import encoded
from penstock.spark.options import Options

COLUMN: Final = "key"


class Out:
    """The target keys. Raise ``WrongOption`` unless either the option or the column is given."""

    def __init__(self, options: Options, schema: StructType) -> None:
        key = options.text("key", "")
        self.only = encoded(key) if key else None
        """The key of all rows; None if each row has its own."""
        if not key and COLUMN not in schema.names:
            raise options.wrong("key", "missing: give it, or a column key")
        if key and COLUMN in schema.names:
            raise options.wrong("key", "given, and there is a column key, too: expected one of them")
        if not key and not isinstance(schema[COLUMN].dataType, StringType):
            raise options.wrong("key", f"the column key is {schema[COLUMN].dataType.simpleString()}: expected string")

    def share(self, batch: pa.RecordBatch, rows: Sequence[bytes]) -> dict[bytes, list[bytes]]:
        """Group ``rows``, which were made from the rows of ``batch``, by target key. No key may be null."""
        if self.only is not None:
            return {self.only: list(rows)}
        shares: dict[bytes, list[bytes]] = {}
        for out, row in zip(batch.column(COLUMN).cast(pa.binary()).to_pylist(), rows, strict=True):
            shares.setdefault(out, []).append(row)
        return shares
