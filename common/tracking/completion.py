"""Carry out what workers report of messages: done, answered, failed, or more time needed."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from common.context import Context
from common.in_flight import counters, counting
from common.isolation import Isolation
from common.tracking import LUA
from common.tracking.reply_lists import ReplyRules
from common.transaction import REFUSED
from penstock.base.encoding import decoded, encoded
from penstock.base.keys import Keys
from penstock.core.link import is_of_script
from penstock.core.read_size import fitting
from penstock.core.script import Script
from penstock.tracking.correlation import as_xid, id_of, is_like_a_number, xid_of
from penstock.tracking.details import seconds_of

_finish, _identify = (Script.read(LUA / f"{verb}.lua") for verb in ("finish", "identify"))

Word = bytes | str
WAYS: Final = {"failed": "failed", "final": "failed", "touch": "touch"}
"""The word for ``identify.lua`` for each verdict; ``done`` for all others."""


AMBIGUOUS: Final = "ambiguous"
"""The verdict ``done`` with a number that is the xid of one message and the id of another."""


class Completion(NamedTuple):
    """One entry, parsed.

    ``id``, ``xid`` and ``other`` are its names for the message: an id or an xid at least, unless the entry is bad. Of
    several that are set, the xid counts if a message with it is tracked, else ``other``, else the id.
    """

    verdict: str
    """A verdict of ``finish.lua``, or ``touch`` for a message that needs ``seconds`` more."""
    id: bytes = b""
    xid: bytes = b""
    attempt: str = ""
    words: Word = ""
    seconds: float = 0
    work: float | None = None
    """Seconds that the worker worked on it."""
    other: bytes = b""
    """An xid that ``xid`` may stand for, too: that of the number 7 for the text "7", or the other way round."""


def attempt_of(value: object) -> str | None:
    """Return the attempt that a worker names, even in quotes; empty if it names none, None if it is no number.

    An attempt that is no number must not count as the current one: a stale worker would end a later attempt.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value if value.isascii() and value.isdigit() else None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def parse_answer(answer: bytes) -> Completion:
    """Parse an answer: a JSON object with the request's ``meta.id``, and perhaps ``meta.attempt`` and ``meta.work``."""
    try:
        id, meta = id_of(answer)
    except (ValueError, RecursionError):
        id, meta = None, {}
    xid = xid_of(id)
    if not xid:
        return Completion("badAnswer", words="expected a JSON object with the request's meta.id")
    other = as_xid(encoded(id)) if type(id) is str and is_like_a_number(id) else b""
    attempt, work = attempt_of(meta.get("attempt")) or "", seconds_of(meta.get("work"))
    return Completion("answer", xid=xid, attempt=attempt, work=work, other=other)


@dataclass(frozen=True)
class CompletionSource:
    """The list with the entries of one namespace, and the policy for them."""

    keys: Keys
    source: str
    pending: str
    """This instance's pending list of ``source``."""
    batch: int
    batch_bytes: int
    history: int
    """Maximum number of events to keep."""
    reply_expire: int = 0
    reply_to: str = ""
    """The list for answers whose request names none; empty for no such list."""
    accept_late: bool = False
    """Whether the end of an earlier attempt ends the message."""
    totals: bool = False
    """Whether the service counts the entries as taken and settled."""


class Completions:
    """Take entries through this instance's pending list; each has its effect once."""

    def __init__(
        self,
        context: Context[Any],
        place: CompletionSource,
        understand: Callable[[bytes], Completion],
        touch: Callable[[bytes, float, str], Awaitable[bool]] | None = None,
        replies: ReplyRules | None = None,
    ) -> None:
        """``replies`` decides which lists may get answers; None if no entry is an answer."""
        self._context, self._place, self._understand, self._touch = context, place, understand, touch
        self._replies = replies
        self._entries: deque[bytes] = deque()
        self._known = self._more = False
        self._isolation = Isolation(context)
        self.comes_in_batches = False
        """Whether several entries came at a time: then those behind the next one are taken with it."""
        named = counters(context.keys, totals=place.totals)
        self._count = counting(place.pending, named)
        keys, ordered = place.keys, context.settings.ordered
        self._named: dict[str, Any] = {
            "pending": place.pending,
            "source": place.source,
            "ids": keys.message_ids,
            "deadlines": keys.deadlines,
            "delayed": keys.delayed,
            **keys.event_keys,
            **keys.answer_keys,
            "letters": keys.dead,
            "done": keys.metric("done"),
            "late": keys.metric("done:late"),
            "unknown": keys.metric("done:unknown"),
            "failed": keys.metric("failed"),
            "dead": keys.metric("dead"),
            "lease": context.keys.lease if ordered and context.keys else None,
            "token": context.token or 0,
            "bytes": place.batch_bytes,
            "life": place.reply_expire,
            "lasting": replies.lasting_words if replies else "[]",
            "accept": int(place.accept_late),
            "history": place.history,
            "due": keys.due,
            **named,
        }
        if place.totals and context.keys:
            self._named["settled"] = context.keys.metric("settled")

    async def take(self, longest: float) -> bool:
        """Wait for an entry, at most ``longest`` seconds; return whether there may be something to do."""
        context, place = self._context, self._place
        if self._known and self.comes_in_batches and not context.is_woken:
            call: dict[str, Any] = {"held": 1, "batch": place.batch, "subjects": [], "entries": []}
            more = context.prepared(_finish, **call, **self._named)
            taken = await context.take(place.source, place.pending, longest, then=more)
            return await self._read_more(taken.message)
        taken = await context.take(place.source, place.pending, longest, count=self._count)
        if taken.message is not None and self._known:
            self._entries.append(taken.message)
        elif taken.anything:
            self._known = False
        return taken.anything

    async def _read_more(self, entry: bytes | None) -> bool:
        """Read what the script has taken right behind ``entry``; return whether there may be something to do."""
        self._known = self.comes_in_batches = False  # until there were several
        reply = await self._context.outcome(_finish, recovers=False)
        if reply is REFUSED:
            await self._context.count(self._count)
        elif reply is not None and entry is not None:
            self._entries.extend((entry, *reply[1]))
            self._known = True
        return True

    async def deliver(self) -> None:
        """Carry out what is pending and what waits behind it, until nothing waits or the run must end."""
        while True:
            if not self._known:
                pending: Any = await self._context.redis.lrange(self._place.pending, 0, -1)
                self._entries = deque(reversed(pending))
                self._known = self._more = True
            if not self._entries and not (self._more and self._context.running):
                return
            batch = list(islice(self._entries, 1 if self._isolation.alone else self._place.batch))
            await self._settle(batch[: fitting(batch, self._place.batch_bytes)])

    async def _settle(self, batch: list[bytes]) -> None:
        if self._replies:
            await self._replies.refresh()
        held, self._known = len(self._entries), False
        wanted = self._place.batch if self._context.running and held <= len(batch) else 0
        try:
            subjects, entries = await self._identified([self._said(entry) for entry in batch])
            reply = await self._context.run(
                _finish, held=held, batch=wanted, subjects=subjects, entries=entries, **self._named
            )
        except ResponseError as error:
            if not is_of_script(error) or not batch or self._isolation.is_poison:
                raise
            await self._isolation.failed(error, batch)
            self._known = True
            return
        if reply is None:
            return
        self._isolation.passed(len(batch))
        again, taken = reply
        self.comes_in_batches = len(batch) > 1 or bool(taken)
        for _ in batch:
            self._entries.popleft()
        self._entries.extendleft(batch[place - 1] for place in reversed(again))
        self._entries.extend(taken)
        self._known, self._more = True, bool(taken) if wanted else self._more

    def _said(self, entry: bytes) -> Completion:
        """Parse an entry; one with which the script has failed too often becomes a dead letter."""
        if self._isolation.is_poison:
            return Completion("badAnswer" if self._replies else "badDone", words="a script failed with it")
        return self._understand(entry)

    async def _identified(self, said: list[Completion]) -> tuple[list[Word], list[Word]]:
        """Return the arguments of the script: the keys of each entry's message, and what to do with it."""
        record, xid_key = encoded(self._place.keys.message("")), encoded(self._place.keys.xid(""))
        recalled = self._recall(said)
        found = iter(recalled or await self._ask_for([one for one in said if one.id or one.xid]))
        subjects: list[Word] = []
        entries: list[Word] = []
        nobody = self._place.pending
        for one in said:
            verdict, id, xid, answer, words = one.verdict, one.id, one.xid, None, one.words
            if id or xid:
                found_id, found_xid, answer, is_id = (next(found) for _ in range(4))
                if found_id is None:
                    verdict = "unknown"
                elif is_id and found_id != id:
                    verdict = AMBIGUOUS
                id, xid = found_id or id, found_xid or xid
            if recalled:
                verdict, words = "recalled", answer or ""
            if verdict == "touch":
                in_time = self._touch is None or await self._touch(id, one.seconds, one.attempt)
                verdict = "touched" if in_time else "late"
            if verdict == "answer" and (reason := self._refusal(answer)):
                verdict, words, answer = "refused", f"replyTo: {reason}", nobody
            subjects += (record + id, xid_key + xid, answer or self._place.reply_to or nobody)
            entries += (id, verdict, one.attempt if one.work is None else f"{one.attempt}/{one.work:.6f}", words)
        return subjects, entries

    def _refusal(self, answer: Word | None) -> str | None:
        """Return why the list that a request names gets no answer; None if it may, or none is named."""
        name = decoded(answer) if isinstance(answer, bytes) else answer
        return self._replies.refusal(name) if name and self._replies else None

    def _recall(self, said: list[Completion]) -> list[Any]:
        """Resolve answers from the local cache; return [] unless all of them are cached."""
        return []

    async def _ask_for(self, said: list[Completion]) -> list[Any]:
        """Return what ``identify.lua`` finds for the entries."""
        record, xid_key = encoded(self._place.keys.message("")), encoded(self._place.keys.xid(""))
        names: list[Word] = []
        for one in said:
            by_id, by_xid = record + one.id, xid_key + one.xid
            first, second = by_id if one.id else by_xid, by_xid if one.xid else by_id
            names += (first, second, xid_key + one.other if one.other else second)
        ways = [WAYS.get(one.verdict, "done") for one in said]
        asked = {"names": names, "prefix": len(xid_key), "ways": ways}
        return list(await self._context.ask(_identify, **asked)) if names else []
