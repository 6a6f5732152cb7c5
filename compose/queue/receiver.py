"""Receiver of webhooks: ``python -m compose.queue.receiver``.

It checks each signature, and takes each webhook once, by its id. ``GET /`` shows what it has taken. It refuses the
first QUEUE_REFUSALS webhooks with 503, as a receiver does that is just starting. The other variables are
QUEUE_WEBHOOK_SECRET, as `penstock owner secret anna` prints it, and QUEUE_WEBHOOK_PORT.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from penstock.webhook import ForgedWebhook, verify

PORT: Final = 8090


class Received:
    """What has come; its methods may be called from several threads."""

    def __init__(self, secret: str, refusals: int) -> None:
        self._secret, self._refusals = secret, refusals
        self._lock = threading.Lock()
        self._taken: dict[str, Any] = {}
        self._counts = {"refused": 0, "again": 0, "forged": 0}

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Return the status with which a webhook is answered."""
        with self._lock:
            try:
                outcome = verify(headers, body, self._secret)
            except ForgedWebhook as error:
                print(error, flush=True)
                self._counts["forged"] += 1
                return 401
            if self._counts["refused"] < self._refusals:
                self._counts["refused"] += 1
                return 503
            id = outcome["deliveryId"]
            if id in self._taken:
                self._counts["again"] += 1
            self._taken[id] = outcome
            return 204

    def shown(self) -> bytes:
        """Return all that has come, as JSON."""
        with self._lock:
            return json.dumps({"taken": [*self._taken.values()], **self._counts}).encode()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    received: Received

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(self.received.take(dict(self.headers), body))

    def do_GET(self) -> None:
        self._answer(200, self.received.shown())

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def main() -> None:
    secret = os.environ.get("QUEUE_WEBHOOK_SECRET")
    if not secret:
        sys.exit("QUEUE_WEBHOOK_SECRET: expected what `penstock owner secret anna` prints")
    Handler.received = Received(secret, int(os.environ.get("QUEUE_REFUSALS", 0)))
    host, port = os.environ.get("QUEUE_WEBHOOK_HOST", "127.0.0.1"), int(os.environ.get("QUEUE_WEBHOOK_PORT", PORT))
    server = ThreadingHTTPServer((host, port), Handler)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()


if __name__ == "__main__":
    main()
