"""The format of a test file."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from penstock.testing.spec.schema import Count, Declared, EachPaths, Environ, Message, Patterns, Seconds

STEP_SECONDS: Final = 20.0
"""Default time limit of a step."""
QUIET_SECONDS: Final = 0.3
"""Default time without a change after which a step is over."""
VERBS: Final = ("kill", "stop", "pause", "restart", "flush", "spoil", "every")
ALL: Final = "*"
"""Every process of the test."""


class Messages(Declared):
    """Messages: a list, the lines of a file, the numbers from 1, or those that the test has pushed."""

    messages: list[Message] | None = None
    lines: str | None = None
    """A file with one message a line, relative to the composition's folder."""
    numbers: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    pushed: str | None = None
    """The list to which they were pushed; ``""`` for all lists."""
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
        """Return the messages, oldest first. Raise ``OSError`` if the file cannot be read."""
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
    """What is expected of one list; all conditions must hold. The order is that of arrival, oldest first."""

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
        """Yield the messages to compare with, by key."""
        found = (("equal", self.equal), ("anyOrder", self.any_order), ("atLeastOnce", self.at_least_once))
        yield from ((name, each) for name, each in (*found, ("contains", self.contains)) if each is not None)


class Fault(Declared):
    """One fault, its trigger and its duration."""

    kill: str | None = None
    """A process to end with ``kill -9``; it is started again after ``for``."""
    stop: str | None = None
    """A process to end with SIGTERM, which it must obey; it is started again after ``for``."""
    pause: str | None = None
    """A process to suspend with SIGSTOP, until SIGCONT after ``for``."""
    restart: str | None = None
    """A server to kill; it is started again after ``for`` with all that it had confirmed, since that is on disk."""
    flush: str | None = None
    """A server whose scripts to flush."""
    spoil: str | None = None
    """A list to replace by a string; it is put back after ``for``."""
    every: str | None = None
    """A process, or ``ALL``: the test runs again for each fault (cut, kill) at each of its injection points."""
    after: Count | Annotated[dict[str, Count], Field(min_length=1, max_length=1)] | None = None
    """Trigger: after N messages pushed in this step, or once a list holds N. Default: after the last push."""
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
        """Return the number of messages to push before it; infinity for all."""
        if self.every and self.after is None:
            return 0
        return inf if self.after is None or isinstance(self.after, dict) else self.after

    @property
    def seen(self) -> tuple[str, int] | None:
        """Return the list that triggers it and the number of messages there; None for another trigger."""
        return next(iter(self.after.items())) if isinstance(self.after, dict) else None

    @property
    def lasts(self) -> float:
        """Return the duration in seconds."""
        usual = 1.0 if self.verb in ("pause", "spoil") else 0.0
        return usual if self.seconds is None else self.seconds

    def __str__(self) -> str:
        return f"{self.verb} {self.target}"


Faults = Annotated[list[Fault], BeforeValidator(lambda value: [{"every": ALL}] if value == "every" else value)]
"""``every`` alone means every point of all processes."""


class Step(Declared):
    """Messages to push, list by list, faults to inject meanwhile, and what to expect of all lists then."""

    push: dict[str, Messages] = Field(default_factory=dict)
    faults: Faults = Field(default_factory=list)
    expect: Annotated[dict[str, Expectation], Field(min_length=1)]
    within: Seconds | None = None


class Test(Step):
    """A test: one step, and further ones in ``then``."""

    name: Annotated[str, Field(min_length=1)]
    processes: Annotated[list[str], Field(min_length=1)] | None = None
    """Those to start; a props file, too, by its name without the ending."""
    environ: dict[str, Environ] = Field(default_factory=dict)
    """Variables by process, for example a shorter time-out."""
    quiet: Seconds = QUIET_SECONDS
    """Seconds without a change after which a step is over."""
    then: list[Step] = Field(default_factory=list)

    __test__ = False

    @property
    def steps(self) -> list[Step]:
        return [self, *self.then]


class File(Declared):
    """A test file; ``processes``, ``environ`` and ``within`` are defaults for its tests."""

    tests: Annotated[list[Test], Field(min_length=1)]
    processes: Annotated[list[str], Field(min_length=1)] | None = None
    environ: dict[str, Environ] = Field(default_factory=dict)
    within: Seconds = STEP_SECONDS
