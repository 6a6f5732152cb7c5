"""What a queue of another site says of itself."""

from collections.abc import Mapping
from typing import Any

from penstock.bus.federation.remote import Remote
from penstock.encoding import decoded, parse_whole
from penstock.errors import WrongCall


class FederatedDescription(Remote):
    """A queue that is asked about itself; Node's server ends if most of it is asked before ``attach``."""

    name: str
    _attached: dict[str, Any] | None = None
    """The options of ``attach`` once it was called."""

    @property
    def was_attached(self) -> bool:
        """Return whether ``attach`` was called, though the site may be away."""
        return self._attached is not None

    async def count(self) -> int:
        """As ``Queue.count``."""
        self._check_attached("count")
        return int(await self.call("count"))

    async def exists(self) -> bool:
        """As ``Queue.exists``."""
        return bool(await self.call("exists"))

    async def ttl(self) -> int | None:
        """As ``Queue.ttl``."""
        self._check_attached("ttl")
        return parse_whole(await self.call("ttl"))

    async def maxsize(self) -> int | None:
        """As ``Queue.maxsize``."""
        self._check_attached("maxsize")
        return parse_whole(await self.call("maxsize"))

    async def find(self) -> str | None:
        """As ``Queue.find``, at the other site."""
        found: str | None = await self.call("find")
        return found

    async def metadata(self) -> dict[str, str]:
        """As ``Queue.metadata``."""
        self._check_attached("metadata")
        found: dict[str, str] | None = await self.call("metadata")
        return found or {}

    async def get_metadata(self, field: str) -> str | None:
        """As ``Queue.get_metadata``."""
        self._check_attached("get_metadata")
        found: str | None = await self.call("metadata", field)
        return found

    async def set_metadata(self, fields: Mapping[str, object]) -> None:
        """As ``Queue.set_metadata``."""
        self._check_attached("set_metadata")
        texts = {name: _as_text(each) for name, each in fields.items()}
        if self.has_more or len(texts) != 1:
            await self.call("metadata", texts)
        else:
            await self.call("metadata", *next(iter(texts.items())))

    def _check_attached(self, method: str) -> None:
        if self._attached is None:
            raise WrongCall(f"queue {self.name}: expected `attach` before `{method}`")


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return decoded(value)
