"""Names of what the processes share."""

from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

SOURCE: Final = "temps:in"
"""A list: readings that the producer has not taken."""
TAKEN: Final = "temps:in:taken"
"""A list: readings that it has taken and not pushed to the queue."""
READINGS: Final = "temps:readings"
"""The queue from the producer to the consumer."""
HANDLED: Final = "temps:handled"
"""A list: each reading that the consumer has handled, the newest at the head."""
LAST: Final = "temps:handled:last"
"""The id of the newest of these."""
CONTROL: Final = "temps:control"
"""The channel between both: the consumer says `pause` and `resume`."""
STATISTICS: Final = "temps:statistics"
"""The object with the running statistics."""
QUERIES: Final = "temps:queries"
"""The service that answers for a month."""
DAILY: Final = "temps:daily"
"""The queue of daily means, which site two consumes through the gateway."""
ARRIVED: Final = "temps:two:daily"
"""A hash at site two: mean by day."""
TTL: Final = 600
"""Seconds that queues live without a client."""
PAUSES: Final = "temps:pauses"
"""A number: how often the producer had to pause."""
KEYSPACE: Final = Keyspace(
    "temps",
    (Keys("temps:gateway"),),
    keys="in(:taken)?|handled(:last)?|pauses|two:daily|gateway:.*",
    in_flight="in|in:taken",
)
OF_BUS: Final = [f"bus:{each}temps:*" for each in ("queue:", "queue:channel:*:", "queue:service:", "persisted:")]
"""Patterns of the keys that the bus makes."""
