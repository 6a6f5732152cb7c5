"""``penstock owner list``: show who has data keys, and how old they are."""

import typer

from penstock.cli._frame import DEFAULT_URL, Json, connected, run
from penstock.cli._text import clock, print_json, print_table, shown
from penstock.cli.owner._options import KeysRedisUrl, Namespace


def list_owners(namespace: Namespace, redis: KeysRedisUrl = DEFAULT_URL, json: Json = False) -> None:
    """List the owners of a namespace that have data keys, and those that were forgotten. The keys are not shown."""
    run(_list(namespace, redis, json))


async def _list(namespace: str, url: str, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.sealing.owners import read_owners

    async with connected(url) as redis:
        owners = await read_owners(redis, Keys(namespace))
    if as_json:
        print_json(
            [
                {"owner": one.owner, "epoch": one.epoch, "keys": len(one.wrapped), "made": one.made}
                | {"sealed": one.sealed, "forgotten": one.forgotten}
                for one in owners
            ]
        )
        return 0
    if not owners:
        typer.echo(f"{shown(namespace)} has no owners with data keys on this server")
        return 0
    rows = [
        (shown(one.owner), one.epoch, len(one.wrapped), clock(one.made), one.sealed, clock(one.forgotten))
        for one in owners
    ]
    columns = ("owner", "epoch", "keys", "newest made", "sealed with it", "forgotten")
    print_table(f"owners of {shown(namespace)}", columns, rows)
    return 0
