"""Errors of requests, as problem documents of RFC 9457."""

from http import HTTPStatus
from typing import Any, Final

from common.http.answers import Header
from penstock.base.exact_json import as_json

TYPE: Final[Header] = (b"content-type", b"application/problem+json")
MORE: Final[dict[int, Header]] = {
    401: (b"www-authenticate", b"Bearer"),
    429: (b"retry-after", b"1"),
    503: (b"retry-after", b"1"),
}


class Problem(Exception):
    """A request that is answered with ``status``; the text says what was expected."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.more = status, detail, more

    @property
    def headers(self) -> list[Header]:
        """Return the headers of the answer."""
        headers = [TYPE]
        if self.status in MORE:
            headers.append(MORE[self.status])
        if self.status == 405:
            headers.append((b"allow", ", ".join(self.more["allow"]).encode()))
        return headers

    @property
    def content(self) -> dict[str, Any]:
        """Return the document."""
        words = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        return words | {"detail": self.detail} | self.more

    @property
    def body(self) -> bytes:
        """Return the document as JSON."""
        return as_json(self.content) + b"\n"
