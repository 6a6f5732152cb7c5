"""The tracking of messages as pure Python: what must be on record after every step (docs/tracking.md).

Time is a whole number of seconds that only ``advance`` moves.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

TIMEOUT: Final = 700
EXPIRE: Final = 4000
ATTEMPTS: Final = 3
BACKOFF: Final = (300, 500)
CAPACITY: Final = 8


@dataclass(frozen=True)
class Request:
    """A payload, and what it says of itself."""

    payload: bytes
    xid: str = ""
    kind: str = ""
    reply_to: str = ""
    delay: int = 0
    bad: bool = False


@dataclass(frozen=True)
class Word:
    """What a worker says: an entry of the done list, or an answer. It names a message by one or both of the two."""

    entry: bytes
    verdict: str
    """``done``, ``failed``, ``final``, ``touch``, ``answer`` or ``bad``."""
    id: int = 0
    xid: str = ""
    attempt: int = 0
    """0 where it does not say."""
    seconds: int = 0


@dataclass
class Message:
    id: int
    request: Request
    registered: int
    attempt: int
    due: int
    """Its deadline, or when it will be delivered; what the zsets are sorted by."""
    order: int
    """Of those that are due at the same time the one that was scheduled first comes first."""
    expires: int
    where: str
    """``flight``, ``delayed`` (also for a retry) or nowhere."""
    recorded: bool = True
    delivered: int = 0
    deadline: int = 0
    number: int = 0
    """Which one it was of all that were pushed to ``out``, in its last delivery."""
    error: str | None = None
    final: bool = False
    dead: str = ""
    """The reason."""

    @property
    def seen(self) -> str:
        """What a monitor compares to know whether anything has changed."""
        if not self.recorded:
            return ""
        return f"{self.attempt}{'e' * (self.error is not None)}{'f' * self.final}"


@dataclass
class Chain:
    """The messages in flight with one xid, the oldest first; or a dead one."""

    kind: str
    ids: list[int]
    expires: int
    dead: bool = False


@dataclass(frozen=True)
class Planned:
    """What a monitor means to do with a message that it saw due."""

    id: int
    seen: str
    action: str
    wait: int = 0


@dataclass(frozen=True)
class Meant:
    """A word, and the message that it was taken for; none is 0."""

    word: Word
    id: int
    xid: str = ""
    ambiguous: bool = False
    """Said by a number that is the xid of this message and the id of another."""
    late: bool = False
    """More time was asked for an attempt that is over."""


@dataclass
class Model:
    accept_late: bool = False
    now: int = 0
    order: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    """The newest first."""
    pushed: int = 0
    """How many were ever pushed to ``out``."""
    out: Counter[bytes] = field(default_factory=Counter)
    letters: Counter[tuple[str, bytes, int]] = field(default_factory=Counter)
    """Reason, payload, attempts."""
    replies: dict[str, list[bytes]] = field(default_factory=dict)
    """What each list for answers got; an error by its reason and attempts."""
    events: list[tuple[str, str, str]] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    spent: dict[str, list[int]] = field(default_factory=lambda: {"done": [], "timeout": []})

    def __getitem__(self, where: str) -> list[Message]:
        """Those that are in ``flight``, or ``delayed``, as they fall due."""
        found = [message for message in self.messages.values() if message.where == where]
        return sorted(found, key=lambda message: (message.due, message.order, str(message.id)))

    def count(self, metric: str, *fields: str, by: int = 1) -> None:
        for name in ("count", *fields):
            self.counts[metric, name] += by

    def tell(self, event: str, id: int, attempt: object) -> None:
        self.events.append((event, str(id), str(attempt)))
        self.count("events")

    # Requests

    def push(self, requests: Sequence[Request], ids: Iterable[int]) -> None:
        """One batch; ``ids`` are those that the messages got, if they were tracked."""
        given = iter(ids)
        room = CAPACITY - len(self["flight"]) - len(self["delayed"])
        self.order += 1
        order, tracked, delayed = self.order, 0, 0
        for request in requests:
            self.count("taken", "out")
            if request.bad:
                self.count("dead", "badRequest")
                self.letters["badRequest", request.payload, 0] += 1
                continue
            if request.delay:
                delayed += 1
                self.count("registered")
                self.delay(request, next(given), order)
                continue
            self.out[request.payload] += 1
            self.pushed += 1
            self.count("delivered", "out")
            if tracked + delayed >= room:
                self.count("untracked")
                continue
            tracked += 1
            self.order += 1
            self.count("registered")
            self.track(request, next(given))
        if tracked:
            del self.ids[CAPACITY:]

    def delay(self, request: Request, id: int, order: int) -> None:
        due = self.now + request.delay
        self.messages[id] = Message(id, request, self.now, 0, due, order, due + EXPIRE, "delayed")
        self.tell("registered", id, 0)
        self.tell("delayed", id, 0)

    def track(self, request: Request, id: int) -> None:
        due = self.now + TIMEOUT
        message = Message(id, request, self.now, 1, due, self.order, self.now + EXPIRE, "flight")
        message.delivered, message.deadline, message.number = self.now, due, self.pushed
        self.messages[id] = message
        self.ids.insert(0, id)
        self.link(message)
        self.tell("registered", id, 1)

    def link(self, message: Message) -> None:
        xid = message.request.xid
        chain = self.chains.get(xid)
        if chain is None or chain.dead:
            chain = self.chains[xid] = Chain(message.request.kind, [], 0)
        chain.ids.append(message.id)
        chain.expires = self.now + EXPIRE

    def unlink(self, xid: str, id: int) -> Chain | None:
        """The chain as it was."""
        chain = self.chains.get(xid)
        if chain and id in chain.ids:
            chain.ids.remove(id)
            if not chain.ids:
                del self.chains[xid]
        return chain

    # What workers say

    def mean(self, words: Sequence[Word]) -> list[Meant]:
        """Which messages a batch of words is about, as of now; those that need more time get it."""
        said: Counter[tuple[str, str]] = Counter()
        meant = []
        for word in words:
            found = self.messages.get(word.id)
            by_id = found if found and found.recorded else None
            called = self.called(word, said) if word.verdict != "bad" and word.xid else 0
            if called:
                meant.append(Meant(word, called, word.xid, by_id is not None and by_id.id != called))
            elif by_id and word.verdict != "bad":
                meant.append(Meant(word, by_id.id, by_id.request.xid))
            else:
                meant.append(Meant(word, 0))
        return [self.touch(one) if one.word.verdict == "touch" and one.id else one for one in meant]

    def called(self, word: Word, said: Counter[tuple[str, str]]) -> int:
        """The message in flight, or dead, with that xid; of several the next one that was not ``said`` yet."""
        nth = 0
        if word.verdict != "touch":
            way = word.xid, "failed" if word.verdict in ("failed", "final") else "done"
            nth = said[way]
            said[way] += 1
        ids = chain.ids if (chain := self.chains.get(word.xid)) else []
        if chain and chain.dead:
            return ids[0]
        return ids[nth] if nth < len(ids) else 0

    def touch(self, meant: Meant) -> Meant:
        message, seconds = self.messages[meant.id], meant.word.seconds
        if message.where != "flight" or not message.recorded:
            return meant
        if meant.word.attempt and meant.word.attempt < message.attempt:
            return replace(meant, late=True)
        message.due = message.deadline = max(self.now + seconds, message.due)
        message.expires = max(message.expires, self.now + seconds + EXPIRE)
        if chain := self.chains.get(message.request.xid):
            chain.expires = max(chain.expires, self.now + seconds + EXPIRE)
        self.count("touched")
        self.tell("touched", message.id, message.attempt)
        return meant

    def hear(self, batch: Sequence[Meant], behind: Sequence[Word] = ()) -> None:
        """Carry out a batch and what waits ``behind`` it; words whose message is gone mean another one, or none."""
        while batch:
            self.order += 1
            again = []
            stays = set[str]()
            for meant in batch:
                if (meant.xid or meant.word.xid) in stays and meant.word.verdict not in ("touch", "bad"):
                    again.append(meant.word)
                elif not self.carry_out(meant, stays):
                    self.unlink(meant.xid, meant.id)
                    again.append(meant.word)
            self.trim(2 * len(batch))
            batch, behind = self.mean([*again, *behind]), ()

    def carry_out(self, meant: Meant, stays: set[str]) -> bool:
        """Return False if the message is gone; note in ``stays`` the xid of one that a late word leaves."""
        word = meant.word
        if word.verdict == "bad":
            self.count("dead", reason := "badAnswer" if word.entry.startswith(b"answer") else "badDone")
            self.letters[reason, word.entry, 0] += 1
        elif not meant.id:
            self.count("done:unknown")
        elif meant.late:
            self.count("done:late")
        elif word.verdict != "touch":
            message = self.messages[meant.id]
            if not message.recorded:
                return False
            if meant.ambiguous:
                self.counts["done", "ambiguous"] += 1
            fails = word.verdict in ("failed", "final")
            if message.dead:
                self.count("done:late")
            elif word.attempt and word.attempt < message.attempt and (fails or not self.accept_late):
                self.count("done:late")
                stays.add(message.request.xid)
            elif not (self.fail(message, word) if fails else self.end(message, word)):
                self.count("done:unknown")
        return True

    def fail(self, message: Message, word: Word) -> bool:
        if message.where != "flight":
            return False
        message.error = "no luck"
        message.final |= word.verdict == "final"
        message.due, message.order = self.now, self.order
        self.count("failed")
        self.tell("failed", message.id, message.attempt)
        return True

    def end(self, message: Message, word: Word) -> bool:
        overdue = message.where != "flight"
        if overdue and message.attempt == 0:
            return False
        late = overdue or (word.attempt or message.attempt) < message.attempt
        self.unlink(message.request.xid, message.id)
        message.where, message.recorded = "", False
        if late:
            self.count("done:late", "completed")
        else:
            seconds = self.now - message.delivered
            self.spent["done"].append(seconds)
            self.count("done", f"histo{min(seconds * 10 // (message.deadline - message.delivered) * 10, 100)}")
        self.tell("late" if late else "done", message.id, min(word.attempt or message.attempt, message.attempt))
        if word.verdict == "answer":
            self.pass_on(message.request.reply_to, word.entry)
        return True

    def pass_on(self, reply_to: str, answer: bytes) -> None:
        if reply_to:
            self.count("answers")
            self.replies.setdefault(reply_to, []).append(answer)
        else:
            self.count("dead", "badAnswer")
            self.letters["badAnswer", answer, 0] += 1

    def trim(self, most: int) -> None:
        for _ in range(most):
            if not self.ids or self.messages[self.ids[-1]].where:
                break
            self.ids.pop()
        if not self["flight"] and not self["delayed"]:
            self.ids.clear()

    # What is due

    def look(self) -> list[Planned]:
        """What a monitor sees that is due, and means to do."""
        overdue = [message for message in self["flight"] if message.due <= self.now]
        ready = [message for message in self["delayed"] if message.due <= self.now]
        return [*map(self.plan, overdue), *(Planned(each.id, each.seen, self.first(each)) for each in ready)]

    @staticmethod
    def first(message: Message) -> str:
        return "deliver" if message.recorded else "expired"

    @staticmethod
    def plan(message: Message) -> Planned:
        if not message.recorded:
            return Planned(message.id, "", "expired")
        if message.final or message.attempt >= ATTEMPTS:
            return Planned(message.id, message.seen, "timeout" if message.error is None else "failed")
        wait = BACKOFF[min(message.attempt, len(BACKOFF)) - 1]
        return Planned(message.id, message.seen, "retry", wait)

    def act(self, plans: Sequence[Planned]) -> None:
        """Do what was planned with those that are as they were."""
        acted = 0
        for plan in plans:
            message = self.messages[plan.id]
            there = {"flight": {"expired", "retry", "timeout", "failed"}, "delayed": {"expired", "deliver"}}
            if plan.action in there.get(message.where, ()) and message.due <= self.now and message.seen == plan.seen:
                acted += 1
                self.order += 1
                self.act_on(message, plan)
        if acted:
            self.trim(2 * acted)

    def act_on(self, message: Message, plan: Planned) -> None:
        message.where = ""
        if plan.action == "expired":
            self.count("expired")
            self.tell("expired", message.id, "")
            return
        if plan.action == "deliver":
            self.deliver(message)
            return
        if message.error is None:
            self.spent["timeout"].append(self.now - message.delivered)
            self.count("timeout", "histo100")
            self.tell("timeout", message.id, message.attempt)
        if plan.action == "retry":
            message.where, message.due, message.order = "delayed", self.now + plan.wait, self.order
        else:
            self.bury(message, plan.action)

    def deliver(self, message: Message) -> None:
        message.attempt += 1
        self.out[message.request.payload] += 1
        self.pushed += 1
        message.number = self.pushed
        message.delivered, message.error, message.final = self.now, None, False
        message.deadline = message.due = self.now + TIMEOUT
        message.where, message.order = "flight", self.order
        if message.attempt == 1:
            self.link(message)
            message.expires = self.now + EXPIRE
            self.ids.insert(0, message.id)
        if message.attempt == 1:
            self.count("delivered", "out")
        else:
            self.count("retry")
        self.tell("delivered" if message.attempt == 1 else "retry", message.id, message.attempt)

    def bury(self, message: Message, reason: str) -> None:
        request = message.request
        chain = self.unlink(request.xid, message.id)
        message.dead, message.expires, message.final = reason, self.now + EXPIRE, False
        if chain and request.xid not in self.chains:
            self.chains[request.xid] = Chain(chain.kind, [message.id], self.now + EXPIRE, dead=True)
        self.letters[reason, request.payload, message.attempt] += 1
        if request.reply_to:
            self.count("answers")
            self.replies.setdefault(request.reply_to, []).append(b"%b %d" % (reason.encode(), message.attempt))
        self.count("dead", reason)
        self.tell("dead", message.id, message.attempt)
        message.error = None

    # Time, and people

    def advance(self, seconds: int) -> None:
        self.now += seconds
        for message in self.messages.values():
            if message.recorded and message.expires <= self.now:
                self.forget(message.id)
        self.chains = {xid: chain for xid, chain in self.chains.items() if chain.expires > self.now}

    def forget(self, id: int) -> None:
        """Somebody deletes its record, or its life is over."""
        self.messages[id].recorded = False
