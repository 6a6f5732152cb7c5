"""Names of all keys. No other module makes one; docs/keys.md documents them."""

import re
from glob import escape
from typing import Final

DIRECTORY: Final = "penstock:registered"
"""The only key outside all namespaces."""


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
        """A channel, not a key: announces a deadline earlier than all others."""

    @property
    def fixed(self) -> frozenset[str]:
        """All names above, without the namespace itself."""
        return frozenset(key for key in vars(self).values() if key != self.namespace)

    @property
    def kinds(self) -> dict[str, str]:
        """The type of each key above."""
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
        """The hashes in which the services of a server publish their lists.

        On a Redis Cluster only the one with the namespace's hash tag is reachable, so both are written and read.
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
        """The ids of the messages with the correlation id ``xid``."""
        return f"{self.namespace}:message:xid:{xid}"

    @property
    def replies(self) -> str:
        """Default of ``replyLists``: a pattern of the lists that requests may name for their answers."""
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
        """The counts of a time window, named by its start: ``2026-11-21``, ``...T18``, ``...T18:05``."""
        return f"{self.namespace}:rollup:{window}"

    def metric(self, name: str) -> str:
        return f"{self.namespace}:metrics:{name}"

    def owns(self, name: str) -> bool:
        """Return True if ``name`` is a key of the namespace."""
        families = (self.metric(""), self.instance("message:"), self.rollup(""))
        return (
            name in (*self.fixed, *self.directories)
            or name.startswith(families)
            or bool(re.fullmatch(re.escape(self.instance("")) + "[0-9]+", name))
        )


def pending_of(pending: str, id: str | None) -> str:
    """Return the pending list of instance ``id``; ``pending`` itself if instances share it (``id`` is None)."""
    return pending if id is None else f"{pending}:{id}"


def glob_escaped(name: str) -> str:
    """Return ``name`` escaped for a MATCH pattern of SCAN."""
    return "".join(f"\\{letter}" if letter in "*?[]^-\\" else letter for letter in name)
