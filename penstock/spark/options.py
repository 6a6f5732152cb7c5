"""Options of the formats, and connections to their server."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from redis import Redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from penstock.base.errors import WrongOption
from penstock.base.urls import hosts_of, server_url
from penstock.core.connection import MAX_SILENCE, mask_password, sentinel_options
from penstock.core.raw_connection import Command, pack
from penstock.core.script import Script, translate_error
from penstock.spark.cluster import Cluster

LUA: Final = Path(__file__).parent / "lua"
RETRIES: Final = 6
"""Retries of a command: about 3 s. All commands only read or may run twice."""
FORMER: Final = {
    "key_column": "keyColumn",
    "maxlen": "maxLength",
    "maxeventspertrigger": "maxOffsetsPerTrigger",
    "maxmessagespertrigger": "maxOffsetsPerTrigger",
}
"""Present names of options by their former ones, in lower case: these work, and warn."""
SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation"})
"""Options of Spark itself, in lower case."""


CONNECTION: Final = frozenset({"url", "urlFile", "tlsCa", "tlsCert", "tlsKey"})
TLS: Final = {"tlsCa": "ssl_ca_certs", "tlsCert": "ssl_certfile", "tlsKey": "ssl_keyfile"}
"""Options that name PEM files: the same as parts of a URL."""


class Options:
    """Options of one source or sink. ``WrongOption`` names the format, the option and what was expected."""

    def __init__(self, format_: str, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._format = format_
        known |= CONNECTION
        former = {old: new for old, new in FORMER.items() if new in known}
        self._given = {name.lower(): value for name, value in given.items()}
        for old, new in former.items():
            if old in self._given and new.lower() not in self._given:
                self._given[new.lower()] = self._given[old]
                warnings.warn(f"{format_}: the option {old} is called {new} now", FutureWarning, stacklevel=4)
        spelt = {name.lower() for name in known} | SPARK_OPTIONS | former.keys()
        for name in given:
            if name.lower() not in spelt:
                raise self.wrong(name, f"not known: expected one of {', '.join(sorted(known))}")

    def wrong(self, name: str, problem: str) -> WrongOption:
        return WrongOption(f"{self._format}: option {name}: {problem}")

    def text(self, name: str, default: str | None = None) -> str:
        """Raise ``WrongOption`` if the option is missing and has no default."""
        found = self._given.get(name.lower(), default)
        if found is None or (found == "" and default is None):
            raise self.wrong(name, "missing")
        return found

    def names(self, name: str, default: str | None = None) -> list[str]:
        """Return what is separated by commas."""
        return [each for each in self.text(name, default).split(",") if each]

    def whole(self, name: str, default: int, least: int = 1, most: int = 2**31 - 1) -> int:
        found = self._given.get(name.lower())
        try:
            number = default if found is None else int(found)
        except ValueError:
            raise self.wrong(name, f"{found!r} is no whole number") from None
        if not least <= number <= most:
            raise self.wrong(name, f"{number} is out of range: expected {least} to {most}")
        return number

    def truth(self, name: str, default: bool) -> bool:
        return self.one_of(name, "true" if default else "false", ("true", "false")) == "true"

    def one_of(self, name: str, default: str, words: tuple[str, ...]) -> str:
        found = self._given.get(name.lower(), default)
        if found.lower() not in words:
            raise self.wrong(name, f"{found!r}: expected {' | '.join(words)}")
        return found.lower()

    def url(self) -> str:
        """Return the URL of the server, with the TLS options. Raise ``WrongOption``, without its password."""
        file, url = self.text("urlFile", ""), self.text("url", "")
        if file and url:
            raise self.wrong("urlFile", "given, and url, too: expected one of them")
        if file:
            url = self._file("urlFile").read_text().strip()
        elif not url:
            raise self.wrong("url", "missing")
        try:
            server_url(url)
        except ValueError as error:
            raise self.wrong("urlFile" if file else "url", f"{mask_password(url)!r}: {error}") from None
        named = {part: str(self._file(name)) for name, part in TLS.items() if self.text(name, "")}
        if named and not url.startswith("rediss"):
            raise self.wrong("url", f"{mask_password(url)!r}: TLS needs rediss:// or rediss+cluster://")
        return url + ("&" if "?" in url else "?") * bool(named) + urlencode(named)

    def _file(self, name: str) -> Path:
        file = Path(self.text(name))
        if not file.is_file():
            raise self.wrong(name, f"there is no file {file}; every worker needs it, too")
        return file


class LazyConnection:
    """Base of readers, which Spark pickles: the connection is opened on first use and never pickled."""

    _redis: "Redis | None" = None

    def __init__(self, url: str) -> None:
        self._url = url

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_redis": None}

    @property
    def redis(self) -> Any:
        if self._redis is None:
            self._redis = connect(self._url)
        return self._redis

    def stop(self) -> None:
        if self._redis:
            self._redis.close()


def connect(url: str, *, name: str = "penstock-spark") -> "Redis":
    """Return a client that connects on first use and retries while the server is away for a moment.

    So every command must be safe to repeat. Raise ``ValueError`` for an invalid URL.
    """
    again = Retry(ExponentialBackoff(cap=1, base=0.05), RETRIES, (ConnectionError, TimeoutError))
    given: dict[str, Any] = {"protocol": 2, "client_name": name, "retry": again}
    given |= {"socket_timeout": MAX_SILENCE, "socket_connect_timeout": MAX_SILENCE}
    if "+cluster://" in url:
        parts = urlsplit(url)
        login, mark, _ = parts.netloc.rpartition("@")

        def node(host: str, port: int, retries: int) -> "Redis":
            patient = given if retries else given | {"retry": Retry(NoBackoff(), 0)}
            place = parts._replace(scheme=parts.scheme.partition("+")[0], netloc=f"{login}{mark}{host}:{port}")
            return _plain(Redis.from_url(place.geturl(), **patient))

        return Cluster(hosts_of(url), node)
    return _plain(_through_sentinel(url, given) if "+sentinel://" in url else Redis.from_url(url, **given))


def _plain(client: "Redis") -> "Redis":
    """Return ``client``, which keeps the server's replies to commands of streams."""
    for command in ("XRANGE", "XREVRANGE"):
        client.response_callbacks.pop(command)
    return client


def _through_sentinel(url: str, given: dict[str, Any]) -> "Redis":
    """Return a client of the primary that the sentinels name, now and after a failover."""
    how = sentinel_options(url)
    once = Retry(NoBackoff(), 0)
    kind: Any = _Sentinels
    sentinels = kind(hosts_of(url, 26379), sentinel_kwargs=given | {"retry": once} | how.theirs)
    client: Redis = sentinels.master_for(how.service, **given, **how.ours)
    return client


class _Sentinels(Sentinel):
    """Names the primary."""

    def discover_master(self, service_name: str) -> Any:
        """Ask the sentinels, then close their connections: they are needed only after the next connection loss."""
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        finally:
            for sentinel in self.sentinels:
                sentinel.close()


def script(verb: str) -> Script:
    """Read a script of the sources and sinks."""
    return Script.read(LUA / f"{verb}.lua")


def run(redis: "Redis", script: Script, /, **named: Any) -> Any:
    """Run ``script`` on a blocking client. It may run twice."""
    try:
        try:
            return redis.execute_command(*script.by_digest(**named))
        except NoScriptError:
            return redis.execute_command(*script.by_source(**named))
    except ResponseError as error:
        raise translate_error(error) from None


def exchange(redis: "Redis", commands: Sequence[Command]) -> list[Any]:
    """Send ``commands`` in one round trip and return the replies; an error of the server is returned in its place.

    All are sent again if the connection fails.
    """
    if isinstance(redis, Cluster):
        return redis.exchange(commands, exchange)
    packed, pool = pack(commands), redis.connection_pool
    connection: Any = pool.get_connection()

    def reply() -> Any:
        try:
            return connection.read_response()
        except ResponseError as error:
            return error

    def ask() -> list[Any]:
        connection.send_packed_command([packed])
        return [reply() for _ in commands]

    try:
        answered: list[Any] = connection.retry.call_with_retry(ask, lambda _: connection.disconnect())
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    return answered


def transact(redis: "Redis", groups: Sequence[Sequence[Command]]) -> list[Any]:
    """Send ``groups`` of commands, each for one key, in transactions; return a reply for each command.

    On one server all are one transaction; in a cluster each group is. All are sent again if the connection fails.
    """
    whole = [[command for group in groups for command in group]]
    blocks = [group for group in (groups if isinstance(redis, Cluster) else whole) if group]
    replies = exchange(redis, [command for block in blocks for command in (("MULTI",), *block, ("EXEC",))])
    found: list[Any] = []
    for block in blocks:
        queued, done = replies[1 : len(block) + 1], replies[len(block) + 1]
        replies = replies[len(block) + 2 :]
        found += done if isinstance(done, list) else queued
    return found
