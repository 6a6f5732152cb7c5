"""Model of message tracking in pure Python: the expected records after every step (docs/tracking.md).

Time is a whole number of seconds, changed by ``advance`` only.
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
    """A payload with its parsed metadata."""

    payload: bytes
    xid: str = ""
    kind: str = ""
    reply_to: str = ""
    delay: int = 0
    lifetime: int = 0
    """Seconds from its push to its own deadline; 0 for none."""
    bad: bool = False


@dataclass(frozen=True)
class Report:
    """A worker's report on a message: an entry of the done list, or an answer. It names id, xid or both."""

    entry: bytes
    verdict: str
    """``done``, ``failed``, ``final``, ``touch``, ``answer`` or ``bad``."""
    id: int = 0
    xid: str = ""
    attempt: int = 0
    """0 if not given."""
    seconds: int = 0


@dataclass
class Message:
    id: int
    request: Request
    registered: int
    attempt: int
    due: int
    """Deadline or time of delivery: the score in the sorted sets."""
    order: int
    """Order of scheduling, for messages that are due at the same time."""
    expires: int
    where: str
    """``flight``, ``delayed`` (also before a retry), or empty if it has ended."""
    recorded: bool = True
    delivered: int = 0
    deadline: int = 0
    number: int = 0
    """Sequence number of its last delivery among all pushes to ``out``."""
    until: int = 0
    """Its own deadline; 0 for none."""
    error: str | None = None
    final: bool = False
    dead: str = ""
    """Reason of its death; empty if it has not died."""

    @property
    def seen(self) -> str:
        """State that a monitor compares to detect changes."""
        if not self.recorded:
            return ""
        return f"{self.attempt}{'e' * (self.error is not None)}{'f' * self.final}"


@dataclass
class Chain:
    """Messages in flight with one xid, oldest first; or a single dead one."""

    kind: str
    ids: list[int]
    expires: int
    dead: bool = False


@dataclass(frozen=True)
class PlannedAction:
    """Action that a monitor plans for a due message."""

    id: int
    seen: str
    action: str
    wait: int = 0


@dataclass(frozen=True)
class ResolvedReport:
    """A report and the id of the message that it means; 0 if none."""

    report: Report
    id: int
    xid: str = ""
    ambiguous: bool = False
    """True if named by a number that is the xid of this message and the id of another."""
    late: bool = False
    """True for a touch of an attempt that is over."""


@dataclass
class Model:
    accept_late: bool = False
    retry_budget: int | None = None
    """Per cent; None: unlimited."""
    left: int | None = None
    """Hundredths of a retry in the bucket; None before its first use."""
    seen_registered: int = 0
    now: int = 0
    order: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    """Newest first."""
    pushed: int = 0
    """Number of pushes to ``out``."""
    out: Counter[bytes] = field(default_factory=Counter)
    letters: Counter[tuple[str, bytes, int]] = field(default_factory=Counter)
    """Reason, payload, attempts."""
    replies: dict[str, list[bytes]] = field(default_factory=dict)
    """Answers by reply list; an error as its reason and attempts."""
    events: list[tuple[str, str, str]] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    spent: dict[str, list[int]] = field(default_factory=lambda: {"done": [], "timeout": []})

    def __getitem__(self, where: str) -> list[Message]:
        """Return the messages in ``flight`` or ``delayed``, in the order in which they are due."""
        found = [message for message in self.messages.values() if message.where == where]
        return sorted(found, key=lambda message: (message.due, message.order, str(message.id)))

    def count(self, metric: str, *fields: str, by: int = 1) -> None:
        for name in ("count", *fields):
            self.counts[metric, name] += by

    def add_event(self, event: str, id: int, attempt: object) -> None:
        self.events.append((event, str(id), str(attempt)))
        self.count("events")

    # Requests

    def push(self, requests: Sequence[Request], ids: Iterable[int]) -> None:
        """Push one batch; ``ids`` are the ids of its tracked messages."""
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
            if request.lifetime < 0:
                self.count("dropped", "deadline")
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
        self.messages[id].until = request.lifetime and self.now + request.lifetime
        self.add_event("registered", id, 0)
        self.add_event("delayed", id, 0)

    def track(self, request: Request, id: int) -> None:
        due = self.now + TIMEOUT
        message = Message(id, request, self.now, 1, due, self.order, self.now + EXPIRE, "flight")
        message.delivered, message.deadline, message.number = self.now, due, self.pushed
        message.until = request.lifetime and self.now + request.lifetime
        self.messages[id] = message
        self.ids.insert(0, id)
        self.link(message)
        self.add_event("registered", id, 1)

    def link(self, message: Message) -> None:
        xid = message.request.xid
        chain = self.chains.get(xid)
        if chain is None or chain.dead:
            chain = self.chains[xid] = Chain(message.request.kind, [], 0)
        chain.ids.append(message.id)
        chain.expires = self.now + EXPIRE

    def unlink(self, xid: str, id: int) -> Chain | None:
        """Remove ``id`` from the chain of ``xid``; return the chain, None if there was none."""
        chain = self.chains.get(xid)
        if chain and id in chain.ids:
            chain.ids.remove(id)
            if not chain.ids:
                del self.chains[xid]
        return chain

    # Reports of workers

    def resolve(self, reports: Sequence[Report]) -> list[ResolvedReport]:
        """Return which message each report means now; carry out its touches."""
        said: Counter[tuple[str, str]] = Counter()
        resolved = []
        for report in reports:
            found = self.messages.get(report.id)
            by_id = found if found and found.recorded else None
            id_by_xid = self.by_xid(report, said) if report.verdict != "bad" and report.xid else 0
            if id_by_xid:
                resolved.append(
                    ResolvedReport(report, id_by_xid, report.xid, by_id is not None and by_id.id != id_by_xid)
                )
            elif by_id and report.verdict != "bad":
                resolved.append(ResolvedReport(report, by_id.id, by_id.request.xid))
            else:
                resolved.append(ResolvedReport(report, 0))
        return [self.touch(one) if one.report.verdict == "touch" and one.id else one for one in resolved]

    def by_xid(self, report: Report, said: Counter[tuple[str, str]]) -> int:
        """Return the id of the message with the xid, in flight or dead; of several, the next not in ``said``."""
        nth = 0
        if report.verdict != "touch":
            way = report.xid, "failed" if report.verdict in ("failed", "final") else "done"
            nth = said[way]
            said[way] += 1
        ids = chain.ids if (chain := self.chains.get(report.xid)) else []
        if chain and chain.dead:
            return ids[0]
        return ids[nth] if nth < len(ids) else 0

    def touch(self, resolved: ResolvedReport) -> ResolvedReport:
        message, seconds = self.messages[resolved.id], resolved.report.seconds
        if message.where != "flight" or not message.recorded:
            return resolved
        if resolved.report.attempt and resolved.report.attempt < message.attempt:
            return replace(resolved, late=True)
        message.due = message.deadline = max(self.now + seconds, message.due)
        message.expires = max(message.expires, self.now + seconds + EXPIRE)
        if chain := self.chains.get(message.request.xid):
            chain.expires = max(chain.expires, self.now + seconds + EXPIRE)
        self.count("touched")
        self.add_event("touched", message.id, message.attempt)
        return resolved

    def handle(self, batch: Sequence[ResolvedReport], behind: Sequence[Report] = ()) -> None:
        """Carry out a batch, then ``behind``; resolve reports again if their message is gone."""
        while batch:
            self.order += 1
            again = []
            stays = set[str]()
            for resolved in batch:
                if (resolved.xid or resolved.report.xid) in stays and resolved.report.verdict not in ("touch", "bad"):
                    again.append(resolved.report)
                elif not self.carry_out(resolved, stays):
                    self.unlink(resolved.xid, resolved.id)
                    again.append(resolved.report)
            self.trim(2 * len(batch))
            batch, behind = self.resolve([*again, *behind]), ()

    def carry_out(self, resolved: ResolvedReport, stays: set[str]) -> bool:
        """Return False if the message is gone; add its xid to ``stays`` if a late report does not end it."""
        report = resolved.report
        if report.verdict == "bad":
            self.count("dead", reason := "badAnswer" if report.entry.startswith(b"answer") else "badDone")
            self.letters[reason, report.entry, 0] += 1
        elif not resolved.id:
            self.count("done:unknown")
        elif resolved.late:
            self.count("done:late")
        elif report.verdict != "touch":
            message = self.messages[resolved.id]
            if not message.recorded:
                return False
            if resolved.ambiguous:
                self.counts["done", "ambiguous"] += 1
            fails = report.verdict in ("failed", "final")
            if message.dead:
                self.count("done:late")
            elif report.attempt and report.attempt < message.attempt and (fails or not self.accept_late):
                self.count("done:late")
                stays.add(message.request.xid)
            elif not (self.fail(message, report) if fails else self.end(message, report)):
                self.count("done:unknown")
        return True

    def fail(self, message: Message, report: Report) -> bool:
        if message.where != "flight":
            return False
        message.error = "no luck"
        message.final |= report.verdict == "final"
        message.due, message.order = self.now, self.order
        self.count("failed")
        self.add_event("failed", message.id, message.attempt)
        return True

    def end(self, message: Message, report: Report) -> bool:
        overdue = message.where != "flight"
        if overdue and message.attempt == 0:
            return False
        late = overdue or (report.attempt or message.attempt) < message.attempt
        self.unlink(message.request.xid, message.id)
        message.where, message.recorded = "", False
        if late:
            self.count("done:late", "completed")
        else:
            seconds = self.now - message.delivered
            self.spent["done"].append(seconds)
            self.count("done", f"histo{min(seconds * 10 // (message.deadline - message.delivered) * 10, 100)}")
        self.add_event("late" if late else "done", message.id, min(report.attempt or message.attempt, message.attempt))
        if report.verdict == "answer":
            self.pass_on(message.request.reply_to, report.entry)
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

    def plan_due(self) -> list[PlannedAction]:
        """Return the actions that a monitor plans for all due messages."""
        overdue = [message for message in self["flight"] if message.due <= self.now]
        ready = [message for message in self["delayed"] if message.due <= self.now]
        return [*map(self.plan, overdue), *(PlannedAction(each.id, each.seen, self.first(each)) for each in ready)]

    @staticmethod
    def first(message: Message) -> str:
        return "deliver" if message.recorded else "expired"

    @staticmethod
    def plan(message: Message) -> PlannedAction:
        if not message.recorded:
            return PlannedAction(message.id, "", "expired")
        if message.final or message.attempt >= ATTEMPTS:
            return PlannedAction(message.id, message.seen, "timeout" if message.error is None else "failed")
        wait = BACKOFF[min(message.attempt, len(BACKOFF)) - 1]
        return PlannedAction(message.id, message.seen, "retry", wait)

    def act(self, plans: Sequence[PlannedAction]) -> None:
        """Carry out the plans whose messages have not changed."""
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

    def act_on(self, message: Message, plan: PlannedAction) -> None:
        message.where = ""
        if plan.action == "expired":
            self.count("expired")
            self.add_event("expired", message.id, "")
            return
        late = bool(message.until) and message.until <= self.now + plan.wait
        if plan.action == "deliver" and not late:
            self.deliver(message)
            return
        given_up = "timeout" if message.error is None else "failed"
        within_budget = plan.action != "retry" or late or self.may_retry()
        if plan.action == "deliver":
            if not message.attempt:
                self.add_event("queueTimeout", message.id, 0)
            self.bury(message, given_up if message.attempt else "queueTimeout")
            return
        if message.error is None:
            self.spent["timeout"].append(self.now - message.delivered)
            self.count("timeout", "histo100")
            self.add_event("timeout", message.id, message.attempt)
        if not within_budget:
            self.bury(message, "retryBudget")
        elif plan.action == "retry" and not late:
            message.where, message.due, message.order = "delayed", self.now + plan.wait, self.order
        else:
            self.bury(message, given_up if plan.action == "retry" else plan.action)

    def may_retry(self) -> bool:
        if self.retry_budget is None:
            return True
        registered, full = self.counts["registered", "count"], 1000 * self.retry_budget
        left = full if self.left is None else self.left
        self.left = min(left + (registered - self.seen_registered) * self.retry_budget, full)
        self.seen_registered = registered
        if self.left < 100:
            return False
        self.left -= 100
        return True

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
        self.add_event("delivered" if message.attempt == 1 else "retry", message.id, message.attempt)

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
        self.add_event("dead", message.id, message.attempt)
        message.error = None

    # Time and operators

    def advance(self, seconds: int) -> None:
        self.now += seconds
        for message in self.messages.values():
            if message.recorded and message.expires <= self.now:
                self.forget(message.id)
        self.chains = {xid: chain for xid, chain in self.chains.items() if chain.expires > self.now}

    def forget(self, id: int) -> None:
        """Delete or expire the record of ``id``."""
        self.messages[id].recorded = False
