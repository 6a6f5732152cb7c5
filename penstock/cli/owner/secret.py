"""``penstock owner secret``: the secret with which an owner knows our webhooks."""

import os
from typing import Annotated

import typer

from penstock.cli._frame import Json, Misused, run
from penstock.cli._text import print_json

VARIABLE = "HQUEUE_WEBHOOK_SECRET"


def secret(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="The owner of a token; '' for tasks without one.")] = "",
    secret_file: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"File with webhookSecret. [default: as in ${VARIABLE}_FILE]")
    ] = None,
    json: Json = False,
) -> None:
    """Print the secret with which webhooks of an owner's tasks are signed: give it to who receives them.

    It is made of hqueue's webhookSecret, and opens no other owner's. During a change of that it is the newest one.
    """
    run(_secret(owner, secret_file, json))


async def _secret(owner: str, secret_file: str | None, as_json: bool) -> int:
    from penstock.base.secrets import FILE_SUFFIX, NoSecret, secret_in_file
    from penstock.webhook import owner_secret

    try:
        file = secret_file or os.environ.get(f"{VARIABLE}{FILE_SUFFIX}")
        root = secret_in_file(file) if file else os.environ.get(VARIABLE, "")
    except NoSecret as error:
        raise Misused(str(error)) from error
    if not root.split():
        raise Misused(f"no secret: expected --secret-file, {VARIABLE}_FILE or {VARIABLE}")
    found = owner_secret(root.split()[0], owner)
    if as_json:
        print_json({"owner": owner, "secret": found})
    else:
        typer.echo(found)
    return 0
