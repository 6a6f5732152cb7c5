"""What a queue says of itself: its metadata, and how many messages wait."""

from collections.abc import Mapping
from typing import Final

from penstock.base.encoding import decoded, decoded_fields, encoded, parse_whole
from penstock.base.errors import Gone, WrongCall
from penstock.bus.location import Located
from penstock.bus.numbers import MAX_TTL, check_field, whole
from penstock.bus.scripts import DESCRIBE

OWN_FIELDS: Final = frozenset({"moving", "source", "discover", "last_consumer", "restored"})
"""Fields of the metadata that nobody else may set."""


class Described(Located):
    """A queue that is asked about itself; it need not be attached to."""

    async def count(self) -> int:
        """Return how many messages wait."""
        return int(await (await self._home()).command("LLEN", self.keys.messages)) // 2

    async def ttl(self) -> int | None:
        """Return the ttl (s) of the queue; None if it does not exist."""
        return parse_whole(await self.get_metadata("ttl"))

    async def maxsize(self) -> int | None:
        """Return the most messages that it may hold, 0 without limit; None if it does not exist."""
        return parse_whole(await self.get_metadata("maxsize"))

    async def find(self) -> str | None:
        """Return where the queue is: ``local``, or the URL of another site; None if it is not known."""
        return await self.get_metadata("source")

    async def metadata(self) -> dict[str, str]:
        """Return all fields of the metadata; empty if the queue does not exist."""
        words = await (await self._home()).command("HGETALL", self.keys.metadata)
        return decoded_fields(dict(zip(words[::2], words[1::2], strict=True)))

    async def get_metadata(self, field: str) -> str | None:
        """Return one field of the metadata; None if it does not exist."""
        check_field(field)
        found = await (await self._home()).command("HGET", self.keys.metadata, encoded(field))
        return None if found is None else decoded(found)

    async def set_metadata(self, fields: Mapping[str, object]) -> None:
        """Set ``fields`` of the metadata, and leave the others as they are.

        Values are text; True and False become ``true`` and ``false``. Raise ``Gone`` if the queue does not exist. A
        ``ttl`` holds from the next sign of life of anybody who is attached, at once if it is longer.
        """
        if own := OWN_FIELDS & fields.keys():
            raise WrongCall(f"the bus itself sets {', '.join(sorted(own))}: choose other names")
        if "ttl" in fields and not whole(as_text(fields["ttl"]), MAX_TTL):
            raise WrongCall(f"ttl={fields['ttl']}: expected whole seconds from 1 to 10^9")
        if "maxsize" in fields and whole(as_text(fields["maxsize"])) is None:
            raise WrongCall(f"maxsize={fields['maxsize']}: expected a number from 0 on")
        for name in fields:
            check_field(name)
        words = [word for name, each in fields.items() for word in (encoded(name), as_text(each))]
        if not words:
            return
        ttl = await self.call(DESCRIBE, **self.keys.named, fields=words)
        if not ttl:
            raise Gone(f"queue {self.name} does not exist")
        self.note_ttl(ttl)


def as_text(value: object) -> bytes:
    """Return a value of the metadata as it is stored."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return value if isinstance(value, bytes) else encoded(str(value))
