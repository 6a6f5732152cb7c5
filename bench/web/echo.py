"""Worker that answers requests with their bodies, in batches: ``python -m bench.web.echo PORT LIST``."""

import sys
from typing import Any, Final

from bench.connection import Connection, packed
from common.http.json import loads
from penstock.base.exact_json import as_json
from penstock.core.raw_connection import push_parts

BATCH: Final = 500
HEADERS: Final = [["content-type", "text/plain"]]
HELLO: Final = {"body": "hello\n"}


def answer(request: dict[str, Any]) -> bytes:
    """Return the answer to a request: its body, or a greeting."""
    fields = {name: request[name] for name in ("body", "body64") if name in request} or HELLO
    return as_json({"id": request["id"], "status": 200, "headers": HEADERS, **fields})


def work(connection: Connection, source: str) -> None:
    """Work forever, with one write and one read per batch."""
    take = packed("BLMPOP", 0, 1, source, "RIGHT", "COUNT", BATCH)
    pushes: list[bytes] = []
    while True:
        *_, (_, messages) = connection.exchange(b"".join([*pushes, take]), len(pushes) + 1)
        to: dict[str, list[bytes]] = {}
        for request in map(loads, messages):
            to.setdefault(request["replyTo"], []).append(answer(request))
        pushes = [b"".join(push_parts(name, answers)) for name, answers in to.items()]


if __name__ == "__main__":
    work(Connection(int(sys.argv[1])), sys.argv[2])
