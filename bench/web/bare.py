"""A bare ASGI application on uvicorn, as fast as it goes: ``python -m bench.web.bare PORT``.

It answers a GET with a greeting, and any request with a body with that body.
"""

import sys
from typing import Any, Final

import uvicorn

HELLO: Final = b"hello\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer one request."""
    parts: list[bytes] = []
    if scope["method"] == "POST":
        more = True
        while more:
            message = await receive()
            parts.append(message["body"])
            more = message["more_body"]
    body = b"".join(parts) or HELLO
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), http="httptools", loop="uvloop", lifespan="off", ws="none",
        log_level="error", access_log=False,
    )  # fmt: skip
