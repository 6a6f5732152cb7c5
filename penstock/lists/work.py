"""Tracked work: requests that mdispatch has delivered, and what a worker reports about them."""

import json
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from penstock.encoding import decoded, decoded_fields, encoded
from penstock.errors import Unsuitable, WrongCall
from penstock.keys import Keys
from penstock.lists.consumer import PREFETCH, SIZE, Consumer, Message, as_bytes
from penstock.tracking.correlation import Correlation, correlation_of
from penstock.tracking.policy import Policy
from penstock.tracking.record import touch

if TYPE_CHECKING:
    from penstock.lists.server import Lists

POLICY_SECONDS: Final = 10
"""Seconds for which the names of the lists for reports are used without asking again."""
MAX_ERROR_LENGTH: Final = 1_000
"""Characters of an exception that are reported."""
_log: Final = structlog.get_logger("penstock.lists")


class Request(Message):
    """One request in hand: ``with request: request.answer(...)``.

    The end of the ``with`` reports ``done`` to mdispatch, or the outcome of ``answer`` or ``fail``. Report an exception
    as ``fail`` does and go on with the loop; put the request back if the handler is cancelled. Push the report in the
    transaction that settles the message.
    """

    __slots__ = ("_keys", "_policy", "_redis", "_report", "attempt", "correlation", "deadline", "id")

    def __init__(
        self, body: bytes, consumer: "WorkConsumer", correlation: Correlation, record: dict[str, str], policy: Policy
    ) -> None:
        super().__init__(body, consumer)
        self._redis, self._keys, self._policy = consumer.redis, consumer.keys, policy
        self._report: tuple[str, bytes] | None = None
        self.correlation = correlation
        self.id: str | None = record.get("id")
        """The id of its record; None if it has none, or if several requests in flight have its xid."""
        self.attempt = int(record.get("attempt") or 1)
        """1 for its first delivery."""
        self.deadline: float | None = float(record["deadline"]) if "deadline" in record else None
        """When (s since the epoch, server's clock) another attempt is made, as known when it was taken."""

    @property
    def xid(self) -> str:
        """Return the correlation id: ``meta.id``, the number that the message is, or its SHA-1."""
        return decoded(self.correlation.xid)

    @property
    def meta(self) -> dict[str, Any]:
        """Return the ``meta`` of the message, or {}."""
        return self.correlation.meta

    def answer(self, reply: dict[str, Any]) -> None:
        """End the request with a reply, which mdispatch passes on to the list that its sender named.

        Raise ``WrongCall`` if it has no ``meta.id``, or mdispatch takes no answers (its setting ``res``).
        """
        if self.correlation.kind != "meta":
            raise WrongCall("a request without meta.id cannot be answered")
        if not self._policy.res:
            raise WrongCall(f"the mdispatch of {self._keys.namespace} takes no answers: expected its setting res")
        attempt = {} if self.id is None else {"attempt": self.attempt}
        self._say(self._policy.res, {**reply, "meta": {**reply.get("meta", {}), "id": self.meta["id"], **attempt}})

    def fail(self, error: str, *, retry: bool = True) -> None:
        """End the attempt: the request is tried again later, or never if ``retry`` is False."""
        report: dict[str, Any] = {"error": error[:MAX_ERROR_LENGTH]}
        self._say(self._policy.done, self._named() | report | ({} if retry else {"retry": False}))

    async def touch(self, seconds: float | None = None) -> float | None:
        """Ask for ``seconds`` more from now, by default messageTimeout; return the deadline.

        Return None if the request is not in flight any more. Raise ``Stale`` if a later attempt is under way.
        """
        if self.id is None:
            return None
        found = await touch(self._redis, self._keys, self.id, seconds, str(self.attempt))
        self.deadline = found or self.deadline
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failed = kind is not None and issubclass(kind, Exception)
        if kind is not None and not failed:
            super().__exit__(kind, error, trace)
            return False
        if failed:
            _log.warning("request failed", namespace=self._keys.namespace, xid=self.xid, exc_info=error)
            self._report = None
            self._consumer.drop_results()
            self.fail(f"{type(error).__name__}: {error}")
        name, report = self._report or (self._policy.done, json.dumps(self._named()).encode())
        self.also_push(name, report)
        super().__exit__(None, None, None)
        return failed

    def _named(self) -> dict[str, Any]:
        """Return how a report names the request: by id and attempt, or by xid, which ends the oldest of several."""
        if self.id is None:
            return {"xid": self.xid}
        return {"id": int(self.id), "attempt": self.attempt}

    def _say(self, name: str, report: dict[str, Any]) -> None:
        if self._report:
            raise WrongCall("a request has one outcome: answer or fail, once")
        self._report = name, json.dumps(report).encode()


class WorkConsumer(Consumer):
    """A consumer that reads the record of each request that it takes."""

    def __init__(self, lists: "Lists", source: bytes, prefetch: int, size: int, keys: Keys, policy: Policy) -> None:
        super().__init__(lists, source, prefetch, size)
        self.redis, self.keys = lists.redis, keys
        self._policy, self._read_at = policy, time.monotonic()

    async def _prepare(self, bodies: list[bytes]) -> list[Message]:
        """Return the requests, with their records read in two round trips."""
        correlations = [*map(correlation_of, bodies)]
        if time.monotonic() - self._read_at > POLICY_SECONDS:
            self._policy = await policy_of(self._lists, self.keys) or self._policy
            self._read_at = time.monotonic()
        xids = [encoded(self.keys.xid(decoded(each.xid))) for each in correlations]
        chains = await self._read([("HMGET", xid, "id", "last") for xid in xids])
        ids = [id if last in (None, id) else None for id, last in chains]
        commands = [("HGETALL", encoded(self.keys.message(decoded(id or b"0")))) for id in ids]
        records = [decoded_fields(each) for each in await self._read(commands)]
        known = [record | {"id": decoded(id)} if id and record else {} for id, record in zip(ids, records, strict=True)]
        return [
            Request(body, self, correlation, record, self._policy)
            for body, correlation, record in zip(bodies, correlations, known, strict=True)
        ]

    async def _read(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        async def read() -> list[Any]:
            async with self.redis.pipeline(transaction=False) as wire:
                for command in commands:
                    wire.execute_command(*command)
                return await wire.execute()

        return await self._lists.patience(read, self.redis)


class Work:
    """The requests of one namespace of mdispatch."""

    def __init__(self, lists: "Lists", namespace: str, source: bytes | str | None) -> None:
        self._lists, self._keys, self._source = lists, Keys(namespace), source

    async def requests(self, *, prefetch: int = PREFETCH, size: int = SIZE) -> AsyncIterator[Request]:
        """Take requests as ``List.messages`` does: ``async for request in work.requests():``, then ``with request:``.

        Raise ``Unsuitable`` if no mdispatch has begun the namespace.
        """
        consumer = await self.consumer(prefetch, size)
        try:
            async for message in consumer.messages():
                yield cast(Request, message)
        finally:
            await consumer.leave()

    async def consumer(self, prefetch: int, size: int) -> WorkConsumer:
        """Return a consumer of the list that the policy of the namespace names."""
        policy = await policy_of(self._lists, self._keys)
        if policy is None:
            raise Unsuitable(f"{self._keys.namespace} is no namespace of mdispatch: expected one that has started")
        source = as_bytes(policy.out if self._source is None else self._source)
        return WorkConsumer(self._lists, source, prefetch, size, self._keys, policy)


async def policy_of(lists: "Lists", keys: Keys) -> Policy | None:
    """Return the policy that mdispatch has published, None if there is none."""
    return await lists.patience(lambda: Policy.read(lists.redis, keys), lists.redis)
