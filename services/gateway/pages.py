"""What the port of the gateway answers to requests that open no websocket: probes, and the browser's client."""

from http import HTTPStatus
from importlib.resources import files
from typing import Final

from websockets.datastructures import Headers
from websockets.http11 import Response

STATIC: Final = files(__package__) / "static"
PAGES: Final = {
    "/": ("index.html", "text/html"),
    "/try.css": ("try.css", "text/css"),
    "/bus.d.ts": ("bus.d.ts", "text/plain"),
    **{f"/{name}": (name, "text/javascript") for name in ("try.js", "bus.js")},
}
POLICY: Final = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' ws: wss:"


def page(path: str, *, is_online: bool, serves_pages: bool) -> Response:
    """Return the response for ``path``; ``is_online``: whether a server of the bus is there."""
    if path == "/live":
        return text(HTTPStatus.OK, "ok")
    if path == "/ready":
        if is_online:
            return text(HTTPStatus.OK, "ok")
        return text(HTTPStatus.SERVICE_UNAVAILABLE, "no server of the bus")
    if serves_pages and path in PAGES:
        name, kind = PAGES[path]
        fields = [("Content-Type", f"{kind}; charset=utf-8"), ("Cache-Control", "no-cache")]
        if name == "bus.js":  # a module is imported from pages of other origins only with this
            fields.append(("Access-Control-Allow-Origin", "*"))
        return _response(HTTPStatus.OK, (STATIC / name).read_bytes(), *fields, ("Content-Security-Policy", POLICY))
    return text(HTTPStatus.NOT_FOUND, "there are /, /bus.js, /live and /ready")


def text(status: HTTPStatus, words: str, *more: tuple[str, str]) -> Response:
    """Return a response with a line of text."""
    body = f"{words}\n".encode(errors="backslashreplace")
    return _response(status, body, ("Content-Type", "text/plain; charset=utf-8"), *more)


def _response(status: HTTPStatus, body: bytes, *fields: tuple[str, str]) -> Response:
    always = [("Content-Length", str(len(body))), ("Connection", "close"), ("X-Content-Type-Options", "nosniff")]
    return Response(status.value, status.phrase, Headers([*always, *fields]), body)
