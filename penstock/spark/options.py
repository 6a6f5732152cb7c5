"""What a user of PySpark says with ``option(name, value)``, and the connection that it leads to."""

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
"""How often a command that only reads, or that may be done twice, is asked again: some 3 seconds."""
SPARKS: Final = frozenset({"path", "checkpointlocation"})
"""Options that Spark itself sets or reads."""


class Options:
    """Those of one source or sink, checked; ``WrongOption`` says which of which format, and what was expected."""

    def __init__(self, format_: str, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._format = format_
        self._given = {name.lower(): value for name, value in given.items()}
        spelt = {name.lower() for name in known} | SPARKS
        for name in given:
            if name.lower() not in spelt:
                raise self.wrong(name, f"not known: expected one of {', '.join(sorted(known))}")

    def wrong(self, name: str, problem: str) -> WrongOption:
        return WrongOption(f"{self._format}: option {name}: {problem}")

    def text(self, name: str, default: str | None = None) -> str:
        """Raises ``WrongOption`` where it is missing and there is no default."""
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
        """That of the server. Raises ``WrongOption``; a password in it is not shown."""
        url = self.text("url")
        try:
            connect(url).close()
        except ValueError as error:
            raise self.wrong("url", f"{mask_password(url)!r}: {error}") from None
        return url


class Connecting:
    """A reader, which Spark pickles: it connects when it must."""

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
    """A connection, made when first used, that asks again where the server is away for a moment.

    So what is asked of it must be such that it may be done twice. Raises ``ValueError`` for what is no URL of a server.
    """
    again = Retry(ExponentialBackoff(cap=1, base=0.05), RETRIES, (ConnectionError, TimeoutError))
    client = Redis.from_url(
        url, protocol=2, client_name=name, socket_timeout=MAX_SILENCE, socket_connect_timeout=MAX_SILENCE, retry=again
    )
    for command in ("XRANGE", "XREVRANGE"):  # entries as the server has them
        client.response_callbacks.pop(command)
    return client


def script(verb: str) -> Script:
    """One of those of Spark's sources and sinks."""
    return Script.read(LUA / f"{verb}.lua")


def run(redis: "Redis", script: Script, /, **named: Any) -> Any:
    """As ``await script(redis, ...)``, for a client that waits. The script may run twice."""
    try:
        try:
            return redis.execute_command(*script.by_digest(**named))
        except NoScriptError:
            return redis.execute_command(*script.by_source(**named))
    except ResponseError as error:
        raise translate_error(error) from None


def exchange(redis: "Redis", commands: Sequence[Command]) -> list[Any]:
    """The replies to all of them, in one round trip; an error of the server stands in its place.

    Where the server is away for a moment all are sent again.
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
