"""Names of lists that conflict with keys of the kernel, or lie in different slots of a cluster."""

import re
from collections.abc import Sequence

from common.settings.redaction import quoted
from penstock.base.keys import Keys, pending_of


def collision(name: str, pending: str | None, namespace: str | None) -> str | None:
    """Return why ``name`` cannot be an operator's list: it is a key of the kernel. Return None if it can."""
    if namespace is not None and Keys(namespace).owns(name):
        return f"{quoted(name)} is a key of the service itself, below redisNamespace: expected another name"
    if pending is not None and re.fullmatch(re.escape(pending_of(pending, "")) + "[0-9]+", name):
        return f"{quoted(name)} is the pending list of an instance: expected another name"
    return None


def pending_collision(pending: str, namespace: str | None) -> str | None:
    """Return why ``pending``, or what an instance makes of it, cannot be a pending list; None if it can."""
    if reason := collision(pending, None, namespace):
        return reason
    if collision(pending_of(pending, "0"), None, namespace):
        return (
            f"{quoted(pending)} would give instances pending lists that are keys of the service: expected another name"
        )
    return None


def different_slots(names: Sequence[str]) -> dict[str, int]:
    """Return the slot of each name in a Redis Cluster if they differ; an empty dict if all are the same."""
    from redis.crc import key_slot

    slots = {name: key_slot(name.encode()) for name in names}
    return slots if len(set(slots.values())) > 1 else {}
