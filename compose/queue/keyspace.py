"""Keys of the queue composition."""

from typing import Final

from compose.keyspace import Keyspace
from compose.queue.names import KEYS

KEYSPACE: Final = Keyspace(
    "months",
    (KEYS,),
    keys="in(:.+)?|work:.+",
    in_flight="in(:consumer:.+)?|work:(message:(deadlines|delayed|outbox)|replies:.+)",
)
