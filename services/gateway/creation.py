"""The first message of a channel: which object a peer asks for."""

from typing import Any, Final

from penstock.base.errors import Unauthorized, WrongCall
from penstock.bus.federation.frames import loaded
from services.gateway.served import Peer, Served
from services.gateway.served_channel import ServedChannel
from services.gateway.served_object import ServedObject
from services.gateway.served_queue import ServedQueue
from services.gateway.served_topic import ServedTopic

MAX_NAMES: Final = 100
MAX_NAME: Final = 1_000
"""Maximum number of methods that a creation message names, and most characters of a name."""
CLASSES: Final[dict[str, type[ServedQueue | ServedChannel | ServedTopic | ServedObject]]] = {
    "queue": ServedQueue,
    "channel": ServedChannel,
    "pubsub": ServedTopic,
    "persistify": ServedObject,
}


def created(peer: Peer, channel: bytes, data: bytes) -> tuple[Served, str | None]:
    """Return the object of a creation message, and the session that it continues, if any.

    Raise ``ValueError`` or ``WrongCall`` for what is no such message, ``Unauthorized`` for a name that is not allowed.
    """
    message = loaded(data)
    if not isinstance(message, dict):
        raise WrongCall("a creation message is an object")
    type_, names, args = message.get("type"), message.get("methods"), message.get("args")
    if not isinstance(type_, str) or type_ not in CLASSES:
        raise WrongCall(f"there is no type {str(type_)[:100]!r}: expected one of {', '.join(CLASSES)}")
    if not isinstance(names, list) or len(names) > MAX_NAMES or not all(map(_is_name, names)):
        raise WrongCall(f"methods: expected at most {MAX_NAMES} names")
    if not isinstance(args, list) or not args or not _is_name(args[0]):
        raise WrongCall(f"args: expected a name of at most {MAX_NAME} characters")
    if not peer.gateway.access.allows_name(type_, args[0]):
        raise Unauthorized(f"{type_} {args[0]} is not allowed here")
    session = message.get("session")
    new = CLASSES[type_](peer, channel, args, names, session is not None)
    return new, session if _is_name(session) else None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME
