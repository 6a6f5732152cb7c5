"""Lint rules on monitors and time-outs."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from penstock.base.keys import Keys
from penstock.base.shape import Place
from penstock.composition.findings import Finding, at_property, display_name, nearest
from penstock.composition.model import Composition, Part
from penstock.core.backoff import Backoff


def watched(composition: Composition) -> Iterator[Finding]:
    """Find monitors that watch no part, and trackers without a monitor."""
    known = {part.namespace: part for part in composition.parts if part.namespace}
    for part in composition.parts:
        for name in _watches(part):
            if any(fnmatchcase(other, name) for other in known) or composition.external.does(
                "writes", Keys(name).policy
            ):
                continue
            near = nearest(name, known)
            outside = f"expected the redisNamespace of a part, or external.writes: {name}:* in composition.yaml"
            yield at_property("watch", part, "watch", f"no part has the namespace {name!r}{near}; {outside}")
    for part in unwatched(composition):
        effect = "messages never time out, and its done list is never read"
        why = f"no monitor on its server watches {part.namespace!r}: {effect}; expected one"
        yield at_property("watch", part, "redisNamespace", why)


def unwatched(composition: Composition) -> list[Part]:
    """Return the parts that track messages and have no monitor on their server."""
    watching = [(name, part.server) for part in composition.parts for name in _watches(part)]
    return [
        part
        for part in composition.parts
        if part.shape.watched
        and not any(fnmatchcase(str(part.namespace), name) and server == part.server for name, server in watching)
    ]


def metrics(composition: Composition) -> Iterator[Finding]:
    """Find metrics that would expire before their instance renews them."""
    for part in composition.parts:
        expire, renew = part.setting("metrics_expire"), part.setting("service_renew")
        if expire and expire <= renew:
            gone = f"{expire} s: the metrics of a live instance would expire before it renews them"
            yield at_property("times", part, "metricsExpire", f"{gone}; expected more than serviceRenew ({renew} s)")


def answers(composition: Composition) -> Iterator[Finding]:
    """Find answers that expire before their client stops waiting."""
    for part in composition.parts:
        expire, timeout = part.setting("reply_expire"), part.setting("message_timeout")
        if part.setting("res") and expire < timeout:
            gone = f"{expire} s: an answer could expire while its client still waits for it"
            yield at_property("times", part, "replyExpire", f"{gone}; expected at least messageTimeout ({timeout} s)")


def nested(composition: Composition) -> Iterator[Finding]:
    """Find trackers that time out while a tracker behind them still retries, which doubles messages."""
    for part in composition.parts:
        if not part.setting("attempts"):
            continue
        timeout = part.setting("message_timeout")
        for inner in _behind(composition, part):
            needed = _longest(inner)
            if timeout < needed:
                early = f"{timeout} s, while {display_name(inner)} behind it tries for up to {needed:g} s: messages"
                yield at_property(
                    "times", part, "messageTimeout", f"{early} would be delivered twice; expected at least {needed:g} s"
                )


def _behind(composition: Composition, part: Part) -> list[Part]:
    """Return the trackers that messages of ``part`` reach next, through services that do not track."""
    seen, open = set[Place](), [end.place for end in part.using("writes") if end.role == "out"]
    found: list[Part] = []
    while open:
        place = open.pop()
        if place in seen:
            continue
        seen.add(place)
        for reader, end in composition.at(place, "reads"):
            if end.role != "in" or reader is part:
                continue
            if reader.setting("attempts"):
                found.append(reader)
            elif reader.service:
                open += [other.place for other in reader.using("writes") if other.role == "out"]
    return found


def _longest(part: Part) -> float:
    """Return the seconds from a message's first delivery to the end of its last attempt."""
    attempts, timeout = part.setting("attempts"), part.setting("message_timeout")
    backoff = Backoff(*map(part.setting, ("backoff", "backoff_base", "backoff_cap"))).longest_delay(attempts)
    return float(attempts * (timeout + backoff))


def _watches(part: Part) -> list[str]:
    return part.shape.watches
