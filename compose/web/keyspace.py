"""Keys of the web composition."""

import re
from typing import Final

from compose.keyspace import Keyspace
from compose.web.names import BALANCE, DISPATCH, IMPORTER, MONITOR, ROUTER

KEYSPACE: Final = Keyspace(
    "web",
    namespaces=tuple(keys.namespace for keys in (IMPORTER, ROUTER, DISPATCH, BALANCE, MONITOR)),
    pattern=re.compile(
        r"web:(in|api|work|answers|replies|notes|(work|worker|begun|importer|router|dispatch|balance|monitor):.+)",
        re.DOTALL,
    ),
    in_flight=re.compile(
        r"web:(in|api|work|answers|work:\d+|work:\d+:consumer:.+"
        r"|dispatch:(done|message:deadlines|message:delayed)|(router|dispatch|balance|monitor):pending(:.+)?)",
        re.DOTALL,
    ),
)
