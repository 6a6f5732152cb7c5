"""A persisted object of another site."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from penstock.base.encoding import encoded
from penstock.bus.federation.remote import Remote
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.keys import object_key
from penstock.bus.persistable import Persistable, Store
from penstock.core.objects import wires_of

WHOLE_SINCE: Final = 2
"""The first version of a gateway that writes some fields only if the object exists."""


class RemoteObject(Remote):
    """The fields of an object at another site."""

    EVENTS: ClassVar = Remote.FEDERATION
    TYPE = "persistify"
    HEARD = ()
    ROWS = wires_of(Store)


class RemoteStore(Store):
    """As ``Store``, at another site."""

    def __init__(self, remote: RemoteObject, key: str) -> None:
        super().__init__(remote.bus, key)
        self._remote = remote

    async def read(self) -> dict[str, bytes]:
        found: dict[str, Any] | None = await self._remote.call("pread", self.key)
        return {name: encoded(text) for name, text in (found or {}).items()}

    async def write(self, texts: Mapping[str, str], ttl: int, *, whole: bool) -> bool:
        fields = {name: json.loads(text) for name, text in texts.items()}
        await self._remote.wait_ready()
        if not whole and self._remote.version >= WHOLE_SINCE:
            return await self._remote.call("pwrite", self.key, fields, True) is not None
        if not whole and not await self.read():
            return False
        await self._remote.call("pwrite", self.key, fields)
        return True

    async def touch(self, ttl: int) -> bool:
        """Keep it alive; Node's server does so for a minute, whatever the ``ttl``, and does not answer."""
        await self._remote.wait_ready()
        if self._remote.has_more:
            return (await self._remote.call("ptouch", ttl)) is not False
        self._remote.send_call("ptouch", ttl)
        return True


class FederatedPersistable(Persistable):
    """An object that is kept at another site: see ``Persistable``. ``remote`` has the events of ``FederatedQueue``."""

    def __init__(self, bus: Host, site: Site, local: Persistable) -> None:
        self.remote = RemoteObject(bus, site, [local.name, {}, local.fields])
        store = RemoteStore(self.remote, object_key(local.name))
        super().__init__(bus, local.name, local.value, local.fields, store)

    async def leave(self) -> None:
        """Let go of the object."""
        await super().leave()
        await self.remote.leave()
