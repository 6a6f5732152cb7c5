"""The keys of the weather composition."""

import re
from typing import Final

from compose.keyspace import Keyspace
from compose.weather.consumer import HANDLED
from penstock.keys import Keys

KEYS: Final = Keys("weather")
SOURCE: Final = "weather:in"
PENDING: Final = "weather:pending"
STORMS: Final = "weather:storms"
REPORTS: Final = "weather:reports"
LEGS: Final = {f"weather:{role}": handled for role, handled in HANDLED.items()}
"""Each list that mpush fills, and where its consumer keeps what it has settled."""

_SINGLE: Final = (
    *(SOURCE, PENDING, STORMS, REPORTS, *LEGS, *LEGS.values()),
    *(
        KEYS.counter,
        KEYS.ids,
        KEYS.owners,
        KEYS.holdings,
        KEYS.lists,
        KEYS.shape,
        KEYS.lease,
        KEYS.events,
        KEYS.done,
        KEYS.dead,
    ),
)
_MANY: Final = r"weather:(\d+|pending:\d+|metrics:\w+|(archive|alarm|report):(working:.+|dead))"
_WAY: Final = r"weather:(in|pending|pending:.+|archive|alarm|report|dead|.+:working:.+|.+:dead)"

KEYSPACE: Final = Keyspace(
    KEYS.namespace,
    namespaces=(KEYS.namespace,),
    own=re.compile("|".join([*map(re.escape, _SINGLE), _MANY]), re.DOTALL),
    way=re.compile(_WAY, re.DOTALL),
)
