"""Decide what becomes of each request of a batch: its list, an answer, or a dead letter."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from services.hrouter.breaker import Gate
from services.hrouter.request import BadRequest, Request, parse_request, skim
from services.hrouter.response import NOT_FOUND, busy
from services.hrouter.rule import Rule
from services.hrouter.table import Table


@dataclass
class Routed:
    """What becomes of a batch, as ``Context.settle`` takes it; late requests are in none of these."""

    to: dict[str, list[bytes]] = field(default_factory=dict)
    answers: dict[str, list[bytes]] = field(default_factory=dict)
    dead: list[tuple[bytes, str]] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    """How many of ``answers`` say that a list is too long, by the list."""

    def answer(self, request: Request, answer: bytes) -> None:
        self.answers.setdefault(request.reply_to, []).append(answer)


class Routing:
    """The rules of ``table``; ``refusal`` returns why a list may not get answers, or None; ``gates`` are by list."""

    def __init__(self, table: Table, refusal: Callable[[str], str | None], gates: Mapping[str, Gate] = {}) -> None:
        self._table, self._refusal, self._gates = table, refusal, gates

    def route(self, messages: Iterable[bytes], now: float) -> Routed:
        """Route ``messages`` at time ``now`` (s since the epoch); drop those whose deadline has passed."""
        routed, by_path = Routed(), self._table.by_path
        to, gates, skims = routed.to, self._gates, not self._table.reads_requests
        for message in messages:
            if skims and (skimmed := skim(message)):
                path, deadline = skimmed
                rule = by_path(path)
                if deadline >= now and rule and rule.to in to and (not gates or self._admits(rule, deadline)):
                    to[rule.to].append(message)
                    continue
            self._route(message, now, routed)
        return routed

    def _route(self, message: bytes, now: float, routed: Routed) -> None:
        try:
            request = parse_request(message)
        except BadRequest:
            routed.dead.append((message, "badRequest"))
            return
        if request.deadline < now:
            return
        rule = self._table.find(request)
        if rule and rule.to:
            if self._admits(rule, request.deadline) or self._why_unanswerable(request):
                routed.to.setdefault(rule.to, []).append(message)
            else:
                retry_after = self._gates[rule.to].retry_after(now)
                routed.answer(request, busy(request.id, retry_after, rule.breaker))
                routed.broken[rule.to] += 1
        elif reason := self._why_unanswerable(request):
            routed.dead.append((message, reason))
        else:
            response, expression = (rule.response, rule.expression) if rule and rule.response else (NOT_FOUND, "")
            routed.answer(request, response.to(request.id, request.path, expression))

    def _why_unanswerable(self, request: Request) -> str:
        """Return why ``request`` cannot be answered, as the reason of a dead letter; an empty text if it can."""
        if not request.id or not request.reply_to:
            return "noReplyTo"
        return "badReplyTo" if self._refusal(request.reply_to) else ""

    def _admits(self, rule: Rule, deadline: float) -> bool:
        """Return whether a request goes to the rule's list: unless its turn would come too late, and the rule minds."""
        gate = self._gates.get(rule.to)
        return gate is None or gate.admits(deadline if rule.breaker else inf)
