"""Keys of the jobs composition."""

from typing import Final

from compose.jobs.names import KEYS
from compose.keyspace import Keyspace

KEYSPACE: Final = Keyspace(
    "figures",
    (KEYS,),
    keys="in(:.+)?|out|worker:.+|jobs:.+",
    in_flight="in(:consumer:.+)?|worker:message:deadlines|jobs:(wait|later|busy):.+",
)
