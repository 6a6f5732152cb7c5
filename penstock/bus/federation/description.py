"""What a queue of another site says of itself."""

from collections.abc import Mapping
from typing import Any

from penstock.base.encoding import decoded, parse_whole
from penstock.base.errors import WrongCall
from penstock.bus.description import as_text
from penstock.bus.federation.remote import Remote
from penstock.bus.numbers import check_field


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
        return int(await self._ask("count"))

    async def exists(self) -> bool:
        """As ``Queue.exists``."""
        return bool(await self.call("exists"))

    async def ttl(self) -> int | None:
        """As ``Queue.ttl``."""
        return parse_whole(await self._ask("ttl"))

    async def maxsize(self) -> int | None:
        """As ``Queue.maxsize``."""
        return parse_whole(await self._ask("maxsize"))

    async def find(self) -> str | None:
        """As ``Queue.find``, at the other site."""
        found: str | None = await self.call("find")
        return found

    async def metadata(self) -> dict[str, str]:
        """As ``Queue.metadata``."""
        found: dict[str, str] | None = await self._ask("metadata")
        return found or {}

    async def get_metadata(self, field: str) -> str | None:
        """As ``Queue.get_metadata``."""
        check_field(field)
        found: str | None = await self._ask("metadata", field)
        return found

    async def set_metadata(self, fields: Mapping[str, object]) -> None:
        """As ``Queue.set_metadata``."""
        for name in fields:
            check_field(name)
        texts = {name: decoded(as_text(each)) for name, each in fields.items()}
        if not texts:
            return
        if self.has_more or len(texts) != 1:
            await self._ask("metadata", texts)
        else:
            await self._ask("metadata", *next(iter(texts.items())))

    async def _ask(self, method: str, *values: Any) -> Any:
        """Call a method that Node's server does not survive before ``attach``."""
        await self.wait_ready()
        if self._attached is None and not self.has_more:
            raise WrongCall(f"queue {self.name}: expected `attach` before `{method}`: it is a server of Node's busmq")
        return await self.call(method, *values)
