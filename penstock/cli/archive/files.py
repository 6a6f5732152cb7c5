"""``penstock archive files``: list the files that hold each event once."""

import typer

from penstock.cli._archive import ArchiveDirectory
from penstock.cli._frame import Json, run
from penstock.cli._text import print_json


def list_files(archive: ArchiveDirectory, json: Json = False) -> None:
    """List the Parquet files that hold each event once, for any reader.

    A pattern like events/**/*.parquet finds the same but for the most recent events. If a file of the list is gone
    when you read it, its events were published below events/: list again.
    """
    run(_files(archive, json))


async def _files(archive: str, as_json: bool) -> int:
    from penstock.spark.files import files_of

    found = files_of(archive)
    if as_json:
        print_json(found)
    else:
        for file in found:
            typer.echo(file)
    return 0
