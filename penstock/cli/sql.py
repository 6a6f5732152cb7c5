"""``penstock sql``: ask the archive in SQL, by DuckDB."""

from datetime import date, datetime
from typing import Annotated

import typer

from penstock.base.encoding import counted
from penstock.cli._archive import LocalArchive
from penstock.cli._frame import Failed, Json, run
from penstock.cli._text import print_json, print_table

COLUMNS = """
    SELECT table_name AS "view", string_agg(column_name, ' ' ORDER BY column_index) AS columns
    FROM duckdb_columns() WHERE NOT internal GROUP BY table_name, table_oid ORDER BY table_oid
"""


def sql(
    archive: LocalArchive,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A query of DuckDB. Without one: views and columns.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of rows that are printed.")] = 1_000,
    json: Json = False,
) -> None:
    """Ask the archive of a pipeline in SQL, without Spark and Java: `select event, count(*) from events group by all`.

    Views are events, messages (one row each), attempts, response_times (by hour) and dead_letters (by reason). Times
    are UTC. The archive is a directory of this machine, and is read only.
    """
    run(_sql(archive, query, rows, json))


async def _sql(archive: str, query: str | None, most: int, as_json: bool) -> int:
    from penstock.spark.sql import WrongQuery, ask

    try:
        columns, rows = ask(archive, query or COLUMNS)
    except WrongQuery as error:
        raise Failed(str(error)) from error
    shown = [[_plain(cell) for cell in row] for row in rows[:most]]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in shown])
    elif columns:
        print_table(
            counted(len(rows), "row") + f", of which {most:,}" * (len(rows) > most),
            columns,
            [["" if cell is None else cell for cell in row] for row in shown],
        )
    return 0


def _plain(cell: object) -> object:
    """Return a cell as JSON has it: times in ISO 8601, bytes as text."""
    if isinstance(cell, float):
        return round(cell, 6)
    if isinstance(cell, datetime | date):
        return cell.isoformat(sep=" ") if isinstance(cell, datetime) else cell.isoformat()
    if isinstance(cell, bytes):
        return cell.decode(errors="backslashreplace")
    return cell if cell is None or isinstance(cell, str | int | list | dict) else str(cell)
