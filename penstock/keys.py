"""The names of all keys, made here and nowhere else (docs/keys.md is the reader's view of this file)."""

import re
from glob import escape
from typing import Final

DIRECTORY: Final = "penstock:registered"
"""The one key of a server that is below no namespace."""


class Keys:
    """Key names of one namespace, e.g. ``Keys("demo:mpush").instance("9") == "demo:mpush:9"``."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.counter = f"{namespace}:id"
        self.ids = f"{namespace}:ids"
        self.owners = f"{namespace}:owners"
        self.holdings = f"{namespace}:holdings"
        self.held = f"{namespace}:held"
        self.accepted = f"{namespace}:accepted"
        self.lists = f"{namespace}:lists"
        self.shape = f"{namespace}:shape"
        self.changes = f"{namespace}:changes"
        self.lease = f"{namespace}:lease"
        self.events = f"{namespace}:events"
        self.event_marks = f"{namespace}:events:marks"
        self.done = f"{namespace}:done"
        self.dead = f"{namespace}:dead"
        self.policy = f"{namespace}:policy"
        self.deaths = f"{namespace}:deaths"
        self.sequence = f"{namespace}:sequence"
        self.link = f"{namespace}:link"
        self.message_counter = f"{namespace}:message:id"
        self.message_ids = f"{namespace}:message:ids"
        self.deadlines = f"{namespace}:message:deadlines"
        self.delayed = f"{namespace}:message:delayed"
        self.answers = f"{namespace}:message:answers"
        self.answers_more = f"{namespace}:message:answers:more"
        self.pushed = f"{namespace}:message:pushed"
        self.looks = f"{namespace}:message:looks"
        self.due = f"{namespace}:message:due"
        """A channel, not a key: says that something falls due before all that was due so far."""

    @property
    def fixed(self) -> frozenset[str]:
        """All names above."""
        return frozenset(key for key in vars(self).values() if key != self.namespace)

    @property
    def kinds(self) -> dict[str, str]:
        """The type that each key above must have."""
        lists = (self.ids, self.done, self.dead, self.message_ids)
        zsets = (self.owners, self.event_marks, self.deadlines, self.delayed, self.answers)
        strings = (self.counter, self.shape, self.message_counter)
        return (
            dict.fromkeys(self.fixed - {self.due}, "hash")
            | dict.fromkeys(lists, "list")
            | dict.fromkeys(zsets, "zset")
            | dict.fromkeys(strings, "string")
            | {self.events: "stream"}
        )

    @property
    def directories(self) -> tuple[str, ...]:
        """Where the services of a server write their lists for each other.

        On a Redis Cluster only the key with the namespace's own hash tag is at hand, so both are written and read.
        """
        tag = re.search(r"\{([^}]+)\}", self.namespace)
        return (DIRECTORY, f"{{{tag[1]}}}:{DIRECTORY}") if tag else (DIRECTORY,)

    def instance(self, id: str) -> str:
        """The registration of one live instance."""
        return f"{self.namespace}:{id}"

    def message(self, id: str) -> str:
        """The record of one tracked message."""
        return f"{self.namespace}:message:{id}"

    def xid(self, xid: str) -> str:
        """Which ids the messages have that a worker calls ``xid``."""
        return f"{self.namespace}:message:xid:{xid}"

    @property
    def replies(self) -> str:
        """The pattern of the lists that requests may name for their answers, unless ``replyLists`` says otherwise."""
        return f"{escape(self.namespace)}:reply:*"

    @property
    def event_keys(self) -> dict[str, str]:
        """The keys of ``lua/parts/events.lua``."""
        return {"events": self.events, "events_written": self.metric("events"), "events_marks": self.event_marks}

    @property
    def answer_keys(self) -> dict[str, str]:
        """The keys of ``lua/parts/answers.lua``."""
        return {
            "answers": self.answers,
            "answers_more": self.answers_more,
            "answers_sent": self.metric("answers"),
        }

    def rollup(self, window: str) -> str:
        """What happened in a window of time, which its start names: ``2026-11-21``, ``...T18``, ``...T18:05``."""
        return f"{self.namespace}:rollup:{window}"

    def metric(self, name: str) -> str:
        return f"{self.namespace}:metrics:{name}"

    def owns(self, name: str) -> bool:
        """Whether the service keeps something of its own at ``name``."""
        families = (self.metric(""), self.instance("message:"), self.rollup(""))
        return (
            name in (*self.fixed, *self.directories)
            or name.startswith(families)
            or bool(re.fullmatch(re.escape(self.instance("")) + "[0-9]+", name))
        )


def pending_of(pending: str, id: str | None) -> str:
    """What instance ``id`` has taken and not settled; ``pending`` itself where instances share it (``id`` is None)."""
    return pending if id is None else f"{pending}:{id}"


def glob_escaped(name: str) -> str:
    """``name`` as a literal inside a MATCH pattern of SCAN."""
    return "".join(f"\\{letter}" if letter in "*?[]^-\\" else letter for letter in name)
