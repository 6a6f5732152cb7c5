"""Worker that forges: it shows tokens of tasks that it was not given, and tokens of others. All must be refused."""

import secrets
from collections import Counter
from typing import Any, Final

import httpx

from compose.queue.names import SERVICE

NAME: Final = "forger"
ROUNDS: Final = 5


class Forger:
    """Forges at the hqueue at ``url``, with the token of a worker, and that of another owner."""

    def __init__(self, url: str, worker: str, stranger: str) -> None:
        self._queue = f"{url}/queues/{SERVICE}"
        self._worker, self._stranger = worker, stranger
        self.refused = Counter[tuple[str, int]]()
        """Answers by what was forged, and status."""
        self.accepted = list[str]()
        """What was answered otherwise than with the status that it must have."""
        self.had: str | None = None
        """The id of the task that it fetched."""

    async def run(self, lease: float) -> None:
        """Fetch a task, which it never acknowledges, and forge."""
        async with httpx.AsyncClient(timeout=30) as self._http:
            body = {"workerId": NAME, "timeToRecover": lease, "wait": 20}
            task = (await self._ask("POST", "/fetch", body, self._worker)).json()
            self.had = task["taskId"]
            for _ in range(ROUNDS):
                await self._forge(task)

    async def _forge(self, task: dict[str, Any]) -> None:
        genuine = task["taskToken"]
        id, attempt, digest = genuine.split(".")
        for forged in (
            f"{id}.{attempt}.{secrets.token_urlsafe(18)}",
            f"{id}.{int(attempt) + 1}.{digest}",
            f"{int(id) + 1}.{attempt}.{digest}",
            f"{id}.{attempt}.",
        ):
            lie = {"taskToken": forged, "result": {"month": "forged"}}
            await self._try("forged task token", 409, "POST", "/ack", lie, self._worker)
            await self._try("forged task token", 409, "POST", "/heartbeat", {"taskToken": forged}, self._worker)
        lie = {"taskToken": genuine, "result": {"month": "forged"}}
        await self._try("task token of another owner", 409, "POST", "/ack", lie, self._stranger)
        await self._try("task of another owner", 404, "GET", f"/tasks/{id}", None, self._stranger)
        await self._try("task of another owner", 404, "DELETE", f"/tasks/{id}", None, self._stranger)
        await self._try("right that a token lacks", 403, "POST", "/tasks", {"value": 1}, self._worker)
        await self._try("right that a token lacks", 403, "DELETE", f"/tasks/{id}", None, self._worker)
        await self._try("right that a token lacks", 403, "POST", "/rewind", {"last": 0}, self._worker)
        await self._try("token made up, or none", 401, "POST", "/ack", lie, f"pst_{secrets.token_urlsafe(32)}")
        await self._try("token made up, or none", 401, "POST", "/ack", lie, None)

    async def _try(self, what: str, status: int, method: str, path: str, body: Any, token: str | None) -> None:
        answer = await self._ask(method, path, body, token)
        self.refused[what, answer.status_code] += 1
        if answer.status_code != status:
            self.accepted.append(f"{what}: {method} {path} is answered {answer.status_code}, expected {status}")

    async def _ask(self, method: str, path: str, body: Any, token: str | None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await self._http.request(method, self._queue + path, json=body, headers=headers)
