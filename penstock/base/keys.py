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
        self.hold = f"{namespace}:hold"
        self.lease = f"{namespace}:lease"
        self.events = f"{namespace}:events"
        self.event_marks = f"{namespace}:events:marks"
        self.done = f"{namespace}:done"
        self.dead = f"{namespace}:dead"
        self.policy = f"{namespace}:policy"
        self.deaths = f"{namespace}:deaths"
        self.sequence = f"{namespace}:sequence"
        self.link = f"{namespace}:link"
        self.received = f"{namespace}:received"
        self.remembered = f"{namespace}:remembered"
        self.waiting = f"{namespace}:waiting"
        self.ready = f"{namespace}:ready"
        """A channel, not a key: announces the id of an instance whose program has become ready, or is not any more."""
        self.bucket = f"{namespace}:bucket"
        self.rates = f"{namespace}:rates"
        self.seen = f"{namespace}:seen"
        self.message_counter = f"{namespace}:message:id"
        self.message_ids = f"{namespace}:message:ids"
        self.deadlines = f"{namespace}:message:deadlines"
        self.delayed = f"{namespace}:message:delayed"
        self.retry_budget = f"{namespace}:message:budget"
        self.answers = f"{namespace}:message:answers"
        self.answers_more = f"{namespace}:message:answers:more"
        self.pushed = f"{namespace}:message:pushed"
        self.looks = f"{namespace}:message:looks"
        self.due = f"{namespace}:message:due"
        """A channel, not a key: announces a deadline earlier than all others."""
        self.responses = f"{namespace}:responses"
        self.tokens = f"{namespace}:tokens"
        self.pages = f"{namespace}:pages"
        self.cancellations = f"{namespace}:cancelled"
        """A channel, not a key: announces the ids of requests whose clients have gone."""
        self.task_key = f"{namespace}:taskkey"
        self.task_news = f"{namespace}:tasks"
        """A channel, not a key: announces tasks that wait, and those that have ended."""
        self.tasks_served = f"{namespace}:served"
        self.kept_tasks = f"{namespace}:message:kept"
        self.outbox = f"{namespace}:message:outbox"
        self.key_owners = f"{namespace}:keys"
        self.key_changes = f"{namespace}:keychanges"
        """A channel, not a key: announces the owners whose data keys have changed."""

    @property
    def fixed(self) -> frozenset[str]:
        """All names above, without the namespace itself."""
        return frozenset(key for key in vars(self).values() if key != self.namespace)

    @property
    def kinds(self) -> dict[str, str]:
        """The type of each key above."""
        lists = (self.ids, self.done, self.dead, self.message_ids)
        tracked = (self.deadlines, self.delayed, self.answers)
        more = (self.responses, self.tokens, self.pages, self.remembered, self.waiting, self.seen, self.key_owners)
        zsets = (self.owners, self.event_marks, *tracked, *more, self.kept_tasks, self.outbox, self.received)
        strings = (self.counter, self.shape, self.hold, self.message_counter, self.bucket, self.task_key)
        return (
            dict.fromkeys(
                self.fixed - {self.due, self.ready, self.cancellations, self.key_changes, self.task_news}, "hash"
            )
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

    def response(self, id: str) -> str:
        """The list of answers for the requests of the himporter ``id``."""
        return f"{self.namespace}:res:{id}"

    def token(self, digest: str) -> str:
        """What a token for HTTP allows, by its SHA-256 in hex."""
        return f"{self.namespace}:token:{digest}"

    def page(self, request: str) -> str:
        """A page that himporter keeps, e.g. for ``GET example.org/a?b``."""
        return f"{self.namespace}:page:{request}"

    def page_tag(self, tag: str) -> str:
        """Since when pages with ``tag`` are kept; without it none of them is used."""
        return self.page(f"tag:{tag}")

    def cancelled(self, id: str) -> str:
        """Says that the client of the request ``id`` has gone."""
        return f"{self.cancellations}:{id}"

    def queue(self, name: str, part: str) -> str:
        """A part of the queue ``name`` of hqueue, e.g. its tasks that wait: ``queue("anna/resize", "ready")``."""
        return f"{self.namespace}:queue:{name}:{part}"

    def outcomes(self, owner: str, name: str) -> str:
        """The outcomes of tasks of hqueue that its ``owner``, percent-encoded, wanted in the list ``name``."""
        return f"{self.namespace}:replies:{owner}/{name}"

    def owner_keys(self, owner: str) -> str:
        """The wrapped data keys of ``owner``."""
        return f"{self.key_owners}:{owner}"

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

    def bucket_of(self, digest: str) -> str:
        """The bucket of one value of the field by which mlimit limits."""
        return f"{self.bucket}:{digest}"

    def rollup(self, window: str) -> str:
        """The counts of a time window, named by its start: ``2026-11-21``, ``...T18``, ``...T18:05``."""
        return f"{self.namespace}:rollup:{window}"

    def metric(self, name: str) -> str:
        return f"{self.namespace}:metrics:{name}"

    def owns(self, name: str) -> bool:
        """Return True if ``name`` is a key of the namespace."""
        counted = (self.metric(""), self.instance("message:"), self.rollup(""), self.bucket_of(""))
        http = (self.token(""), self.page(""), self.cancelled(""))
        families = (*counted, *http, self.owner_keys(""), self.instance("queue:"))
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
