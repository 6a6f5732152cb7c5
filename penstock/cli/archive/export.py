"""``penstock archive export``: copy the events of an archive to a table of another platform."""

from enum import StrEnum
from typing import Annotated

import typer

from penstock.base.encoding import counted
from penstock.cli._archive import LocalArchive
from penstock.cli._frame import Json, run
from penstock.cli._text import print_json, shown


class Format(StrEnum):
    """Formats of tables."""

    delta = "delta"


def export(
    archive: LocalArchive,
    target: Annotated[
        str, typer.Argument(metavar="DIR", help="The table: a directory, or a URL (s3://, abfss://, gs://).")
    ],
    to: Annotated[Format, typer.Option("--to", help="The format of the table.")],
    json: Json = False,
) -> None:
    """Append to a Delta table the published events that it lacks, each exactly once.

    Repeat it as often as you like, also after it was killed, and while the pipeline writes and publishes. The first
    call makes the table.
    """
    run(_export(archive, target, json))


async def _export(archive: str, target: str, as_json: bool) -> int:
    from penstock.spark.delta import export

    exported = export(archive, target)
    if as_json:
        print_json({"exported": exported})
    else:
        typer.echo(f"exported {counted(exported, 'event')} to {shown(target)}")
    return 0
