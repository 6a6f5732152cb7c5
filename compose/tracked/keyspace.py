"""The keys of the tracked composition."""

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
"""The list of messages that the worker of the archive leg has handled."""
TAKEN: Final = "tracked:alert:taken"
"""The list of messages that the worker of the alert leg has taken, and never finished."""

KEYSPACE: Final = Keyspace(
    "tracked",
    namespaces=tuple(keys.namespace for keys in (FANOUT, ARCHIVE, ALERT, MONITOR)),
    own=re.compile(r"tracked:(in|(mpush|archive|alert|monitor):.+)", re.DOTALL),
    way=re.compile(
        r"tracked:(in|(archive|alert):(in|out|working|done|message:deadlines|message:delayed)"
        r"|(mpush|archive|alert|monitor):pending(:.+)?)",
        re.DOTALL,
    ),
)


def waiting(keys: Keys) -> tuple[str, ...]:
    """Return the lists of a leg on which messages wait."""
    return tuple(f"{keys.namespace}:{name}" for name in ("in", "out", "working", "done"))
