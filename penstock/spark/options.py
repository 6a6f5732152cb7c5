"""Options of the formats, and connections to their server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError
from redis.retry import Retry

from penstock.connection import MAX_SILENCE, mask_password
from penstock.errors import WrongOption
from penstock.raw_connection import Command, pack
from penstock.script import Script, translate_error

LUA: Final = Path(__file__).parent / "lua"
RETRIES: Final = 6
"""Retries of a command: about 3 s. All commands only read or may run twice."""
SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation"})
"""Options of Spark itself, in lower case."""


class Options:
    """Options of one source or sink. ``WrongOption`` names the format, the option and what was expected."""

    def __init__(self, format_: str, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._format = format_
        self._given = {name.lower(): value for name, value in given.items()}
        spelt = {name.lower() for name in known} | SPARK_OPTIONS
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
        """Return the URL of the server. Raise ``WrongOption``, without its password, if it is invalid."""
        url = self.text("url")
        try:
            connect(url).close()
        except ValueError as error:
            raise self.wrong("url", f"{mask_password(url)!r}: {error}") from None
        return url


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
    client = Redis.from_url(
        url, protocol=2, client_name=name, socket_timeout=MAX_SILENCE, socket_connect_timeout=MAX_SILENCE, retry=again
    )
    for command in ("XRANGE", "XREVRANGE"):  # keep the reply of the server
        client.response_callbacks.pop(command)
    return client


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
