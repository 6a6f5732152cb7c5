"""``penstock run``: run a service by its props file, in this process."""

from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import _frame
from penstock.cli._frame import Misused

STARTER: Final = "common.start"
"""The module that starts the service that a props file names."""


def run(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="The props file, e.g. mpush-orders.yaml, or a hash, redis://host/db/key; default: the environment.",
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The service, if neither the name of FILE nor its `service:` says it."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Validate the settings, print them and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --check: print JSON.")] = False,
) -> None:
    """Start a service from its props file, or with --service from the environment alone.

    The service is the one whose name the file's name begins with (mpush-orders.yaml), or that its property `service`
    names. Services of other distributions are found by their entry point in `penstock.services`. The service runs as
    with python -m services.NAME: with its own signals, exit status and environment variables. Folders named services or
    common in the current folder are ignored.
    """
    _frame.run(_start(file, service, [*(["--check"] if check else []), *(["--json"] if json else [])]))


async def _start(file: str | None, service: str | None, more: list[str]) -> int:
    from penstock.base.installed import module_of, service_of, services
    from penstock.base.launch import exec_module
    from penstock.base.secrets import is_reference

    if service is not None and service not in services():
        raise Misused(f"no service is called {service!r}: expected one of {', '.join(sorted(services()))}")
    if file is None and service is None:
        raise Misused("expected FILE, or --service NAME with its settings in the environment")
    name = service or (None if not file or is_reference(file) else service_of(Path(file)))
    exec_module(module_of(name) if name else STARTER, [*(["--props", file] if file else []), *more])
