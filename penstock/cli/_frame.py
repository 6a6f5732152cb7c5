"""Shared parts of all commands: options, connections, one-line errors, exit status."""

import asyncio
import io
import os
import re
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, Unavailable
from penstock.base.secrets import without_files
from penstock.cli._text import shown
from penstock.cli._url import URL_FORMS, redis_option, resolve_url

if TYPE_CHECKING:
    from redis.asyncio import Redis

BROKEN_PIPE_STATUS: Final = 141
"""The exit status if the reader closes our output early (``| head``), as for a process that SIGPIPE ends."""
DEFAULT_URL: Final = "redis://localhost:6379/0"
NAME_ANOTHER: Final = "or name another with --redis URL or REDIS"

RedisUrl = Annotated[str, redis_option(f"The server of the lists. {URL_FORMS}")]
ServiceRedisUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        callback=resolve_url,
        help="The server of the registrations, if it is a different one (serviceRedis in the settings).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class Failed(PenstockError):
    """A command cannot go on; the message says what is wrong, where, and what to do."""


class Misused(PenstockError):
    """The command has wrong arguments."""


def environment(redis: str | None) -> dict[str, str]:
    """Return the environment variables to read a composition with, with REDIS from ``--redis``."""
    return without_files({**os.environ, "REDIS": redis}) if redis else dict(os.environ)


def require_path(path: Path) -> None:
    """Raise ``Misused`` if ``path``, which the command line names, does not exist."""
    if re.match(r"(rediss?|unix)(\+\w+)?:/", str(path)):
        raise Misused("expected a file or a folder, found a URL: `penstock run --check URL` reads settings in a hash")
    if not path.exists():
        raise Misused(f"{path}: no such file or directory")


def service_named(file: Path) -> str | None:
    """Return the service that the name of ``file`` or its property ``service`` names; None if there is none."""
    from penstock.base.installed import service_of, services
    from penstock.composition.service import settings_of

    if name := service_of(file):
        return name
    for service in services():
        with suppress(PenstockError, AttributeError):
            name = settings_of(service).service_in(file)
            return name if name in services() else None
    return None


def run(action: Coroutine[Any, Any, int]) -> NoReturn:
    """Run a command and exit with its status; report an error as one line on stderr."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - None if the caller has closed it
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escape names that this terminal cannot show
    try:
        status = asyncio.run(action)
        sys.stdout.flush()
    except (KeyboardInterrupt, asyncio.CancelledError):
        status = 130
    except BrokenPipeError:  # the reader has closed our output: Python must not flush into it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE_STATUS
    except Misused as error:
        status = complain(error, 2)
    except UnicodeEncodeError as error:
        status = complain(f"{error.object!r} is not UTF-8, but names of namespaces must be", 2)
    except PenstockError as error:
        status = complain(error, 1)
    except OSError as error:
        status = complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    raise typer.Exit(status)


def complain(error: Exception | str, status: int) -> int:
    """Print ``error`` on stderr and return ``status``."""
    for line in str(error).splitlines():
        typer.echo(f"penstock: {shown(line)}", err=True)
    return status


@asynccontextmanager
async def connected(
    url: str, *, silence: float = 10, name: str = "penstock-cli", advice: str = NAME_ANOTHER
) -> AsyncIterator["Redis"]:
    """Yield a client whose server has answered a PING. Raise ``Failed``, naming the server, if it cannot be reached.

    The connection counts as lost after ``silence`` seconds without a reply. The error suggests to start the server or
    to follow ``advice``.
    """
    from redis.exceptions import RedisError

    from penstock.base.urls import server_url
    from penstock.core.connection import connect

    try:
        client = connect(server_url(url), silence=silence, name=name)
    except ValueError as error:
        quoted = "this" if "@" in url or "password" in url else repr(url)  # where a password ends is not known
        example = f", e.g. {DEFAULT_URL}" if "expected redis" in str(error) else ""
        raise Misused(f"{quoted} is {error}{example}") from None
    try:
        await client.ping()
        yield client
    except (RedisError, Unavailable) as error:
        waited_for = error.__cause__ if isinstance(error, Unavailable) else None
        reason = waited_for if isinstance(waited_for, RedisError) else error
        raise Failed(_explained(reason, masked(url), advice)) from error
    finally:
        await client.aclose()


@asynccontextmanager
async def both(url: str, service_url: str | None) -> AsyncIterator[tuple["Redis", "Redis"]]:
    """Connect to the server of the lists and to that of the registrations, which may be the same."""
    async with connected(url) as redis:
        if service_url in (None, url):
            yield redis, redis
        else:
            async with connected(service_url or url) as service_redis:
                yield redis, service_redis


async def require_list(redis: "Redis", key: bytes, url: str | None = None) -> None:
    """Raise ``Failed`` if ``key`` exists and is not a list; the error names ``url`` if given."""
    kind = decoded(await redis.type(key))
    if kind not in ("list", "none"):
        name = f"{shown(key)} on {masked(url)}" if url else shown(key)
        raise Failed(f"{name} is a {kind}, expected a list: name another key, or delete or rename this one")


async def require_one_slot(redis: "Redis", key: bytes) -> None:
    """Raise ``Failed`` on a Redis Cluster if the keys that we keep beside the list ``key`` lie in another slot."""
    from redis.crc import key_slot
    from redis.exceptions import NoPermissionError

    from penstock.core.script import in_one_slot

    with suppress(NoPermissionError):
        clustered = (await redis.info("cluster")).get("cluster_enabled")
        if clustered and key_slot(key) != key_slot(key + b":"):
            raise Failed(f"{in_one_slot([decoded(key)])}: {shown(key)}, and the keys that are kept beside it")


def _explained(error: Exception, url: str, advice: str) -> str:
    from redis import exceptions

    from penstock.core.link import OTHER_SERVER

    words = str(error).partition(" of pipeline caused error: ")
    reason = shown((words[2] or words[0]).strip().rstrip(".").removeprefix(OTHER_SERVER))
    if isinstance(error, exceptions.AuthenticationError):
        return f"{url} refuses the login: {reason}; expected redis://USER:PASSWORD@HOST:PORT/DB"
    if isinstance(error, exceptions.BusyLoadingError):
        return f"{url} is still loading its data: try again in a while"
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError):
        if trouble := _tls_trouble(error, url):
            return trouble
        why = _cause(error) or reason
        return f"cannot reach {url}: {why}; start a server there, {advice}"
    if isinstance(error, exceptions.OutOfMemoryError):
        return f"{url} is out of memory and refuses writes; take messages from its lists, or raise its maxmemory"
    if isinstance(error, exceptions.MovedError):
        return f"{url} is a node of a cluster that does not have this key: name redis://{error.host}:{error.port}/0"
    if isinstance(error, exceptions.ReadOnlyError):
        return f"{url} is a replica and takes no writes: name the primary"
    return f"{url} says: {reason}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _cause(error: BaseException) -> str | None:
    """Return the error of the operating system, e.g. ``connection refused``, without the text of redis-py."""
    found = (each.errno or 0 for each in _causes(error) if isinstance(each, OSError))
    return next((os.strerror(number).lower() for number in found if number > 0), None)


def _tls_trouble(error: BaseException, url: str) -> str | None:
    """Return what an error of TLS says, whose numbers are not those of the operating system; None without one."""
    import ssl

    found = next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None)
    if isinstance(found, ssl.SSLCertVerificationError):
        wanted = "one of this host, valid now, whose authority ssl_ca_certs=FILE in the URL names"
        return f"{url} has a certificate that is not trusted ({found.verify_message.rstrip('.')}): expected {wanted}"
    if found:
        words = (found.reason or str(found)).replace("_", " ").lower()
        return f"cannot speak TLS with {url} ({words}): a server without TLS has a URL that begins with redis"
    return None


def masked(url: str) -> str:
    """Return ``url`` as a terminal may show it, with its password as ``***``."""
    from penstock.core import connection

    return shown(connection.mask_password(url))
