"""What the model of a queue knows: the messages, who has taken which, and of each client what it does."""

from dataclasses import dataclass, field

from penstock.bus import Consumption, Queue

Pair = tuple[int, bytes]


@dataclass
class Consuming:
    """What the model knows of a consumption."""

    mode: str
    inner: Consumption
    limit: int | None
    last: int
    index: int
    begun: bool = False
    hand: list[Pair] = field(default_factory=list)
    last_read: int = 0

    @property
    def reliable(self) -> bool:
        return self.mode in ("reliable", "exclusive")


class Client:
    def __init__(self, queue: Queue) -> None:
        self.queue, self.attached = queue, False
        self.consuming: Consuming | None = None


class Stored:
    """The queue as the model has it."""

    def __init__(self) -> None:
        self.exists, self.last_id, self.maxsize = False, 0, 0
        self.messages, self.toack = list[Pair](), list[Pair]()
        self.holder: Client | None = None

    def destroy(self) -> None:
        self.exists, self.last_id, self.messages, self.toack = False, 0, [], []

    def acknowledge(self, last: int) -> None:
        while self.toack and self.toack[0][0] <= last:
            del self.toack[0]

    def restore(self, first: int) -> None:
        while self.toack and self.toack[-1][0] >= first:
            self.messages.insert(0, self.toack.pop())
