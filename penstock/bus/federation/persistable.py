"""A persisted object of another site."""

import json
from typing import Any, ClassVar

from penstock.base.encoding import encoded
from penstock.bus.federation.remote import Remote
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.persistable import Persistable


class RemoteObject(Remote):
    """The fields of an object at another site."""

    EVENTS: ClassVar = Remote.FEDERATION
    TYPE = "persistify"
    HEARD = ()

    async def touch(self, seconds: int) -> bool:
        """Ask the other end to keep the object alive for ``seconds``; return False if it says that it is gone."""
        await self.wait_ready()
        if self.has_more:
            return (await self.call("ptouch", seconds)) is not False
        self.send_call("ptouch", seconds)
        return True


class FederatedPersistable(Persistable):
    """An object that is kept at another site: see ``Persistable``. ``remote`` has the events of ``FederatedQueue``."""

    def __init__(self, bus: Host, site: Site, local: Persistable) -> None:
        super().__init__(bus, local.name, local.value, local.fields)
        self.remote = RemoteObject(bus, site, [local.name, {}, local.fields])

    async def _write(self, texts: dict[str, str], *, whole: bool) -> bool:
        if not whole and not await self._read():
            return False
        await self.remote.call("pwrite", self._key, {name: json.loads(text) for name, text in texts.items()})
        return True

    async def _read(self) -> dict[str, bytes]:
        found: dict[str, Any] | None = await self.remote.call("pread", self._key)
        return {name: encoded(text) for name, text in (found or {}).items()}

    async def _touch(self) -> bool:
        """Keep it alive; Node's server does so for a minute, whatever the ttl."""
        return await self.remote.touch(self.seconds)

    async def leave(self) -> None:
        """Let go of the object."""
        await super().leave()
        await self.remote.leave()
