"""Note in the own Redis which queues another site announces, so that ``find`` says where they are."""

import asyncio
import json
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.bus.federation.pubsub import FederatedPubSub
from penstock.bus.federation.site import Site
from penstock.bus.scripts import DISCOVER

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

MAX_TTL: Final = 31_536_000
_log: Final = Log("penstock.bus")


AGAIN_SECONDS: Final = 1.0
"""Seconds between two attempts to listen."""


class Discovery:
    """Listens to the announcements of one site."""

    def __init__(self, bus: "Bus", site: Site, topic: str) -> None:
        self._bus, self._site = bus, site
        self._topic = FederatedPubSub(bus, site, topic)
        self._topic.on("message", self._note)

    async def run(self) -> None:
        """Subscribe, however long it takes."""
        while True:
            try:
                await self._topic.subscribe()
                return
            except PenstockError as error:
                _log.info("no announcements of queues", url=self._site.url, reason=str(error))
                if self._site.refused or self._topic.is_refused or self._topic.is_left:
                    return
                await asyncio.sleep(AGAIN_SECONDS)

    async def _note(self, payload: bytes) -> None:
        try:
            notice = json.loads(payload)
            key, ttl = notice["key"], notice["ttl"]
            if notice["event"] != "queue" or not _is_metadata(key) or type(ttl) is not int or not 0 < ttl <= MAX_TTL:
                return
        except (ValueError, TypeError, LookupError):
            return
        try:
            home = await self._bus.home(key, anew=True)
            await home.run(DISCOVER, metadata=encoded(key), source=self._site.url, ttl=ttl)
        except (PenstockError, RedisError) as error:
            _log.warning("announced queue not noted", key=key, reason=str(error))


def _is_metadata(key: object) -> bool:
    return isinstance(key, str) and key.startswith("bus:queue:") and key.endswith(":metadata")
