"""Keys of the tracked composition."""

import re
from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

FANOUT: Final = Keys("tracked:mpush")
ARCHIVE: Final = Keys("tracked:archive")
ALERT: Final = Keys("tracked:alert")
MONITOR: Final = Keys("tracked:monitor")
SOURCE: Final = "tracked:in"
KEPT: Final = "tracked:archive:kept"
"""List of messages that the worker of the archive branch has handled."""
TAKEN: Final = "tracked:alert:taken"
"""List of messages that the worker of the alert branch has taken and never finishes."""

KEYSPACE: Final = Keyspace(
    "tracked",
    namespaces=tuple(keys.namespace for keys in (FANOUT, ARCHIVE, ALERT, MONITOR)),
    pattern=re.compile(r"tracked:(in|(mpush|archive|alert|monitor):.+)", re.DOTALL),
    in_flight=re.compile(
        r"tracked:(in|(archive|alert):(in|out|working|done|message:deadlines|message:delayed)"
        r"|(mpush|archive|alert|monitor):pending(:.+)?)",
        re.DOTALL,
    ),
)


def waiting(keys: Keys) -> tuple[str, ...]:
    """Return the lists of a branch in which messages wait."""
    return tuple(f"{keys.namespace}:{name}" for name in ("in", "out", "working", "done"))
