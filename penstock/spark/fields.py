"""Conversion of rows to fields and values, as HSET and XADD take them."""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from penstock.base.errors import WrongOption

WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
FLOAT: Final = (FloatType, DoubleType)
FIELDS: Final = MapType(StringType(), StringType())
"""Type of a column whose map entries become fields."""


def check(format_: str, schema: StructType) -> None:
    """Raise ``WrongOption`` if a column holds several values and is not of type ``FIELDS``."""
    for field in schema:
        if isinstance(field.dataType, (ArrayType, StructType, MapType)) and field.dataType != FIELDS:
            type_ = field.dataType.simpleString()
            raise WrongOption(f"{format_}: column {field.name} {type_}: expected one value, or {FIELDS.simpleString()}")


def fields_of(batch: pa.RecordBatch, *, but: str | None) -> list[list[Any]]:
    """Return the fields and values of each row in turns, without nulls and without the column ``but``."""
    rows: list[list[Any]] = [[] for _ in range(batch.num_rows)]
    for field in batch.schema:
        if field.name == but:
            continue
        values = batch.column(field.name).to_pylist()
        if pa.types.is_map(field.type):
            for row, pairs in zip(rows, values, strict=True):
                row += [word for name, value in pairs or () if value is not None for word in (name, value)]
            continue
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row += (field.name, value if isinstance(value, (str, bytes)) else _text(value))
    return rows


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
