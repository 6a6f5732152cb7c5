"""The connections of one process: to the server of its lists, and to that of its registrations."""

from redis.asyncio import Redis
from redis.exceptions import MovedError

from common.settings.base import ServiceSettings
from penstock.core.connection import MAX_SILENCE, change_login, connect, find_anew
from penstock.core.raw_connection import RawConnection


class Connections:
    """``redis`` is the client for the lists, ``registry`` for the registrations: the same one for the same URL."""

    def __init__(self, settings: ServiceSettings, name: str) -> None:
        self._settings, self._name = settings, name
        self.redis = connect(settings.redis, name=name)
        elsewhere = settings.service_redis not in (None, settings.redis)
        self.registry = connect(str(settings.service_redis), name=name) if elsewhere else self.redis
        self.raw: list[RawConnection] = []
        """Connections to the lists on which a service waits and settles."""

    def new_raw(self) -> RawConnection:
        self.raw.append(RawConnection.to(self._settings.redis, self._name))
        return self.raw[-1]

    @property
    def to_lists(self) -> "list[Redis]":
        return [self.redis, *(raw.redis for raw in self.raw)]

    async def use(self, settings: ServiceSettings) -> None:
        """Connect with the logins of ``settings`` from now on."""
        before, self._settings = self._settings, settings
        if settings.redis != before.redis:
            for raw in self.raw:
                await raw.close()
            for redis in self.to_lists:
                await change_login(redis, settings.redis)
        registry = settings.service_redis
        if registry and registry != before.service_redis and self.registry is not self.redis:
            await change_login(self.registry, registry)

    async def after(self, error: Exception) -> None:
        """Let all connections find their server anew if ``error`` says that it is lost, or is another one now."""
        await find_anew(error, *self.to_lists)
        if self.registry is not self.redis and not isinstance(error, MovedError):
            await find_anew(error, self.registry)

    async def cut_silent(self) -> None:
        """Close raw connections on which an answer is overdue."""
        for raw in self.raw:
            await raw.cut_if_silent(self._settings.longest_wait + MAX_SILENCE)

    async def close(self) -> None:
        for raw in self.raw:
            await raw.close()
        for redis in (*self.to_lists, self.registry):
            await redis.aclose()
