"""Keys of the weather composition."""

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
BRANCHES: Final = {f"weather:{role}": handled for role, handled in HANDLED.items()}
"""Lists that mpush fills, each with the list of messages that its consumer has settled."""

_SINGLE: Final = (
    *(SOURCE, PENDING, STORMS, REPORTS, *BRANCHES, *BRANCHES.values()),
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
_IN_FLIGHT: Final = r"weather:(in|pending|pending:.+|archive|alarm|report|dead|.+:working:.+|.+:dead)"

KEYSPACE: Final = Keyspace(
    KEYS.namespace,
    namespaces=(KEYS.namespace,),
    pattern=re.compile("|".join([*map(re.escape, _SINGLE), _MANY]), re.DOTALL),
    in_flight=re.compile(_IN_FLIGHT, re.DOTALL),
)
