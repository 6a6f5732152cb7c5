"""What all requests share: the store, what seals, and who waits."""

from dataclasses import dataclass, field
from typing import Any, Final

from common.http.answers import JSON, Header
from services.hqueue.bodies import MAX_BATCH
from services.hqueue.problem import Problem
from services.hqueue.seals import Seals
from services.hqueue.settings import Settings
from services.hqueue.store import Store
from services.hqueue.task_token import TaskTokens
from services.hqueue.waiting import Waiting
from services.hqueue.webhooks import Webhooks

NO_TASK: Final = "there is no such task"
NO_STORE: Final[tuple[Header, ...]] = (JSON, (b"cache-control", b"no-store"))
PAGE: Final = 100
"""Records that one call of a script reads."""


@dataclass
class Served:
    """The queues of one namespace, as requests need them."""

    store: Store
    settings: Settings
    seals: Seals
    webhooks: Webhooks
    tasks: Waiting = field(default_factory=Waiting)
    """Workers that wait for a task, by queue."""
    ends: Waiting = field(default_factory=Waiting)
    """Those who wait for the end of a task, by its id and queue."""
    key: TaskTokens | None = None
    """What makes and checks task tokens; None until the key of all instances is known."""

    @property
    def tokens(self) -> TaskTokens:
        """Return what makes and checks task tokens. Raise ``Problem`` until that is known."""
        if self.key is None:
            raise Problem(503, "the service has just started")
        return self.key

    @property
    def may_wait(self) -> bool:
        """Return whether one more request may wait."""
        return len(self.tasks) + len(self.ends) < self.settings.max_waiting


def several(given: list[Any]) -> list[Any]:
    if not 1 <= len(given) <= MAX_BATCH:
        raise Problem(422, f"expected 1 to {MAX_BATCH} in one request, found {len(given)}")
    return given
