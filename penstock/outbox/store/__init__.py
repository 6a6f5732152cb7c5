"""What an outbox keeps on disk: one SQLite file in WAL mode, with ``synchronous=FULL``, in its data directory.

A ``Store`` is a connection with the statements, for one thread at a time; it neither begins nor commits by itself
(``with store.transaction():``). ``GroupCommit`` is what an outbox writes through.

Times are seconds of the store's own clock (``clock``), which runs while the store is open: neither a step of the
system's clock nor the clocks of peers change when something is due. Only ``dead`` has the system's time, for people.
"""

from penstock.outbox.store.file import NAME, Store
from penstock.outbox.store.incoming import ALONE, TOGETHER
from penstock.outbox.store.rows import (
    SEPARATOR,
    TO_LIST,
    TROUBLE,
    Arrived,
    Copy,
    Counts,
    Dead,
    Failed,
    Outgoing,
    Published,
    Waiting,
)

__all__ = [
    "ALONE",
    "NAME",
    "SEPARATOR",
    "TOGETHER",
    "TO_LIST",
    "TROUBLE",
    "Arrived",
    "Copy",
    "Counts",
    "Dead",
    "Failed",
    "Outgoing",
    "Published",
    "Store",
    "Waiting",
]
