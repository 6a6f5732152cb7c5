"""himporter as processes, a program that answers what they import, and the rules of hrouter between them."""

import json
import threading
from pathlib import Path
from typing import Any, Final, Self

import httpx
import redis as sync

from tests.support.harness import Service

NAMESPACE: Final = "web"
OUT: Final = "web:requests"
BODY: Final = bytes(range(256)) * 40
_client: Final = httpx.Client()
"""One for all: it takes 20 ms to make one."""


class Worker:
    """A program that answers every request with what it was sent, from a thread of its own, until it is left."""

    def __init__(self, url: str) -> None:
        self._redis = sync.Redis.from_url(url)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._redis.close()

    def _work(self) -> None:
        while not self._ended.is_set():
            text: Any = self._redis.lmove(OUT, "worker", "RIGHT", "LEFT")
            if text is None:
                self._ended.wait(0.005)  # timing: between two looks
                continue
            request = json.loads(text)
            self._redis.lpush(request["replyTo"], json.dumps(echo_of(request)))
            self._redis.delete("worker")


def echo_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer with the body of ``request``; method, path, query and what a proxy said are in its headers.

    It sets cookies, but for paths below /kept, so that an importer may keep these.
    """
    fields: dict[str, Any] = {name: request[name] for name in ("body", "body64") if name in request} or {"body": ""}
    cookies = [] if request["path"].startswith("/kept") else [["set-cookie", "a=1"], ["set-cookie", "b=2"]]
    headers = [["content-type", "text/plain"], *cookies]
    headers += [[f"x-{name}", request[name]] for name in ("method", "path", "query")]
    headers += [[name, value] for name, value in request["headers"] if name.startswith("x-forwarded")]
    return {"id": request["id"], "status": 200, "headers": headers, **fields}


def importer(redis_url: str, port: int, log: Path, **settings: Any) -> Service:
    """Return an importer that pushes to ``OUT`` and listens on ``port``."""
    given = {"redis_namespace": NAMESPACE, "out": OUT, "listen_port": port, **settings}
    return Service("himporter", log, redis=redis_url, **given)


def is_ready(port: int) -> bool:
    """Return whether an importer that listens on ``port`` accepts requests."""
    try:
        return _client.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    except httpx.HTTPError:
        return False


def write_rules(file: Path, *rules: dict[str, Any]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"rules": rules}))
    new.replace(file)
