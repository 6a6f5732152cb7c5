"""Settings of hrouter."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha1
from typing import Annotated, Any, ClassVar

from annotated_types import MinLen
from pydantic import PlainValidator

from common.settings.base import PromptSettings
from common.settings.fields import IN_FILE, YEAR, Whole, setting
from common.settings.roles import In, Pending, PopTimeout, ReplyLists, Role
from common.settings.validation import ItemProblems
from common.settings.validation import Rule as Check
from common.settle import MAX_OUTS
from penstock.base.keys import glob_escaped
from penstock.base.shape import Shape
from services.hrouter.breaker import MAX_LISTS, gates_of
from services.hrouter.coverage import unreachable
from services.hrouter.expressions import is_slow
from services.hrouter.rule import Rule
from services.hrouter.table import Table


@dataclass(frozen=True)
class RouteRole(Role):
    """The role of the lists that rules name."""

    def names(self, value: object) -> list[str]:
        rules = value if isinstance(value, list) else []
        return list(dict.fromkeys(rule.to for rule in rules if rule.to and not rule.disabled))


def _parsed(written: object) -> list[Rule]:
    """Return the rules. Raise ``ItemProblems`` for those that cannot be used, or that no request reaches."""
    if not isinstance(written, list):
        raise ValueError("expected a list of rules, or the name of a YAML file with one")
    if written and all(isinstance(one, Rule) for one in written):
        return written
    problems, rules = list[tuple[int, str]](), list[Rule]()
    for place, one in enumerate(written):
        try:
            rules.append(Rule.parse(one))
        except ValueError as error:
            problems.append((place, str(error)))
    if not problems:
        problems = [(place, _hidden_by(rules[first], first)) for place, first in unreachable(rules)]
    if problems:
        raise ItemProblems(problems)
    Table(rules)
    return rules


def _hidden_by(rule: Rule, place: int) -> str:
    return f"no request reaches this rule: item {place + 1} ({rule}) matches all of them before"


def letters_need_a_namespace(redis_namespace: str | None) -> str | None:
    return "missing: expected a name, under which dead letters and metrics lie" if redis_namespace is None else None


def answers_need_lists(reply_lists: list[str], rules_: list[Rule]) -> str | None:
    if reply_lists or not any((rule.response or rule.breaker) and not rule.disabled for rule in rules_):
        return None
    return "a rule answers requests: expected in replyLists the lists that replyTo may name, such as web:res:*"


def lists_fit_a_batch(rules_: list[Rule], batch: int) -> str | None:
    lists = len({rule.to for rule in rules_})
    if lists + batch > MAX_OUTS:
        return f"rules name {lists:,} lists: expected at most {MAX_OUTS - batch:,} with batch {batch:,}"
    return None


def breakers_fit_a_look(rules_: list[Rule]) -> str | None:
    lists = len(gates_of(rules_))
    return f"breakers count {lists:,} lists: expected at most {MAX_LISTS:,}" if lists > MAX_LISTS else None


class Settings(PromptSettings):
    """Settings of hrouter, which moves each request to the list of the first rule that matches it."""

    service: ClassVar[str] = "hrouter"
    buries: ClassVar[bool] = True
    rules: ClassVar[tuple[Check, ...]] = (
        *PromptSettings.rules,
        letters_need_a_namespace,
        answers_need_lists,
        lists_fit_a_batch,
        breakers_fit_a_look,
    )

    in_: In = setting("name", "The list that himporter pushes requests to.")
    pending: Pending
    rules_: Annotated[list[Rule], PlainValidator(_parsed), MinLen(1), IN_FILE, RouteRole("out", "writes")] = setting(
        "list of rules", "The rules, first match first; or the name of a YAML file that has them under the name rules."
    )
    reply_lists: ReplyLists = setting(
        "list of names", "The lists that replyTo may name, and patterns (* ? [abc]), for answers of rules.", []
    )
    reply_expire: Whole = setting(
        "seconds", "Seconds that a list for answers lives if an answer has created it.", 60, least=1, most=YEAR
    )
    pop_timeout: PopTimeout = 10
    batch: Whole = setting("messages", "Maximum number of requests that are taken at a time.", 500, least=1, most=1_000)
    batch_bytes: Whole = setting(
        "bytes",
        "Bytes after which no more requests are taken at a time.",
        2_097_152,
        least=1,
        most=536_870_912,
    )

    @property
    def replies(self) -> list[str]:
        """Return the reply lists, and patterns of them, that requests may name."""
        return self.reply_lists

    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {self.redis: tuple(self.reply_lists)}

    def reads(self) -> dict[str, tuple[str, ...]]:
        """Return the lists whose lengths breakers read."""
        return {self.redis: tuple(glob_escaped(name) for rule in self.rules_ for name in rule.waits)}

    def metrics(self) -> tuple[str, ...]:
        return (*super().metrics(), "broken")

    def shape(self) -> Shape:
        """Return the place of hrouter; blame for each list the first rule that names it."""
        shape, given = super().shape(), self._given.get("rules_")
        if given and given.file:
            first = {rule.to: place for place, rule in reversed([*enumerate(self.rules_)])}
            lines = {name: f"{given.file}:{given.line_of(place)}" for name, place in first.items()}
            shape.ends = [replace(end, origin=lines[end.key]) if end.setting == "rules" else end for end in shape.ends]
        return shape

    def shown(self) -> dict[str, Any]:
        """Return the settings with the number of rules and a digest, since there may be a thousand."""
        digest = sha1(repr(self.rules_).encode(), usedforsecurity=False).hexdigest()[:8]
        return {**super().shown(), "rules": f"{len(self.rules_):,} rules, digest {digest}"}

    def warnings(self, environ: Mapping[str, str] | None = None) -> list[str]:
        found, given = super().warnings(environ), self._given.get("rules_")
        for place, rule in enumerate(self.rules_):
            if is_slow(rule.expression) and not rule.disabled:
                words = "begins with .*: it is searched anywhere in the path without that, too, and slow with it"
                problem = given.item_problem(place, f"path: {words}") if given else words
                found.append(str(problem))
        return found
