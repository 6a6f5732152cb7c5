"""``penstock discover``: print where the instances of a program are that are ready."""

import re
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from penstock.cli._frame import DEFAULT_URL, Json, Misused, RedisUrl, complain, connected, run
from penstock.cli._text import age, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.inspect.discovery import Found

NOBODY: Final = "127.0.0.1:9"
"""The server in nginx's upstream while nobody is ready: nginx refuses an empty one, and answers 502 for this."""


class Format(StrEnum):
    """How addresses are written for others."""

    NGINX = "nginx"
    HAPROXY = "haproxy"
    ENV = "env"


def discover(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The name that they are registered by.")],
    redis: RedisUrl = DEFAULT_URL,
    all_: Annotated[bool, typer.Option("--all", help="Show those that are not ready, too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and print again at each change.")] = False,
    format: Annotated[Format | None, typer.Option(help="Print the addresses for another program.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to FILE, all at once, and only when that changes.")
    ] = None,
    then: Annotated[
        str | None,
        typer.Option("--run", metavar="COMMAND", help="Run COMMAND after each change, e.g. nginx -s reload."),
    ] = None,
    json: Json = False,
) -> None:
    """Print which instances of a program, or of a service, are ready, and where.

    Exit status: 1 if none is. With --watch it goes on until it is stopped.
    """
    if output and not format:
        raise Misused("--output needs --format")
    run(_discover(namespace, redis, all_, watch, format, output, then, json))


async def _discover(
    namespace: str,
    url: str,
    all_: bool,
    watches: bool,
    format: Format | None,
    output: Path | None,
    then: str | None,
    as_json: bool,
) -> int:
    from penstock.base.log import Log
    from penstock.core.connection import connect
    from penstock.core.link import Outage, again
    from penstock.inspect.discovery import discovered, watch

    former = _read(output)

    def show(found: "list[Found]") -> None:
        nonlocal former
        shown = [each for each in found if all_ or each.ready]
        if format is None:
            _print(namespace, shown, as_json)
        else:
            text = _written(namespace, [each for each in found if each.ready], format)
            if text == former:
                return
            former = text
            if output:
                _replace(output, text)
            else:
                print(text, end="", flush=True)
        if then and (status := subprocess.run(then, shell=True).returncode):  # what the user asks for
            complain(f"{then}: status {status}", 1)

    async with connected(url) as redis:

        async def follow() -> None:
            async with connect(url, name="penstock-cli") as listener:
                async for found in watch(redis, listener, namespace):
                    show(found)

        if watches:
            await again(follow, Outage(Log("penstock.discover")))
        found = await discovered(redis, namespace)
        show(found)
    return int(not any(each.ready for each in found))


def _print(namespace: str, found: "Sequence[Found]", as_json: bool) -> None:
    if as_json:
        print_json({"namespace": namespace, "instances": [asdict(each) for each in found]})
        return
    if not found:
        print(f"{namespace}: nobody is ready")
        return
    now = datetime.now(UTC).timestamp()
    print_table(
        f"{namespace}: {sum(each.ready for each in found):,} of {len(found):,} ready",
        ("ID", "ADDRESS", "READY", "HOST", "PID", "SINCE", "WHY NOT"),
        [
            (
                each.id,
                each.address or "-",
                "yes" if each.ready else "no",
                each.host,
                each.pid,
                age(now - each.started),
                each.why,
            )
            for each in found
        ],
    )


def _written(namespace: str, found: "Sequence[Found]", format: Format) -> str:
    """Return the addresses of ``found`` for another program; what is no address could be more than one word to it."""
    from penstock.inspect.discovery import ADDRESS

    name = re.sub(r"\W", "_", namespace)
    addresses = [
        (each.id, each.address)
        for each in found
        if each.address and re.fullmatch(ADDRESS, each.address) and re.fullmatch(r"[\w-]+", each.id)
    ]
    if format is Format.ENV:
        return f"{name.upper()}_ADDRESSES={','.join(address for _, address in addresses)}\n"
    hosts = [(id, urlsplit(address).netloc or address if "//" in address else address) for id, address in addresses]
    if format is Format.NGINX:
        lines = [f"    server {host};" for _, host in hosts] or [f"    server {NOBODY} down;"]
        return "\n".join([f"upstream {name} {{", *lines, "}", ""])
    return "\n".join([f"backend {name}", *(f"    server {name}-{id} {host} check" for id, host in hosts), ""])


def _read(file: Path | None) -> str | None:
    return file.read_text() if file and file.exists() else None


def _replace(file: Path, text: str) -> None:
    part = file.with_name(f".{file.name}.part")
    part.write_text(text)
    part.replace(file)
