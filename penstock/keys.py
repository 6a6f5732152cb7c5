"""The names of all keys, made here and nowhere else (docs/keys.md is the reader's view of this file)."""


class Keys:
    """Key names of one namespace, e.g. ``Keys("demo:mpush").instance("9") == "demo:mpush:9"``."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.counter = f"{namespace}:id"
        self.ids = f"{namespace}:ids"
        self.owners = f"{namespace}:owners"
        self.lists = f"{namespace}:lists"
        self.lease = f"{namespace}:lease"
        self.events = f"{namespace}:events"
        self.done = f"{namespace}:done"
        self.dead = f"{namespace}:dead"

    def instance(self, id: str) -> str:
        """The registration of one live instance."""
        return f"{self.namespace}:{id}"

    def metric(self, name: str) -> str:
        return f"{self.namespace}:metrics:{name}"


def pending_of(pending: str, id: str | None) -> str:
    """What instance ``id`` has taken and not settled; ``pending`` itself where instances share it (``id`` is None)."""
    return pending if id is None else f"{pending}:{id}"


def glob_escaped(name: str) -> str:
    """``name`` as a literal inside a MATCH pattern of SCAN."""
    return "".join(f"\\{letter}" if letter in "*?[]^-\\" else letter for letter in name)
