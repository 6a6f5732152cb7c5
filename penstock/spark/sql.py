"""The archive as tables of DuckDB: for questions in SQL, without Spark and Java.

Views: ``events``, as the pipeline has written them; ``messages``, one row each, from registration to end; ``attempts``;
``response_times`` by namespace and hour; ``dead_letters`` by namespace and reason. All times are UTC. DuckDB wants the
column ``"at"`` in quotes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.base.extras import extra
from penstock.spark.archive import DDL
from penstock.spark.files import Files
from penstock.spark.lifecycles import FAILURES, UNKNOWN
from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_READS: Final = 3
TYPES: Final = {"string": "VARCHAR", "int": "INTEGER", "long": "BIGINT", "double": "DOUBLE", "timestamp": "TIMESTAMP"}


class WrongQuery(PenstockError):
    """DuckDB refuses a query; the message says why."""


def connect(directory: str) -> "DuckDBPyConnection":
    """Return a connection that has the views of an archive. Raise ``NoArchive``.

    If a query raises ``duckdb.IOException``, a file is gone that the pipeline has published meanwhile: connect again.
    """
    with extra("sql"):
        import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    files = Files.of(directory)
    _create_views(
        connection,
        [file for each in files.published for file in each.files],
        [file for names in files.recent.values() for file in names],
    )
    return connection


def _selected(connection: "DuckDBPyConnection", files: Sequence[str]) -> str:
    """Return a query for the columns of ``DDL`` in ``files``, which have the same columns in their paths."""
    columns = [word.split() for word in DDL.split(", ")]
    wanted = {name: TYPES.get(kind, "BLOB" if kind == "binary" else "DATE") for name, kind in columns}
    if files:
        names = ", ".join("'" + each.replace("'", "''") + "'" for each in files)
        source = f"read_parquet([{names}], hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"
        there = {row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}
    else:
        source, there = "(SELECT 1 AS nothing) WHERE false", set()
    selected = ", ".join(
        f'"{name}"::{kind} AS "{name}"' if name in there else f'NULL::{kind} AS "{name}"'
        for name, kind in wanted.items()
    )
    return f"SELECT {selected} FROM {source}"


def _create_views(connection: "DuckDBPyConnection", *files: Sequence[str]) -> None:
    ends, failures, outcomes = (
        ", ".join(f"'{each}'" for each in words) for words in (END_EVENTS, FAILURES, ("done", "late", *FAILURES))
    )
    connection.execute("CREATE VIEW events AS " + " UNION ALL ".join(_selected(connection, some) for some in files))
    connection.execute(f"""
        CREATE VIEW messages AS
        SELECT namespace, id, any_value(xid) AS xid, any_value(queue) AS queue, max(attempt) AS attempts,
               min("at") FILTER (event = 'registered') AS registered_at,
               max("at") FILTER (event IN ({ends})) AS ended_at,
               coalesce(max_by(event, "at") FILTER (event IN ({ends})), 'open') AS outcome,
               CASE max_by(event, "at") FILTER (event IN ({ends})) WHEN 'dead' THEN
                   coalesce(max_by(event, "at") FILTER (event IN ({failures})), '{UNKNOWN}') END AS reason,
               epoch(max("at") FILTER (event IN ({ends})) - min("at") FILTER (event = 'registered')) AS seconds
        FROM events GROUP BY namespace, id
    """)
    connection.execute(f"""
        CREATE VIEW attempts AS
        SELECT namespace, id, any_value(xid) AS xid, any_value(queue) AS queue, attempt,
               min("at") FILTER (event = 'delivered') AS began_at,
               max("at") FILTER (event IN ({outcomes})) AS ended_at,
               coalesce(max_by(event, "at") FILTER (event IN ({outcomes})), 'open') AS outcome,
               max_by(seconds, "at") FILTER (event IN ({outcomes})) AS seconds
        FROM events WHERE attempt > 0 AND event <> 'retry' GROUP BY namespace, id, attempt
    """)
    connection.execute("""
        CREATE VIEW response_times AS
        SELECT namespace, date_trunc('hour', "at") AS hour, count(*) AS done, avg(seconds) AS mean,
               quantile_cont(seconds, 0.5) AS p50, quantile_cont(seconds, 0.95) AS p95,
               quantile_cont(seconds, 0.99) AS p99, max(seconds) AS longest
        FROM events WHERE event = 'done' AND seconds IS NOT NULL GROUP BY ALL
    """)
    connection.execute("""
        CREATE VIEW dead_letters AS
        SELECT namespace, reason, count(*) AS messages, max(ended_at) AS last_at
        FROM messages WHERE outcome = 'dead' GROUP BY ALL
    """)


def ask(directory: str, query: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the columns and the rows that answer ``query``. Raise ``NoArchive``, ``WrongQuery``.

    If a pipeline publishes files meanwhile, the archive is read again.
    """
    with extra("sql"):
        import duckdb

    for left in reversed(range(MAX_READS)):
        with connect(directory) as connection:
            try:
                found = connection.execute(query)
                return [each[0] for each in found.description or ()], found.fetchall()
            except duckdb.IOException as error:
                if not left:
                    raise WrongQuery(str(error)) from None
            except duckdb.Error as error:
                raise WrongQuery(str(error)) from None
    raise AssertionError
