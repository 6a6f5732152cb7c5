"""Keys of the jobs composition."""

import re
from typing import Final

from compose.jobs.names import KEYS, OUT, PREFIX, SOURCE
from compose.keyspace import Keyspace

KEYSPACE: Final = Keyspace(
    "figures",
    namespaces=(KEYS.namespace,),
    pattern=re.compile(rf"{SOURCE}(:.+)?|{OUT}|{KEYS.namespace}:.+|{PREFIX}:.+", re.DOTALL),
    in_flight=re.compile(
        rf"{SOURCE}(:consumer:.+)?|{KEYS.namespace}:message:deadlines|{PREFIX}:(wait|later|busy):.+", re.DOTALL
    ),
)
