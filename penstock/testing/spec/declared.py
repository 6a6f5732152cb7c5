"""What a test file may say."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from penstock.testing.spec.schema import Count, Declared, EachPaths, Environ, Message, Patterns, Seconds

STEP_SECONDS: Final = 20.0
"""Seconds a step may take where it does not say."""
QUIET_SECONDS: Final = 0.3
"""Seconds without a change after which no more is expected to come."""
VERBS: Final = ("kill", "stop", "pause", "restart", "flush", "spoil", "every")
ALL: Final = "*"
"""Every process of the test."""


class Messages(Declared):
    """A list of them, the lines of a file, the numbers from 1 on, or what the test has pushed."""

    messages: list[Message] | None = None
    lines: str | None = None
    """A file, one message a line; its path begins at the composition's folder."""
    numbers: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    pushed: str | None = None
    """To this list; ``""`` for all lists."""
    skip: Count = 0
    first: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def in_full(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {"messages": value}
        return {"pushed": ""} if value == "pushed" else value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = (self.messages, self.lines, self.numbers, self.pushed)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("expected a list of messages, or one of lines, numbers, pushed")
        return self

    def load(self, directory: Path, pushed: dict[str, list[bytes]]) -> list[bytes]:
        """All of them, oldest first. Raises ``OSError`` where the file cannot be read."""
        if self.pushed is not None:
            found = pushed.get(self.pushed, []) if self.pushed else [each for of in pushed.values() for each in of]
        elif self.lines is not None:
            found = (directory / self.lines).read_bytes().splitlines()
        elif self.numbers is not None:
            found = [b"%d" % number for number in range(1, self.numbers + 1)]
        else:
            found = self.messages or []
        return found[self.skip :][: self.first]


class Expectation(Declared):
    """Of one list, all of it together. The order is that of arrival, oldest first."""

    equal: Messages | None = None
    """These, in this order."""
    any_order: Messages | None = Field(None, alias="anyOrder")
    """These, each as often."""
    at_least_once: Messages | None = Field(None, alias="atLeastOnce")
    """These and no others, each once or more."""
    contains: Messages | None = None
    """These among others, in any order."""
    matches: Patterns | None = None
    """A regular expression that is found in every message, or one a message."""
    json_: EachPaths | None = Field(None, alias="json")
    """Values by JSON path of every message, or an object of them a message."""
    count: Count | None = None
    at_least: Count | None = Field(None, alias="atLeast")

    @classmethod
    def in_full(cls, value: Any) -> Any:
        if isinstance(value, list) or value == "pushed":
            return {"equal": value}
        return {"count": 0} if value == "none" else value

    @model_validator(mode="after")
    def _expects(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("nothing is expected: say equal, anyOrder, atLeastOnce, contains, matches, json or count")
        return self

    def named(self) -> Iterator[tuple[str, Messages]]:
        """What it compares with, by key."""
        found = (("equal", self.equal), ("anyOrder", self.any_order), ("atLeastOnce", self.at_least_once))
        yield from ((name, each) for name, each in (*found, ("contains", self.contains)) if each is not None)


class Fault(Declared):
    """What is broken, when, and for how many seconds."""

    kill: str | None = None
    """A process, with ``kill -9``; started again after ``for``."""
    stop: str | None = None
    """A process, with SIGTERM; it has to end well, and is started again after ``for``."""
    pause: str | None = None
    """A process, with SIGSTOP, ``for`` so long."""
    restart: str | None = None
    """A server: killed, and started again after ``for`` with what it has on disk, which is all that it has answered."""
    flush: str | None = None
    """The scripts of a server."""
    spoil: str | None = None
    """A key that is something else than a list ``for`` so long; what was in it is there again afterwards."""
    every: str | None = None
    """A process, or ``ALL``: the test runs again for each of its points, where it is cut off and killed."""
    after: Count | Annotated[dict[str, Count], Field(min_length=1, max_length=1)] | None = None
    """So many messages pushed in the step, or seen at once in a list; all pushed, where it is not said."""
    seconds: Annotated[float, Field(ge=0, le=3600)] | None = Field(None, alias="for")

    @model_validator(mode="after")
    def _one_verb(self) -> Self:
        if len(self.model_fields_set & set(VERBS)) != 1:
            raise ValueError(f"expected one of {', '.join(VERBS)}")
        if self.every and (self.seconds is not None or self.seen):
            raise ValueError("every point is struck once: expected `after` with a number of messages, and no `for`")
        return self

    @property
    def verb(self) -> str:
        return next(verb for verb in VERBS if getattr(self, verb) is not None)

    @property
    def target(self) -> str:
        return str(getattr(self, self.verb))

    @property
    def count(self) -> float:
        """Messages that are pushed before it: infinitely many where it waits for all."""
        if self.every and self.after is None:
            return 0
        return inf if self.after is None or isinstance(self.after, dict) else self.after

    @property
    def seen(self) -> tuple[str, int] | None:
        """The list that it waits for, and for how many messages in it."""
        return next(iter(self.after.items())) if isinstance(self.after, dict) else None

    @property
    def lasts(self) -> float:
        """Seconds."""
        usual = 1.0 if self.verb in ("pause", "spoil") else 0.0
        return usual if self.seconds is None else self.seconds

    def __str__(self) -> str:
        return f"{self.verb} {self.target}"


Faults = Annotated[list[Fault], BeforeValidator(lambda value: [{"every": ALL}] if value == "every" else value)]
"""``every`` is short for every point of all processes."""


class Step(Declared):
    """What is pushed, list by list; what is broken meanwhile; and what is expected then, all at the same time."""

    push: dict[str, Messages] = Field(default_factory=dict)
    faults: Faults = Field(default_factory=list)
    expect: Annotated[dict[str, Expectation], Field(min_length=1)]
    within: Seconds | None = None


class Test(Step):
    """A test: a step, and what follows it."""

    name: Annotated[str, Field(min_length=1)]
    processes: Annotated[list[str], Field(min_length=1)] | None = None
    """Those to start; a props file may be one, by its name without the ending."""
    environ: dict[str, Environ] = Field(default_factory=dict)
    """Variables by process, such as a shorter time-out."""
    quiet: Seconds = QUIET_SECONDS
    """Seconds that nothing may change before the step counts as over."""
    then: list[Step] = Field(default_factory=list)

    __test__ = False

    @property
    def steps(self) -> list[Step]:
        return [self, *self.then]


class File(Declared):
    """A test file; ``processes``, ``environ`` and ``within`` are for the tests that do not say."""

    tests: Annotated[list[Test], Field(min_length=1)]
    processes: Annotated[list[str], Field(min_length=1)] | None = None
    environ: dict[str, Environ] = Field(default_factory=dict)
    within: Seconds = STEP_SECONDS
