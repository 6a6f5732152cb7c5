"""How a queue is consumed: the options of ``consume``, here or at another site."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, TypedDict, TypeVar

from penstock.base.errors import WrongCall
from penstock.bus.keys import is_whole
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES

Consuming = TypeVar("Consuming", bound="Moded")
BUSMQ: Final = {"limit": "max", "after_id": "last", "start": "index", "prefetch_bytes": "size"}
"""What options are called on the wire between sites; ``size`` is a gateway's own."""


class Moded(Protocol):
    """A consumption, here or at another site."""

    @property
    def mode(self) -> "Mode":
        """Return its options."""


class ModeOptions(TypedDict, total=False):
    """The fields of ``Mode`` as named arguments."""

    limit: int | None
    remove: bool
    reliable: bool
    exclusive: bool
    after_id: int
    start: int
    prefetch: int
    prefetch_bytes: int


@dataclass(frozen=True)
class Mode:
    """Options of ``Queue.consume``, which explains them. Raise ``WrongCall`` if they contradict each other."""

    limit: int | None = None
    remove: bool = True
    reliable: bool = False
    exclusive: bool = False
    after_id: int = 0
    start: int = 0
    prefetch: int = MAX_MESSAGES
    prefetch_bytes: int = MAX_BYTES

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Mode":
        """Return ``Mode(**options)``. Raise ``WrongCall`` for a name that is no option."""
        if unknown := options.keys() - cls.__annotations__.keys():
            raise WrongCall(f"{min(unknown)} is no option of consume: expected {', '.join(cls.__annotations__)}")
        return cls(**options)

    def __post_init__(self) -> None:
        least = {"limit": 0, "after_id": 0, "start": 0, "prefetch": 1, "prefetch_bytes": 1}
        for name, number in least.items():
            found = getattr(self, name)
            if not (is_whole(found, number) or (name == "limit" and found is None)):
                raise WrongCall(f"{name}={found!r}: expected a whole number from {number} on")
        if self.exclusive and not self.reliable:
            raise WrongCall("exclusive needs reliable=True")
        if self.after_id and self.remove and not self.reliable:
            raise WrongCall("after_id needs reliable=True or remove=False")
        if self.reliable and not self.remove:
            raise WrongCall("expected reliable=True or remove=False, not both: what stays is not acknowledged")


def from_busmq(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in the words of busmq, whose negative ``max`` is no limit, as those of ``Mode``."""
    ours = {theirs: name for name, theirs in BUSMQ.items()}
    found = {ours.get(name, name): value for name, value in options.items()}
    if found.get("limit", 0) < 0:
        del found["limit"]
    return found


def to_busmq(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of ``Mode`` in the words of busmq."""
    return {BUSMQ.get(name, name): value for name, value in options.items()}


def running(consumption: Consuming, mode: Mode) -> Consuming:
    """Return the ``consumption`` that runs. Raise ``WrongCall`` if ``mode`` is another one."""
    if consumption.mode != mode:
        runs = asdict(consumption.mode)
        others = ", ".join(f"{name}={value}" for name, value in runs.items() if value != getattr(mode, name))
        raise WrongCall(f"the queue is consumed with other options ({others}): pass the same, or call `stop` before")
    return consumption
