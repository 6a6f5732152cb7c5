"""Tracked work: requests that mdispatch has delivered, and what a worker reports about them."""

import json
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final, Self, cast

from penstock.base.encoding import decoded, encoded, parse_number, parse_whole
from penstock.base.errors import Unsuitable, WrongCall
from penstock.base.keys import Keys
from penstock.base.log import Log, describe
from penstock.base.payload import as_bytes
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES
from penstock.core.consumer import Consumer, Consumers
from penstock.lists.message import Message
from penstock.lists.server import Server
from penstock.lists.source import ListSource
from penstock.tracking.correlation import Correlation, correlation_of, id_as_json
from penstock.tracking.policy import Policy
from penstock.tracking.record import touch

POLICY_SECONDS: Final = 10
"""Seconds for which the names of the lists for reports are used without asking again."""
WORKER_DIED: Final = "its worker has died, and it must not be done twice"
MAX_ERROR_LENGTH: Final = 1_000
"""Characters of an exception that are reported."""
FIELDS: Final = "attempt", "attempts", "deadline"
"""What is read of a request's record."""
_log: Final = Log("penstock.lists")
_as_json: Final = json.JSONEncoder(allow_nan=False).encode


class Request(Message):
    """One request in hand: ``with request: request.answer(...)``.

    The end of the ``with`` reports ``done`` to mdispatch, or the outcome of ``answer`` or ``fail``. Report an exception
    as ``fail`` does and go on with the loop; put the request back if the handler is cancelled. Push the report in the
    transaction that settles the message.
    """

    __slots__ = (
        "_attempt",
        "_begun",
        "_keys",
        "_policy",
        "_report",
        "_server",
        "correlation",
        "deadline",
        "has_ended",
        "id",
        "is_lost",
    )

    def __init__(
        self,
        body: bytes,
        source: "WorkSource",
        correlation: Correlation,
        record: dict[str, str],
        policy: Policy,
        *,
        failures: int = 0,
        is_adopted: bool = False,
        has_ended: bool = False,
    ) -> None:
        super().__init__(body, source, failures)
        self._keys, self._policy, self._server = source.keys, policy, source.server
        self._report: tuple[str, bytes] | None = None
        self._begun = time.monotonic()
        self.correlation = correlation
        self.id: str | None = record.get("id")
        """The id of its record; None if it has none, or if several requests in flight have its xid."""
        self._attempt = parse_whole(record.get("attempt")) or 1
        self.is_lost = is_adopted and 1 in (policy.attempts, parse_whole(record.get("attempts")))
        """Whether its worker has died, and no other one may get it: it has one attempt in all."""
        self.has_ended = has_ended
        """Whether it is a dead letter already, and its sender knows: it has waited for longer than messageTimeout."""
        self.deadline = parse_number(record.get("deadline"))
        """When (s since the epoch, server's clock) another attempt is made, as known when it was taken."""

    @property
    def attempt(self) -> int:
        """The number of this delivery, as mdispatch counts them: 1 for the first."""
        return self._attempt

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
        if not self.correlation.kind.startswith("meta"):
            raise WrongCall("a request without meta.id cannot be answered")
        if not self._policy.res:
            raise WrongCall(f"the mdispatch of {self._keys.namespace} takes no answers: expected its setting res")
        attempt = {} if self.id is None else {"attempt": self.attempt}
        meta = {**reply.get("meta", {}), **attempt, "work": self._work}
        meta.pop("id", None)
        named = f'{{"id": {id_as_json(self.correlation)}, {_as_json(meta)[1:]}'
        rest = _as_json({name: value for name, value in reply.items() if name != "meta"})
        self._say(self._policy.res, f'{{"meta": {named}{", " if len(rest) > 2 else ""}{rest[1:]}')

    def fail(self, error: str, *, retry: bool = True) -> None:
        """End the attempt: the request is tried again later, or never if ``retry`` is False."""
        report: dict[str, Any] = {"error": error[:MAX_ERROR_LENGTH]}
        self._say(self._policy.done, self._report_of(report | ({} if retry else {"retry": False})))

    async def touch(self, seconds: float | None = None) -> float | None:
        """Ask for ``seconds`` more from now, by default messageTimeout; return the deadline.

        Return None if the request is not in flight any more. Raise ``Stale`` if a later attempt is under way, and
        ``Unavailable`` if the server stays away.
        """
        id, redis = self.id, self._server.redis
        if id is None:
            return None
        found = await self._server.patiently(lambda: touch(redis, self._keys, id, seconds, str(self.attempt)), redis)
        self.deadline = found or self.deadline
        return found

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failed = kind is not None and issubclass(kind, Exception)
        if kind is not None and not failed:
            super().__exit__(kind, error, trace)
            return False
        if failed:
            self._report = None
            self._results = None
            self.fail(describe(error) if error else "failed")
        name, report = self._report or (self._policy.done, self._report_of({}).encode())
        self.also_push(name, report)
        super().__exit__(None, None, None)
        if failed:
            _log.warning("request failed", error, namespace=self._keys.namespace, xid=self.xid)
        return failed

    def _report_of(self, words: dict[str, Any]) -> str:
        """Return a report that names the request by id and attempt, or by xid, which ends the oldest of several.

        It says how long the work took, too.
        """
        words = {"work": self._work, **words}
        if self.id is None:
            return f'{{"xid": {id_as_json(self.correlation)}, {_as_json(words)[1:]}'
        return _as_json({"id": int(self.id), "attempt": self.attempt, **words})

    @property
    def _work(self) -> float:
        """Return how many seconds have passed since the ``with`` began."""
        return round(time.monotonic() - self._begun, 6)

    def _say(self, name: str, report: str) -> None:
        if self._report:
            raise WrongCall("a request has one outcome: answer or fail, once")
        self._report = name, report.encode()


class WorkSource(ListSource):
    """Requests in a list, with what their records say."""

    def __init__(
        self, server: Server, source: bytes, prefetch: int, prefetch_bytes: int, keys: Keys, policy: Policy
    ) -> None:
        super().__init__(server, source, prefetch, prefetch_bytes)
        self.keys, self.judges = keys, True
        self._policy, self._read_at = policy, time.monotonic()

    def judge(self, message: Message) -> bool:
        """Drop a request that has ended, and give up one that only a dead worker was allowed to have."""
        request = cast(Request, message)
        if request.has_ended:
            self.holding.settlement.note_end((), request._failures)
            return True
        if not request.is_lost:
            return False
        with request:
            request.fail(WORKER_DIED, retry=False)
        return True

    async def _messages(self, bodies: list[bytes]) -> list[Message]:
        """Return the requests, with what their records say, read in two round trips."""
        correlations = [*map(correlation_of, bodies)]
        if time.monotonic() - self._read_at > POLICY_SECONDS:
            self._policy = await policy_of(self.server, self.keys) or self._policy
            self._read_at = time.monotonic()
        chains = await self._read([(self.keys.xid(decoded(each.xid)), "id", "last", "dead") for each in correlations])
        if ended := sum(dead is not None for _, _, dead in chains):
            _log.info("dropped requests that have ended", namespace=self.keys.namespace, requests=ended)
        ids = [id if last in (None, id) and parse_whole(id or b"") is not None else None for id, last, _ in chains]
        records = await self._read([(self.keys.message(decoded(id or b"0")), *FIELDS) for id in ids])
        known = [
            {"id": decoded(id)} | {name: decoded(value) for name, value in zip(FIELDS, record, strict=True) if value}
            if id and any(record)
            else {}
            for id, record in zip(ids, records, strict=True)
        ]
        return [
            Request(
                body,
                self,
                correlation,
                record,
                self._policy,
                failures=failures,
                is_adopted=place < self.holding.adopted,
                has_ended=dead is not None,
            )
            for place, ((body, failures), correlation, record, (_, _, dead)) in enumerate(
                zip(self.with_failures(bodies), correlations, known, chains, strict=True)
            )
        ]

    async def _read(self, wanted: list[tuple[str, *tuple[str, ...]]]) -> list[list[bytes | None]]:
        """Return the values of ``(key, field, ...)`` each; None for all of a key that is no hash."""
        found = await self.holding.ask([("HMGET", encoded(name), *fields) for name, *fields in wanted])
        return [
            [None] * (len(fields) - 1) if isinstance(each, Exception) else each
            for each, fields in zip(found, wanted, strict=True)
        ]


class Work:
    """The requests of one namespace of mdispatch."""

    def __init__(self, server: Server, consumers: Consumers, namespace: str, source: bytes | str | None) -> None:
        self._server, self._consumers, self._keys, self._source = server, consumers, Keys(namespace), source

    async def requests(
        self, *, prefetch: int = MAX_MESSAGES, prefetch_bytes: int = MAX_BYTES
    ) -> AsyncIterator[Request]:
        """Take requests as ``List.messages`` does: ``async for request in work.requests():``, then ``with request:``.

        Raise ``Unsuitable`` if no mdispatch has begun the namespace.
        """
        consumer = await self.consumer(prefetch, prefetch_bytes)
        try:
            async for message in consumer.messages():
                yield cast(Request, message)
        except GeneratorExit as error:
            await consumer.leave(error)
            raise

    async def consumer(self, prefetch: int, prefetch_bytes: int) -> Consumer[Message]:
        """Return a consumer of the list that the policy of the namespace names."""
        policy = await policy_of(self._server, self._keys)
        if policy is None:
            raise Unsuitable(f"{self._keys.namespace} is no namespace of mdispatch: expected one that has started")
        source = as_bytes(policy.out if self._source is None else self._source)
        found = WorkSource(self._server, source, prefetch, prefetch_bytes, self._keys, policy)
        return Consumer(self._consumers, found, prefetch)


async def policy_of(server: Server, keys: Keys) -> Policy | None:
    """Return the policy that mdispatch has published, None if there is none."""
    return await server.patiently(lambda: Policy.read(server.redis, keys), server.redis)
