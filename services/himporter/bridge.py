"""The bridge between requests and lists, without HTTP: push a request, and hand its answer back."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Any, Final

from common.http.access import Access
from common.http.caller import Caller
from common.http.message import IDEMPOTENT, answer_of, failed, parse
from penstock.base.keys import Keys
from penstock.core.batches import batches
from penstock.core.link import LostReply
from penstock.core.raw_connection import Command, Packed, pack, push_parts
from penstock.core.script import Script
from penstock.core.tasks import begin
from penstock.core.wire import Reply
from services.himporter.answer_reader import AnswerReader
from services.himporter.clock import Clock
from services.himporter.waiting import Then, Waiting, WaitingRequest

RETRY_AFTER: Final = 1
"""Seconds after which a client may ask again that got 503."""
REFUSAL_SECONDS: Final = 5.0
"""Seconds after which a refused push is no trouble any more, unless another one is refused."""
CANCELLED_SECONDS: Final = 60
"""Seconds that a cancellation is known beyond the deadline of its request."""
LARGE: Final = 131_072
"""Bytes of requests from which a plain LPUSH is faster than a script, which copies them."""
_push: Final = Script.read(Path(__file__).parent / "lua" / "push.lua")
Build = Callable[[str, str, float, float], bytes]
"""Returns the message of a request by id, list for the answer, deadline (s since the epoch) and seconds until then."""


class Bridge:
    """Accepts requests with ``ask`` from ``start`` to ``close``, once ``become`` has named the instance.

    Requests of one turn of the event loop are pushed together, in batches. One whose push got no reply is pushed again
    if its method is idempotent; any other waits for its answer until its deadline, since the server may have it.
    """

    def __init__(self, url: str, out: str, keys: Keys, timeout: float, most: int, access: Access) -> None:
        self._url, self._keys, self._timeout, self._most = url, keys, timeout, most
        self._count = access.count
        self._loop = asyncio.get_running_loop()
        self.refusal: Exception | None = None
        """Why the server has refused the last push, for a while."""
        self.pushing = {"out": out, **{name: keys.metric(name) for name in ("taken", "settled", "delivered")}}
        """The keys of a script that pushes requests."""
        self._caller = Caller(url, "penstock-himporter-requests", self._opened, self._look)
        self._waiting = Waiting(self._expired)
        self._batch: list[WaitingRequest] = []
        self._again: list[WaitingRequest] = []
        """Idempotent requests that may not have arrived."""
        self._id = self.reply_to = ""
        """Who we are, and the list of our answers."""
        self._next = secrets.randbits(32) << 24  # so that no former instance of the same id has used it
        self._clock = Clock()
        self._refused_at = -inf
        """Loop's time of the last push that the server refused."""
        self._readers: dict[str, tuple[AnswerReader, asyncio.Task[None]]] = {}

    @property
    def is_open(self) -> bool:
        """Return whether requests are accepted."""
        return bool(self._id and self._clock.offset) and self._caller.wire.is_open

    @property
    def now(self) -> float:
        """Return the server's time (s since the epoch)."""
        return self._clock.now

    @property
    def waiting(self) -> int:
        """Return how many requests wait for their answers."""
        return len(self._waiting)

    def start(self) -> None:
        """Connect, and stay connected."""
        self._caller.start()

    async def close(self) -> None:
        """Disconnect; what still waits gets no answer."""
        tasks = [task for _, task in self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._caller.close()
        self._waiting.close()

    def become(self, id: str) -> None:
        """Ask as the instance ``id`` from now on; answers to what was asked under another id still arrive."""
        former, self._id = self._id, id
        if former == id:
            return
        self.reply_to = self._keys.response(id)
        reader = AnswerReader(self._url, self.reply_to, self._answered)
        self._readers[id] = reader, begin(reader.run())
        if former:
            self._loop.call_later(self._timeout, self._retire, former)

    def check(self) -> None:
        """Raise what keeps requests from being accepted, and what ended a task of ours."""
        for _, task in self._readers.values():
            if task.done() and not task.cancelled():
                task.result()
        self._caller.check()
        if self._loop.time() - self._refused_at > REFUSAL_SECONDS:
            self.refusal = None
        trouble = self.refusal or next((reader.trouble for reader, _ in self._readers.values() if reader.trouble), None)
        if trouble:
            raise trouble

    def ask(self, method: str, build: Build, then: Then) -> str | None:
        """Push a request, and call ``then`` with its answer, an error if none comes; return the id of the request.

        If it is not accepted, call ``then`` with the reason at once, and return None.
        """
        if not self.is_open:
            self._count("away")
            then(failed(503, "the server of the lists is away", retry_after=RETRY_AFTER))
            return None
        if len(self._waiting) >= self._most:
            self._count("busy")
            then(failed(503, "too many requests wait for an answer", retry_after=RETRY_AFTER))
            return None
        self._next += 1
        due = self._loop.time() + self._timeout
        request = WaitingRequest(f"{self._id}-{self._next:x}", method, due, then)
        deadline = int((due + self._clock.offset) * 1_000) / 1_000  # faster than ``round``
        request.message = build(request.id, self.reply_to, deadline, self._timeout)
        self._waiting.add(request)
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append(request)
        return request.id

    def fetch(self, words: Command, reply: Reply) -> bool:
        """Send a command; return False if the server is away."""
        return self.is_open and self._caller.fetch(words, reply)

    def call(self, script: Script, then: Callable[[Reply], None], **named: Any) -> bool:
        """Call ``script``, and ``then`` with its reply; return False if the server is away."""
        if not self.is_open:
            return False
        self._caller.call(script, Reply(then), named)
        return True

    def new_request(self, seconds: float) -> tuple[str, float] | None:
        """Return an id that nobody can guess, and the deadline (s since the epoch) in ``seconds``; None while away."""
        if not self.is_open:
            self._count("away")
            return None
        return f"{self._id}-{secrets.token_hex(16)}", round(self.now + seconds, 3)

    def leave(self, id: str, *, forget: bool) -> None:
        """Note that the client of request ``id`` has gone: tell those who work on it, once.

        With ``forget`` its answer cannot be delivered.
        """
        request = self._waiting.take(id) if forget else self._waiting.get(id)
        if request is None or request.is_cancelled:
            return
        request.is_cancelled = True
        self._count("cancelled")
        if self._caller.is_open:
            left = max(0.0, request.due - self._loop.time())
            key, seconds = self._keys.cancelled(id), ceil(left) + CANCELLED_SECONDS
            self._caller.post(("SET", key, 1, "EX", seconds), Reply())
            self._caller.post(("PUBLISH", self._keys.cancellations, id), Reply())

    # Requests

    def _flush(self) -> None:
        """Push the requests of this turn of the loop."""
        batch, self._batch = self._batch, []
        if self._caller.wire.is_open:
            self._push(batch)
            return
        self._count("away", len(batch))
        self._fail(batch, "the server of the lists is away")

    def _push(self, requests: list[WaitingRequest]) -> None:
        for batch in batches(requests, lambda request: len(request.message)):
            messages, pushed = [request.message for request in batch], Reply(partial(self._pushed, batch))
            if sum(map(len, messages)) < LARGE:
                self._caller.call(_push, pushed, {**self.pushing, "large": 0, "messages": Packed.of(messages)})
            else:
                count = _push.by_source(**self.pushing, large=len(batch), messages=[])
                self._caller.transact([push_parts(self.pushing["out"], messages), [pack([count])]], pushed)

    def _pushed(self, batch: list[WaitingRequest], reply: Reply) -> None:
        error = reply.error
        if error is None:
            self.refusal = None
            self._count("pushed", len(batch))
            for request in batch:
                request.message = b""
        elif isinstance(error, LostReply):
            self._count("unconfirmed", len(batch))
            self._again += [request for request in batch if request.method in IDEMPOTENT]
        else:
            self.refusal, self._refused_at = error, self._loop.time()
            self._count("away", len(batch))
            self._fail(batch, "the server of the lists accepts nothing now")

    def _fail(self, batch: list[WaitingRequest], reason: str) -> None:
        for request in batch:
            if self._waiting.take(request.id):
                request.then(failed(503, reason, request.id, RETRY_AFTER))

    def _expired(self, request: WaitingRequest) -> None:
        self._count("timeouts")
        request.then(failed(504, "no answer in time", request.id))

    # Answers

    def _answered(self, answers: Sequence[bytes]) -> None:
        answered = 0
        for text in answers:
            found = parse(text)
            if found is None:
                self._count("malformed")
                continue
            id, message = found
            if "progress" in message:
                continue  # the client waits for the answer itself
            request = self._waiting.take(id)
            if request is None:
                self._count("late")
                continue
            answered += 1
            answer = answer_of(message, id)
            self._count("malformed", answer.is_malformed)
            request.then(answer)
        self._count("answered", answered)

    def _retire(self, id: str) -> None:
        """Read the list of a former id no more: all of its requests are over."""
        if id != self._id and id in self._readers:
            self._readers.pop(id)[1].cancel()

    # The connection

    async def _opened(self) -> None:
        self.refusal = None
        self._clock.set(await self._caller.wire.execute_command("TIME"))
        again, self._again = [each for each in self._again if each.id in self._waiting], []
        if again:
            self._count("repeated", len(again))
            self._push(again)

    async def _look(self) -> None:
        if self._caller.wire.is_open:
            self._clock.read(self._caller.post)
        for reader, _ in self._readers.values():
            reader.cut_if_silent()
