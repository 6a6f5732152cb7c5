"""``penstock owner rewrap``: wrap all data keys with a new master key."""

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import DEFAULT_URL, Json, run
from penstock.cli._text import print_json, shown
from penstock.cli.owner._options import KeysRedisUrl, Master, Namespace, keyring


def rewrap(namespace: Namespace, master: Master, redis: KeysRedisUrl = DEFAULT_URL, json: Json = False) -> None:
    """Wrap all data keys of a namespace anew with the first master key; no message changes.

    To change a master key in a file: append the new one as a second line and restart all services; make it the first
    line and restart them again; run this; delete the old line. With Vault: rotate the key there, then run this.
    """
    run(_rewrap(namespace, master, redis, json))


async def _rewrap(namespace: str, master: str, url: str, as_json: bool) -> int:
    async with keyring(namespace, master, url) as (_, _, ring):
        count = await ring.rewrap()
    if as_json:
        print_json({"namespace": namespace, "rewrapped": count})
    else:
        typer.echo(f"rewrapped {counted(count, 'data key')} of {shown(namespace)}")
    return 0
