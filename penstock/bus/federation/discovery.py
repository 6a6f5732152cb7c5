"""Note in the own Redis which queues another site announces, so that ``find`` says where they are."""

import json
from typing import Final

from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.bus.federation.pubsub import FederatedPubSub
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.scripts import DISCOVER
from penstock.core.link import Outage, again

MAX_TTL: Final = 31_536_000
_log: Final = Log("penstock.bus")


class Discovery:
    """Listens to the announcements of one site."""

    def __init__(self, bus: Host, site: Site, topic: str) -> None:
        self._bus, self._site = bus, site
        self._topic = FederatedPubSub(bus, site, topic)
        self._topic.on("message", self._note)

    async def run(self) -> None:
        """Subscribe, however long it takes, unless the site refuses it."""
        outage = Outage(_log, "no announcements of queues", "announcements of queues again", url=self._site.url)
        try:
            await again(self._topic.subscribe, outage, lasts=self._is_final)
        except PenstockError as error:
            outage.begins(error)

    def _is_final(self, error: Exception) -> bool:
        is_over = self._site.refused or self._topic.is_refused or self._topic.is_left
        return bool(is_over) or not isinstance(error, PenstockError)

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
