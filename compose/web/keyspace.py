"""Keys of the web composition."""

from typing import Final

from compose.keyspace import Keyspace
from compose.web.names import BALANCE, DISPATCH, IMPORTER, MONITOR, ROUTER

KEYSPACE: Final = Keyspace(
    "web",
    (IMPORTER, ROUTER, DISPATCH, BALANCE, MONITOR),
    keys=r"in|api|work|answers|replies|notes|(work|worker|begun|importer|router|dispatch|balance|monitor):.+",
    in_flight=r"in|api|work|answers|work:\d+|work:\d+:consumer:.+"
    r"|dispatch:(done|message:deadlines|message:delayed)|(router|dispatch|balance|monitor):pending(:.+)?",
)
