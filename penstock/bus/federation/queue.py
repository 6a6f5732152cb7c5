"""A queue of another site, with the methods of a local one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Final, Unpack

from penstock.base.encoding import decoded, encoded, parse_whole
from penstock.base.errors import Full, Gone, PenstockError, Unauthorized, Unavailable, Unconfirmed, WrongCall
from penstock.base.payload import Payload, as_payload
from penstock.bus.consumption import Dispatcher
from penstock.bus.federation.remote import Answer, Lost, Remote, Silent, error_of
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.keys import check_attaching, check_field, check_id
from penstock.bus.message import Message
from penstock.bus.mode import Mode, ModeOptions, running, to_busmq
from penstock.bus.queue import Queue, as_text
from penstock.core.batches import MAX_BYTES, batches, payload_batches
from penstock.core.instance import OVERDUE_SECONDS

MAX_UNDER_WAY: Final = 4
"""Maximum number of calls of one ``push_many`` under way."""
CALL_BYTES: Final = 2_048
"""Bytes of a call besides its messages."""
Push = tuple[bytes, "asyncio.Future[int]"]
CREDIT: Final = 200
"""After how many messages the other end may send as many more."""
ROUND: Final = 1_000
"""Maximum number of messages that Node's server sends at a time; then it stops, and is asked for more."""
PLACES: Final = frozenset({"limit", "after_id", "start"})
"""Options that depend on what was handed out already."""


class Acks:
    """The acknowledgements of one queue."""

    def __init__(self, queue: "FederatedQueue") -> None:
        self._queue = queue
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._sender: asyncio.Task[None] | None = None

    def add(self, id_: int, future: "asyncio.Future[None]") -> None:
        """Acknowledge all messages up to ``id_``; ``future`` is done once the other end has it."""
        self._waiting.append((id_, future))
        if self._sender is None:
            self._sender = self._queue.bus.spawn(self._send())

    async def settle(self) -> None:
        """Wait until all is acknowledged, or has failed."""
        if self._sender:
            await asyncio.gather(self._sender, return_exceptions=True)

    async def _send(self) -> None:
        while self._waiting:
            acks, self._waiting = self._waiting, []
            error: PenstockError | None = None
            try:
                await self._queue.acknowledge(max(id_ for id_, _ in acks))
            except PenstockError as found:
                error = found
            for _, future in acks:
                if future.done():
                    continue
                if error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            for each in self._queue.consumptions:
                each.note_acknowledged()
        self._sender = None


class Pushes:
    """The pushes of one queue."""

    def __init__(self, queue: "FederatedQueue") -> None:
        self._queue = queue
        self._outgoing: list[Push] = []
        self._unanswered = 0
        """Messages that were sent one by one, and whose ids have not come."""
        self._sender: asyncio.Task[None] | None = None

    def push(self, body: bytes) -> "asyncio.Future[int]":
        """Push one message, together with others of this turn of the loop."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting, queue = len(self._outgoing) + self._unanswered, self._queue
        if waiting >= queue.bus.buffer and queue.is_away:
            why = f"for {queue.site.url}" if queue.was_attached else "for `attach`"
            future.set_exception(Unavailable(f"queue {queue.name}: {waiting:,} pushes wait {why} already (buffer)"))
            return future
        self._outgoing.append((body, future))
        if self._sender is None:
            self._sender = queue.bus.spawn(self._send())
        return future

    async def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], *, json: bool) -> list[int]:
        """Push ``messages`` in batches, some of them under way at once; return their ids."""
        ids, under_way = list[int](), deque[Answer]()
        try:
            async for batch in payload_batches(messages, partial(as_payload, json=json), self._most):
                if len(under_way) >= MAX_UNDER_WAY:
                    ids += self._ids(await under_way[0])
                    del under_way[0]
                await self._queue.wait_attached()
                while self._sender:  # what was pushed before comes first
                    await asyncio.shield(self._sender)
                under_way += self._begin([decoded(body) for body in batch])
            while under_way:
                ids += self._ids(await under_way[0])
                del under_way[0]
        except (Lost, Silent) as error:
            raise _unconfirmed(error) from None
        except Full as error:
            later = await asyncio.gather(*[*under_way][1:], return_exceptions=True)
            for found in later:
                with suppress(PenstockError):
                    ids += self._ids(found) if isinstance(found, list) else []
            ids += error.ids
            raise Full(f"{error}; {len(ids):,} were pushed", sorted(ids)) from None
        finally:
            for answer in under_way:
                if not answer.cancel() and not answer.cancelled():
                    answer.exception()  # nobody else asks for it
        return ids

    @property
    def _most(self) -> int:
        """Return how many bytes of messages fit into a call, whatever they are: JSON makes six of some."""
        return min(MAX_BYTES, max(1, (self._queue.max_frame - CALL_BYTES) // 6))

    async def settle(self) -> None:
        """Wait until what was pushed one by one has been sent."""
        if self._sender:
            await asyncio.gather(self._sender, return_exceptions=True)

    async def end(self, error: PenstockError) -> None:
        """Fail what waits, perhaps for an ``attach``."""
        _fail(self._outgoing, error)
        if self._sender:
            self._sender.cancel()
            await self.settle()

    async def _send(self) -> None:
        """Push what waits, as often as the site has come back."""
        try:
            while self._outgoing:
                await self._queue.wait_attached()
                outgoing, self._outgoing = self._outgoing, []
                for batch in batches(outgoing, lambda each: len(each[0]), self._most):
                    self._send_batch(batch)
                await asyncio.sleep(0)
            self._queue.emit("drain")
        except PenstockError as error:
            _fail(self._outgoing, error)
        finally:
            self._sender = None

    def _send_batch(self, batch: list[Push]) -> None:
        answers = self._begin([decoded(body) for body, _ in batch])
        size = len(batch) // len(answers)
        for place, answer in enumerate(answers):
            self._then(answer, [future for _, future in batch[place * size : (place + 1) * size]])

    def _begin(self, bodies: list[str]) -> list[Answer]:
        """Push messages in one call, or in one for each at Node's server."""
        calls = self._queue.calls
        if self._queue.has_more:
            return [calls.begin("pushAll", bodies)]
        return [calls.begin("push", body) for body in bodies]

    def _ids(self, values: list[Any]) -> list[int]:
        """Return the ids in the answer to a push. Raise ``Full`` with those before, or what the other end says."""
        error, found = values[0] if values else None, values[1] if len(values) > 1 else []
        ids = [int(each) for each in (found if isinstance(found, list) else [] if found is None else [found])]
        if error is not None and not str(error).startswith("Full: "):
            raise error_of(error)
        self._queue.pushed += len(ids)
        if error is not None or not ids:
            raise Full(f"queue {self._queue.name} is full: it holds as many messages as its maxsize", ids)
        return ids

    def _then(self, answer: Answer, pushes: "list[asyncio.Future[int]]") -> None:
        """Resolve ``pushes`` with what the other end answers: one id, or one of each."""
        self._unanswered += len(pushes)

        def ended(answer: Answer) -> None:
            self._unanswered -= len(pushes)
            try:
                _resolve(pushes, self._ids(answer.result()), None)
            except (Lost, Silent, asyncio.CancelledError) as error:
                _resolve(pushes, [], _unconfirmed(error))
            except Full as error:
                _resolve(pushes, error.ids, Full(str(error)))
            except PenstockError as error:
                _resolve(pushes, [], error)

        answer.add_done_callback(ended)


def _resolve(pushes: "list[asyncio.Future[int]]", ids: list[int], error: Exception | None) -> None:
    """Give each push its id; ``error`` is of those behind."""
    for place, push in enumerate(pushes):
        if push.done():
            continue
        if place < len(ids):
            push.set_result(ids[place])
        else:
            push.set_exception(error or Unconfirmed("push: no id came back"))


def _unconfirmed(reason: BaseException) -> Unconfirmed:
    return Unconfirmed(f"push: it may have been executed or not: {reason}")


def _fail(waiting: list[Push], error: Exception) -> None:
    for _, future in waiting:
        if not future.done():
            future.set_exception(error)
    waiting.clear()


class FederatedConsumption(Dispatcher):
    """What ``FederatedQueue.consume`` returns: see ``Consumption``.

    A gateway of Penstock sends no more than it may. Node's server sends all that it has, so it is asked for some
    messages, and for more once they were handed out; in reliable mode once they were acknowledged.
    """

    queue: "FederatedQueue"

    def __init__(self, queue: "FederatedQueue", mode: Mode) -> None:
        super().__init__()
        self.queue, self.mode, self.reliable, self.exclusive = queue, mode, mode.reliable, mode.exclusive
        self.runs = False
        self._taken: deque[Message] = deque()
        self._handed = self._unreported = 0
        """Messages that were handed out, and those of them that the other end does not know of."""
        self._last_id = mode.after_id
        self._skipped = 0
        """Messages up to ``after_id`` that Node's server has sent: it reads from a place only."""
        self._more = asyncio.Event()
        self._ended = self._asked = False
        self._error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[Message]:
        if self._iterates:
            raise WrongCall("the queue is consumed by another loop: take another `bus.queue(...)` for this one")
        try:
            while await self.fetch():
                while message := self.next_taken():
                    if self._unreported >= CREDIT:
                        self._report()
                    yield message
        finally:
            await self.stop()

    def next_taken(self) -> Message | None:
        """Return the next message that has come already, if any. Any thread may call it."""
        try:
            message = self._taken.popleft()
        except IndexError:
            return None
        self._handed += 1
        self._unreported += 1
        self._last_id = message.id
        self.queue.consumed += 1
        return message

    def take_back(self, message: Message) -> None:
        """Hand out ``message`` again as the next one, or give it back at the end."""
        self._taken.appendleft(message)
        self._handed -= 1
        self._unreported -= 1
        self.queue.consumed -= 1

    async def fetch(self) -> bool:
        """Begin if it has not; wait for a message. Return False once there shall be no more."""
        if not self._iterates:
            self._iterates = True
            await self._begin()
        self._report()
        while not self._taken and not self._ended and self._left != 0:
            self._more.clear()
            self._ask()
            await self._more.wait()
        if self._error:
            raise self._error
        return bool(self._taken) and not self._ended

    async def stop(self) -> None:
        """End it: what came and was not handed out goes back."""
        if self not in self.queue.consumptions:
            return
        was_running, self._asked = self.runs and self._asked, False
        self.ended(None)
        if was_running:
            await self.queue.end_consuming(self._unreported, reads=not self.mode.remove)

    def ended(self, error: Exception | None) -> None:
        """End it here: the other end has, or will not hear of it."""
        self._ended, self._error = True, self._error or error
        self._taken.clear()
        self._more.set()
        if self in self.queue.consumptions:
            self.queue.consumptions.remove(self)
        if self.runs:
            self.runs = False
            self.queue.emit("consuming", False)

    def received(self, pairs: list[Any]) -> None:
        """Take messages that have come: text and id of each."""
        for text, id_ in pairs:
            if self._skips and id_ <= self.mode.after_id:
                self._skipped += 1
            elif self.mode.remove or self._left is None or len(self._taken) < self._left:
                self._taken.append(Message(encoded(text), id_, self.queue))
        self._more.set()

    def note_consuming(self, consuming: bool) -> None:
        """Note that the other end has begun, or has stopped, e.g. since it has sent what was asked for."""
        if not consuming and self._asked:
            self._asked = False
            self._more.set()

    def note_error(self, error: PenstockError) -> None:
        """Raise ``error`` in the loop if it is why the other end has stopped."""
        if self.runs and not self._asked:
            self._error = error

    def note_acknowledged(self) -> None:
        """Ask for more of what is only sent once all before it was acknowledged."""
        self._more.set()

    def restart(self) -> None:
        """Forget what came and was not handed out, since the websocket was lost: it comes again."""
        self._taken.clear()
        self._unreported = 0
        self._asked = False

    async def replay(self) -> None:
        """Consume again after a reconnect."""
        if self.runs and not self._ended and not self._asked:
            await self._consume()
            self._error = None  # of the outage that is over

    async def _begin(self) -> None:
        try:
            while True:
                try:
                    await self._consume()
                    break
                except Lost:
                    continue
        except PenstockError:
            self.ended(None)
            raise
        self.runs = True
        self.queue.emit("consuming", True)
        self._note_started()

    async def _consume(self) -> None:
        await self.queue.wait_attached()
        mode, left = self.mode, self._left
        options: dict[str, Any] = {name: value for name, value in asdict(mode).items() if name not in PLACES}
        if self.reliable:
            options["after_id"] = self.queue.acknowledged
        elif not mode.remove:
            options |= {"after_id": self._last_id, "start": mode.start + self._skipped + self._handed}
        if left is not None:
            options["limit"] = left
        if not self.queue.has_more:
            options["limit"] = ROUND if left is None or self._skips else min(left, ROUND)
        self._asked = True
        try:
            await self.queue.begin_consuming(to_busmq(options))
        except BaseException:
            self._asked = False
            raise

    @property
    def _left(self) -> int | None:
        """Return how many messages may be handed out yet; None without limit."""
        return None if self.mode.limit is None else max(0, self.mode.limit - self._handed)

    @property
    def _skips(self) -> bool:
        """Return whether messages up to ``after_id`` may come, which are not to be handed out."""
        return not self.mode.remove and not self._handed and not self.queue.has_more

    def _ask(self) -> None:
        """Have Node's server send more, if all that it has sent was handed out, and acknowledged if it is reliable."""
        if self._asked or not self.runs or not self.queue.is_attached or not self.queue.is_ready:
            return
        if self.queue.has_more:
            self.ended(self._error)
            return
        if self.reliable and self.queue.acknowledged < self._last_id:
            return
        self._asked = True
        self.queue.bus.spawn(self._ask_again())

    async def _ask_again(self) -> None:
        try:
            await self._consume()
        except Lost:
            return
        except PenstockError as error:
            self.ended(error)

    def _report(self) -> None:
        many, self._unreported = self._unreported, 0
        self.queue.send_handled(many)


class FederatedQueue(Remote):
    """One queue of another site: see ``Queue``. ``leave`` lets go of it; ``close`` destroys it.

    Further events: ``ready`` once it can be used, ``reconnecting`` (why), ``reconnected``, ``unauthorized`` if the
    other site refuses the secret or the name, ``close`` after ``leave``.
    """

    EVENTS: ClassVar = Queue.EVENTS | Remote.FEDERATION
    TYPE = "queue"
    HEARD = ("error", "attached", "consuming", "closed", "detached")

    def __init__(self, bus: Host, site: Site, name: str) -> None:
        self.name = name
        self.pushed = self.consumed = 0
        """Messages that this object has pushed and handed out."""
        self.consumptions: list[FederatedConsumption] = []
        """The one that runs, if any."""
        self._attached: dict[str, Any] | None = None
        """The options of ``attach`` once it was called."""
        self._is_there = self._closed = False
        self._attaching = asyncio.Event()
        self._pushes, self._acks = Pushes(self), Acks(self)
        self.acknowledged = 0
        """The last id that was acknowledged in the consumption that runs."""
        super().__init__(bus, site, [name])

    @property
    def is_attached(self) -> bool:
        """Return whether messages can be pushed and consumed."""
        return self._is_there

    @property
    def was_attached(self) -> bool:
        """Return whether ``attach`` was called, though the site may be away."""
        return self._attached is not None

    @property
    def is_away(self) -> bool:
        """Return whether nothing can be pushed, or an answer is overdue."""
        return not self._is_there or self.calls.overdue > OVERDUE_SECONDS

    @property
    def is_consuming(self) -> bool:
        """Return whether messages are being consumed."""
        return any(each.runs for each in self.consumptions)

    async def attach(self, *, ttl: int = 30, maxsize: int = 0, discoverable: bool = False) -> bool:
        """As ``Queue.attach``."""
        if self._attached is not None:
            raise WrongCall(f"queue {self.name}: attached already")
        check_attaching(ttl, maxsize)
        options = {"ttl": int(ttl), "maxsize": int(maxsize), "discoverable": bool(discoverable)}
        self.emit("attaching")
        await self.wait_ready()
        self._closed = False
        self._attached = options  # so that a websocket that is lost meanwhile does not matter
        try:
            exists = bool(await self.cause("attached", "attach", options))
        except PenstockError as error:
            if self._is_there:  # attached when the websocket was opened again
                return True
            self._attached = None
            self.emit("error", error)
            raise
        self._note_attached(exists)
        return exists

    async def detach(self) -> None:
        """As ``Queue.detach``."""
        if self._attached is None:
            return
        self.emit("detaching")
        await self.stop()
        await self._pushes.settle()
        await self._acks.settle()
        await self.end_with("detached", "detach", self._forget)
        self._gone()
        self.emit("detached")

    def push(self, message: Payload | Any, *, json: bool = False) -> "asyncio.Future[int]":
        """As ``Queue.push``. Raise ``Unconfirmed`` if the websocket was lost before the answer."""
        self._bus.check_connected()
        return self._pushes.push(as_payload(message, json=json))

    async def push_many(self, messages: Iterable[Payload] | AsyncIterable[Payload], *, json: bool = False) -> list[int]:
        """As ``Queue.push_many``."""
        return await self._pushes.push_many(messages, json=json)

    def note_refused(self, error: Unauthorized) -> None:
        """End the consumption as well: a loop that waited would wait for ever."""
        super().note_refused(error)
        for each in tuple(self.consumptions):
            each.ended(error)

    def consume(self, **options: Unpack[ModeOptions]) -> FederatedConsumption:
        """As ``Queue.consume``. What was handed out when a websocket is lost may come again."""
        mode = Mode.of(options)
        if self.consumptions:
            return running(self.consumptions[0], mode)
        self.acknowledged = mode.after_id
        self.consumptions.append(FederatedConsumption(self, mode))
        return self.consumptions[0]

    async def stop(self) -> None:
        """As ``Queue.stop``."""
        for each in tuple(self.consumptions):
            await each.stop()

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """As ``Queue.ack``. Node's server does not confirm it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        check_id(id)
        if self._attached is None:
            future.set_exception(WrongCall(f"queue {self.name}: expected `attach` before `ack`"))
        elif self.consumptions and not self.consumptions[0].reliable:
            future.set_result(None)
        else:
            self.acknowledged = max(self.acknowledged, id)
            self._acks.add(id, future)
        return future

    async def close(self) -> None:
        """As ``Queue.close``. Raise ``Unconfirmed`` if the websocket was lost before the answer: then attach anew."""
        if self._attached is None:
            raise WrongCall(f"queue {self.name}: expected `attach` before `close`")
        await self.stop()
        await self.end_with("closed", "close", self._forget)
        self._note_closed()

    async def flush(self) -> None:
        """As ``Queue.flush``. Raise ``Unconfirmed`` if the websocket was lost before the answer."""
        await self._ask("flush")

    async def leave(self) -> None:
        """Let go of the queue: the other end detaches, and gives back what was not handed out."""
        for each in tuple(self.consumptions):
            each.ended(None)
        await super().leave()
        self._gone()
        await self._pushes.end(WrongCall(f"queue {self.name}: it was left"))

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

    @property
    def heard(self) -> tuple[str, ...]:
        return (*self.HEARD, "messages" if self.has_more else "message")

    async def replay(self) -> None:
        """Attach and consume again, as before the websocket was lost."""
        if self._attached is not None:
            if not self._is_there:
                self._note_attached(bool(await self.until("attached", "attach", self._attached)))
            for each in self.consumptions:
                await each.replay()

    def happened(self, event: str, values: list[Any]) -> None:
        if event in ("message", "messages"):
            pairs = values if event == "messages" else [values]
            for each in self.consumptions:
                each.received(pairs)
        elif event == "closed":
            self._note_closed()
        elif event == "consuming":
            for each in tuple(self.consumptions):
                each.note_consuming(bool(values and values[0]))
        elif event == "error":
            error = error_of(values[0] if values else "")
            for each in self.consumptions:
                each.note_error(error)
            self.emit("error", error)

    def dropped(self) -> None:
        self._is_there = False
        self._attaching.clear()
        for each in self.consumptions:
            each.restart()

    async def begin_consuming(self, options: dict[str, Any]) -> None:
        """Begin at the other end."""
        await self.until("consuming", "consume", options)

    async def end_consuming(self, handled: int, *, reads: bool) -> None:
        """End at the other end; what was not handled goes back, except at Node's server, which does not confirm it.

        What it has sent until then must not come to a next consumption that ``reads`` from another place.
        """
        if not self._is_there:
            return
        self.send_handled(handled)
        with suppress(PenstockError):
            if self.has_more:
                await self.calls.request("stop")
            elif reads:
                await self.calls.until("consuming", "stop")
                await self.calls.request("exists")  # behind the read that is under way at Node's server
            else:
                self.send_call("stop")

    async def acknowledge(self, last: int) -> None:
        """Acknowledge all messages up to ``last``, and wait for the answer of a gateway of Penstock."""
        await self.wait_ready()
        if self.has_more:
            await self.call("ack", last)
        else:
            self.send_call("ack", last)

    def send_handled(self, many: int) -> None:
        """Let the other end send as many more messages."""
        if many and self.has_more and self._is_there:
            self.send_call("handled", many)

    async def wait_attached(self) -> None:
        """Wait for ``attach``, and for the site. Raise ``Gone`` after the queue was closed, else as ``wait_ready``."""
        async with self._bus.bounded(lambda: f"queue {self.name} is not attached"):
            while not self._is_there:
                if self._closed:
                    raise Gone(f"queue {self.name} was closed: attach to it anew")
                await self.wait_ready()
                await self._attaching.wait()

    def _note_attached(self, exists: bool) -> None:
        if not self._is_there:
            self._is_there = True
            self._attaching.set()
            self.emit("attached", exists)

    def _note_closed(self) -> None:
        if self._attached is not None or self._is_there:
            self._closed = True
            self._gone()
            for each in tuple(self.consumptions):
                each.ended(None)
            self._attaching.set()
            self._attaching.clear()
            self.emit("closed")

    def _forget(self) -> Callable[[], None]:
        options, self._attached = self._attached, None

        def restore() -> None:
            self._attached = options

        return restore

    def _gone(self) -> None:
        self._attached, self._is_there = None, False
        self._attaching.clear()

    async def _ask(self, method: str, *values: Any) -> Any:
        """Call a method that Node's server does not survive before ``attach``."""
        await self.wait_ready()
        if self._attached is None and not self.has_more:
            raise WrongCall(f"queue {self.name}: expected `attach` before `{method}`: it is a server of Node's busmq")
        return await self.call(method, *values)
