"""``penstock register``: run a program, and keep it registered while it runs."""

import os
import shlex
from typing import Annotated

import typer

from penstock.cli import _frame
from penstock.cli._frame import DEFAULT_URL, Misused, RedisUrl


def register(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="What others find it by, e.g. orders:api.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The program and its arguments.")],
    redis: RedisUrl = DEFAULT_URL,
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where others reach it: a URL, or host:port.")
    ] = None,
    health: Annotated[
        str | None, typer.Option(metavar="URL|COMMAND", help="What tells whether it is ready; default: that it runs.")
    ] = None,
    drain: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time between the end of the registration and SIGTERM.")
    ] = None,
) -> None:
    """Run a program of any language, registered under a name while it runs.

    It is stopped by SIGTERM, or by deleting its registration, and its exit status is that of this command. All settings
    of the service sregister can be given by environment variables, such as SREGISTER_HEALTH_INTERVAL=5.
    """
    _frame.run(_register(namespace, command, redis, {"ADDRESS": address, "HEALTH": health, "DRAIN": drain}))


async def _register(namespace: str, command: list[str], redis: str, more: dict[str, str | float | None]) -> int:
    from penstock.base.launch import exec_module

    if not command:
        raise Misused("expected the program behind --, e.g. penstock register orders:api -- node server.js")
    given = {"REDIS": redis, "REDIS_NAMESPACE": namespace, "COMMAND": shlex.join(command), **more}
    os.environ.pop("SREGISTER_REDIS_FILE", None)
    os.environ.update({f"SREGISTER_{name}": str(value) for name, value in given.items() if value is not None})
    exec_module("services.sregister", [])
