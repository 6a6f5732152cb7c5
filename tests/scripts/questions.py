"""Requests and their answers as messages with metadata."""

import json
from typing import Any


def request(id: object = "a", **meta: Any) -> bytes:
    return json.dumps({"meta": {"id": id, **meta}, "body": "question"}).encode()


def answer(id: object = "a", **meta: Any) -> bytes:
    return json.dumps({"meta": {"id": id, **meta}, "body": "answer"}).encode()
