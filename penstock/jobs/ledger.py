"""What a service writes of its jobs: their history, and counters that the audit adds up."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.base.keys import Keys
from penstock.core.script import Script

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs.attempt import Attempt

_lua: Final = Path(__file__).parent / "lua"
_begin, _gone = (Script.read(_lua / f"{verb}.lua") for verb in ("begin", "gone"))


class Ledger:
    """Writes in the namespace of ``keys`` what the instance ``service`` does; about ``history`` events are kept."""

    def __init__(self, keys: Keys, service: str, history: int) -> None:
        self._metrics = {name: keys.metric(name) for name in ("registered", "taken", "delivered")}
        self._under_way, self._dead = keys.deadlines, keys.metric("dead")
        self._events = keys.event_keys if history else {}
        self._common: dict[str, Any] = {"service": service, "history": history}
        self.settling: dict[str, Any] = {
            "under_way": keys.deadlines,
            "ended_well": keys.metric("done"),
            "ended_badly": self._dead,
            "failed": keys.metric("failed"),
            "retry": keys.metric("retry"),
            **self._events,
            **self._common,
        }
        """What ``lua/settle.lua`` needs besides."""

    async def begin(self, node: "Instance", attempts: Sequence["Attempt"], **of: Any) -> set[bytes]:
        """Note that attempts begin, ``of`` a stream, group and consumer; return the entries that others have by now.

        These do not begin: the server was away for so long that they may even have ended.
        """
        words = [word for each in attempts for word in (each.entry, each.number, each.id)]
        if not words:
            return set()
        named = {"under_way": self._under_way, "words": words, **of}
        return set(await node.run(_begin, **named, **self._metrics, **self._events, **self._common))

    async def gone(self, node: "Instance", stream: str, entries: Iterable[bytes]) -> None:
        """Note that jobs have ended that nobody settles."""
        if words := [*entries]:
            named = {"under_way": self._under_way, "dead": self._dead, "stream": stream, "words": words}
            await node.run(_gone, **named, **self._events, **self._common)
