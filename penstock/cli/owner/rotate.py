"""``penstock owner rotate``: make a new data key for an owner."""

import typer

from penstock.cli._frame import DEFAULT_URL, Json, run
from penstock.cli._text import print_json, shown
from penstock.cli.owner._options import KeysRedisUrl, Master, Namespace, Owner, keyring, require_owner


def rotate(
    namespace: Namespace, owner: Owner, master: Master, redis: KeysRedisUrl = DEFAULT_URL, json: Json = False
) -> None:
    """Make a new data key for an owner, which seals from now on.

    Old keys are kept and open what they have sealed. Services do this themselves after 30 days or 2^31 messages.
    """
    run(_rotate(namespace, owner, master, redis, json))


async def _rotate(namespace: str, owner: str, master: str, url: str, as_json: bool) -> int:
    async with keyring(namespace, master, url) as (redis, keys, ring):
        await require_owner(redis, keys, owner)
        epoch = await ring.rotate(owner)
    if as_json:
        print_json({"owner": owner, "epoch": epoch})
    else:
        typer.echo(f"{shown(owner)} has data key {epoch}")
    return 0
