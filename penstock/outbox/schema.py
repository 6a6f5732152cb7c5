"""The tables of an outbox's store.

No message is written again before it is removed: what changes is in narrow tables beside. ``shared`` counts the
destinations of a message that has several; ``begun`` has the ranges of messages whose handlers run, and ``tries`` those
that failed, or ran when the process ended. Primary keys have the order of the columns:
``integrity_check`` of SQLite 3.40 reports other orders as damage.
"""

from typing import Final

VERSION: Final = 3
SUMMED: Final = ("messages", "incoming", "dead", "spooled", "seen")
"""Tables whose rows have a checksum, ``sum``; it is NULL in rows that version 1 has written. ``meta`` has one, too."""
CONVERSIONS: Final = (
    (
        *(f"ALTER TABLE {table} ADD COLUMN sum INTEGER" for table in SUMMED),
        "INSERT OR REPLACE INTO meta (name, value) SELECT 'converted', value FROM meta WHERE name = 'clock'",
    ),
    ("ALTER TABLE meta ADD COLUMN sum INTEGER", "DELETE FROM meta WHERE name GLOB 'trouble:*'"),
)
"""What makes the next version of version 1, 2, ...; rows of ``meta`` get their checksums after that. A trouble is noted
again, if there is one: nobody knows whether the text is whole."""
SCHEMA: Final = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value, sum INTEGER) WITHOUT ROWID",
    "CREATE TABLE destinations (id INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE)",
    "CREATE TABLE subscriptions (key TEXT, address TEXT, PRIMARY KEY (key, address)) WITHOUT ROWID",
    "CREATE TABLE subscribed (address TEXT, key TEXT, PRIMARY KEY (address, key)) WITHOUT ROWID",
    "CREATE TABLE messages (seq INTEGER PRIMARY KEY, id BLOB NOT NULL, keys TEXT NOT NULL, data BLOB NOT NULL,"
    " sum INTEGER)",
    "CREATE TABLE deliveries (destination INTEGER, seq INTEGER, keys TEXT, PRIMARY KEY (destination, seq))"
    " WITHOUT ROWID",
    "CREATE TABLE shared (seq INTEGER PRIMARY KEY, copies INTEGER NOT NULL)",
    "CREATE TABLE incoming (seq INTEGER PRIMARY KEY, id BLOB NOT NULL, sender TEXT NOT NULL, keys TEXT NOT NULL,"
    " data BLOB NOT NULL, sum INTEGER)",
    "CREATE TABLE begun (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, alone INTEGER NOT NULL)",
    "CREATE TABLE tries (seq INTEGER PRIMARY KEY, attempts INTEGER NOT NULL, due REAL NOT NULL,"
    " suspect INTEGER NOT NULL, error TEXT NOT NULL)",
    "CREATE INDEX tries_due ON tries (suspect, due)",
    "CREATE TABLE seen (id BLOB PRIMARY KEY, until REAL NOT NULL, sum INTEGER) WITHOUT ROWID",
    "CREATE TABLE dead (number INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL, address TEXT NOT NULL,"
    " outgoing INTEGER NOT NULL, keys TEXT NOT NULL, data BLOB NOT NULL, attempts INTEGER NOT NULL,"
    " error TEXT NOT NULL, at REAL NOT NULL, sum INTEGER)",
    "CREATE TABLE spools (id INTEGER PRIMARY KEY, server TEXT NOT NULL, name BLOB NOT NULL, last INTEGER NOT NULL,"
    " before INTEGER, UNIQUE (server, name))",
    "CREATE TABLE spooled (list INTEGER, number INTEGER, data BLOB NOT NULL, sum INTEGER, PRIMARY KEY (list, number))",
)
SHAPE: Final = (
    'SELECT s.name, s.tbl_name, c.name, c.type, c."notnull", c.pk'
    " FROM sqlite_master s LEFT JOIN pragma_table_info(s.name) c"
)
"""Asks for all columns and indexes: the same of a store that was converted."""
OUTGOING: Final = (
    ("deliveries", "destination NOT IN (SELECT id FROM destinations)", "are for a destination that is not known"),
    ("subscriptions", "address NOT IN (SELECT address FROM destinations)", "are of a destination that is not known"),
)
BODIES: Final = (
    ("deliveries", "seq NOT IN (SELECT seq FROM messages)", "are of a message that is not whole"),
    ("messages", "seq NOT IN (SELECT seq FROM deliveries)", "wait for nobody that is known"),
)
"""Rows (table, condition, what they are) that no store has, in tables without bodies, and in those with them."""
