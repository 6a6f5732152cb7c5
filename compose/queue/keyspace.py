"""Keys of the queue composition."""

import re
from typing import Final

from compose.keyspace import Keyspace
from compose.queue.names import KEYS, SOURCE

KEYSPACE: Final = Keyspace(
    "months",
    namespaces=(KEYS.namespace,),
    pattern=re.compile(rf"{SOURCE}(:.+)?|{KEYS.namespace}:.+", re.DOTALL),
    in_flight=re.compile(
        rf"{SOURCE}(:consumer:.+)?|{KEYS.namespace}:(message:(deadlines|delayed|outbox)|replies:.+)", re.DOTALL
    ),
)
