"""Settings of outbox."""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Strict, StringConstraints

from common.acl import LUA
from common.settings.base import ServiceSettings
from common.settings.fields import YEAR, Name, PopTimeout, Seconds, Secret, Whole, setting
from common.settings.kernel import renewal_is_in_time
from common.settings.roles import In, Out, Pending
from common.settings.validation import Rule
from penstock.base.urls import server_url
from penstock.core import script
from penstock.core.acl import Rights

ADDRESS: Final = re.compile(r"(?:\[[^\]]+\]|[^:\s]+):(\d{1,5})")
MIN_SHARED: Final = 16
"""Bytes of the shortest shared secret that outboxes accept."""
MAX_SOCKET: Final = 103
"""Bytes of the longest path that all systems take for a socket."""


def one_instance_is_active(ordered: bool) -> str | None:
    return None if ordered else "false is not possible: a datadir has one owner: leave it out"


def something_moves(in_: str | None, out: str | None, socket: str | None) -> str | None:
    return "missing: expected in, out, or both; or socket" if in_ is out is socket is None else None


def lists_have_a_server(redis: str, in_: str | None, out: str | None) -> str | None:
    return "missing: the lists in and out need a server" if not redis and (in_ or out) else None


def lists_have_a_namespace(redis_namespace: str | None, in_: str | None, out: str | None) -> str | None:
    return "missing: the lists in and out need it" if redis_namespace is None and (in_ or out) else None


def a_namespace_has_a_server(redis_namespace: str | None, redis: str, in_: str | None, out: str | None) -> str | None:
    return (
        "needs redis: leave both out to run without a server" if redis_namespace and not (redis or in_ or out) else None
    )


def a_socket_has_a_short_path(socket: str | None) -> str | None:
    if socket is None or len(socket.encode()) <= MAX_SOCKET:
        return None
    return f"expected at most {MAX_SOCKET} bytes, as the system allows no more for a socket"


def what_is_taken_is_pending(pending: str | None, in_: str | None) -> str | None:
    if (pending is None) != (in_ is None):
        return "in and pending are needed both, or neither"
    return None


def messages_have_a_key(publish: str | None, publish_field: str | None, in_: str | None) -> str | None:
    if in_ is None:
        return "has no effect without in" if publish or publish_field else None
    if (publish is None) == (publish_field is None):
        return "expected either publish, the key of all messages, or publishField, where each has its key"
    return None


def what_comes_has_a_place(subscribe: list[str], out: str | None, socket: str | None) -> str | None:
    return "needs out, the list for what comes, or socket" if subscribe and out is socket is None else None


def tls_is_complete(certificate: str | None, key: str | None, authority: str | None) -> str | None:
    given = [each is not None for each in (certificate, key, authority)]
    return None if all(given) or not any(given) else "certificate, key and authority are needed together"


def secret_is_long_enough(secret: str | None) -> str | None:
    if secret is None or len(secret.encode()) >= MIN_SHARED:
        return None
    return f"expected at least {MIN_SHARED} bytes, e.g. of openssl rand -hex 16"


def somebody_is_kept_out(bind: str, secret: str | None, certificate: str | None, insecure: bool) -> str | None:
    if secret or certificate or insecure or bind.rpartition(":")[0].strip("[]") in ("localhost", "127.0.0.1", "::1"):
        return None
    return "others on the network reach this address: set secret or certificate, or insecure: true"


def others_can_answer(bind: str, advertise: str | None) -> str | None:
    if advertise is None and bind.rpartition(":")[0] in ("0.0.0.0", "[::]"):
        return "missing: expected the address at which other sites reach this one, as bind does not say it"
    return None


def _address(text: object) -> object:
    if isinstance(text, str) and ((found := ADDRESS.fullmatch(text)) is None or int(found[1]) > 65_535):
        raise ValueError("expected host:port")
    return text


def _key_at(text: object) -> object:
    if isinstance(text, str):
        key, at, address = text.rpartition("@")
        if not key or not at:
            raise ValueError("expected KEY@HOST:PORT")
        _address(address)
    return text


def _key_for(text: object) -> object:
    if isinstance(text, str) and not all(text.rpartition("@")):
        raise ValueError("expected KEY@PEER")
    return text


Text = Annotated[str, StringConstraints(strict=True, min_length=1)]
UrlOrNone = Annotated[str, Strict(), AfterValidator(lambda url: url and server_url(url, files=False))]
"""The empty text is no server."""
Address = Annotated[Text, BeforeValidator(_address)]


class Settings(ServiceSettings):
    """Settings of outbox: it publishes ``in`` to other sites, and pushes what they publish to ``out``.

    ``socket`` may take the place of either; without both lists no server is needed.
    """

    service: ClassVar[str] = "outbox"
    buries: ClassVar[bool] = True
    scripts: ClassVar[tuple[Path, ...]] = (LUA / "hold_batch.lua", script.LUA / "begin.lua", script.LUA / "disown.lua")
    sends: ClassVar[frozenset[str]] = frozenset({"LLEN"})
    rules: ClassVar[tuple[Rule, ...]] = (
        renewal_is_in_time,
        one_instance_is_active,
        something_moves,
        lists_have_a_server,
        lists_have_a_namespace,
        a_namespace_has_a_server,
        a_socket_has_a_short_path,
        what_is_taken_is_pending,
        messages_have_a_key,
        what_comes_has_a_place,
        tls_is_complete,
        secret_is_long_enough,
        somebody_is_kept_out,
        others_can_answer,
    )

    redis: UrlOrNone = setting("URL", "The server of the lists; without lists and redisNamespace there is none.", "")
    redis_namespace: Name | None = setting(
        "name", "Prefix of all keys of the service, among them the lease and the sequence; the lists need it.", None
    )
    datadir: Name = setting("directory", "Where messages and subscriptions are kept; it is made if it does not exist.")
    bind: Address = setting("address", "The host:port to listen at; port 0 chooses a free one.", "127.0.0.1:7700")
    advertise: Address | None = setting(
        "address", "The host:port at which other sites reach this one; bind by default.", None
    )
    in_: In | None = setting("name", "The list whose messages are published; without it nothing is.", None)
    pending: Pending | None = setting("name", "The list of messages taken that are not in the datadir yet.", None)
    publish: Name | None = setting("key", "The key with which all messages of in are published.", None)
    publish_field: Name | None = setting(
        "path", "The JSON field with a message's key, or a list of its keys, such as meta.topic.", None
    )
    unsubscribed: Literal["wait", "dead", "drop"] = setting(
        "wait | dead | drop",
        "What becomes of a message to which nobody has subscribed: it waits, and all behind it; or it is a dead letter,"
        " or dropped.",
        "wait",
    )
    out: Out | None = setting("name", "The list to which messages of other sites are pushed.", None)
    socket: Name | None = setting(
        "file",
        "A Unix socket at which programs on this machine publish, and take what comes unless out is set; only the"
        " service's user may connect.",
        None,
    )
    subscribe: Annotated[list[Annotated[Text, BeforeValidator(_key_at)]], Strict()] = setting(
        "list of KEY@HOST:PORT", "What to subscribe to, and where. What is no longer listed is unsubscribed.", []
    )
    allowed: Annotated[list[Annotated[Text, BeforeValidator(_key_for)]], Strict()] = setting(
        "list of KEY@PEER",
        "Which keys others may subscribe to here. Both may end in *; a peer is its address, or a name in its"
        " certificate.",
        ["*@*"],
    )
    secret: Secret | None = setting(
        "text", "What all sites share, at least 16 bytes; better in the file that OUTBOX_SECRET_FILE names.", None
    )
    certificate: Name | None = setting("file", "The TLS certificate (PEM) of this site with its chain.", None)
    key: Name | None = setting("file", "The private key (PEM) of the certificate.", None)
    authority: Name | None = setting("file", "The certificates (PEM) of those who sign the sites' certificates.", None)
    insecure: bool = setting(
        "true | false", "Let anybody connect who reaches bind, without secret and certificate.", False
    )
    dedupe: Whole = setting(
        "seconds", "Seconds in which a message that comes again is recognised.", 86_400, least=0, most=YEAR
    )
    store_bytes: Whole = setting(
        "bytes",
        "Bytes on disk of what other sites have sent, from which on nothing more is taken from them; they try again.",
        17_179_869_184,
        least=1,
    )
    pop_timeout: PopTimeout = 10
    batch: Whole = setting(
        "messages", "Maximum number of messages that are stored or pushed at a time.", 500, least=1, most=2_000
    )
    batch_bytes: Whole = setting(
        "bytes", "No more messages are added once they have this many bytes.", 1_048_576, least=1, most=536_870_912
    )
    ordered: bool = setting("true", "One active instance: there is no other way.", True)
    lease_expire: Seconds = setting(
        "seconds", "Seconds after which another instance may go on after this one has died.", 1.2, least=1, most=3_600
    )

    @property
    def has_server(self) -> bool:
        return self.redis_namespace is not None

    def rights(self) -> dict[str, Rights]:
        return super().rights() if self.has_server else {}

    @property
    def subscriptions(self) -> dict[str, list[str]]:
        """Return the keys of ``subscribe`` by address."""
        found = dict[str, list[str]]()
        for key, _, address in (each.rpartition("@") for each in self.subscribe):
            found.setdefault(address, []).append(key)
        return found

    @property
    def grants(self) -> dict[str, list[str]]:
        """Return the keys of ``allowed`` by peer."""
        found = dict[str, list[str]]()
        for key, _, peer in (each.rpartition("@") for each in self.allowed):
            found.setdefault(peer, []).append(key)
        return found

    def fixed(self) -> frozenset[str]:
        return super().fixed() | {"datadir", "in_", "out"}

    def metrics(self) -> tuple[str, ...]:
        return (*super().metrics(), "doubled", "outbox")

    def apart(self, directory: Path) -> dict[str, object]:
        """Return ports of its own, by which the sites of one sandbox find each other."""

        def moved(address: str) -> str:
            return f"127.0.0.1:{_port_in(directory.parent, address)}"

        subscribe = [f"{key}@{moved(address)}" for address, keys in self.subscriptions.items() for key in keys]
        return {
            "datadir": str(directory / "datadir"),
            "bind": moved(self.advertise or self.bind),
            "advertise": moved(self.advertise or self.bind),
            **({"subscribe": ",".join(subscribe)} if subscribe else {}),
            **({"socket": str(directory / "socket")} if self.socket else {}),
        }


@cache
def _port_in(sandbox: Path, address: str) -> int:
    """Return a free port for ``address``, the same one for all parts of a sandbox."""
    from penstock.base.ports import free_port

    return free_port()
