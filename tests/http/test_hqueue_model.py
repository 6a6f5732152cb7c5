"""Queues of hqueue against a model with a virtual clock: whatever is done with two queues, all keys are as expected."""

import pytest
import redis as sync

from services.hqueue.settings import Settings
from services.hqueue.store import Ended, New, Store
from tests.http.hqueue_machine import KEYS, STEPS, Direct, Machine, result_of
from tests.support.harness import ROUNDS, USUAL_ROUNDS
from tests.support.machines import run_machine


def run(here: "sync.Redis", examples: int, steps: int) -> None:
    Machine.redis = here
    Machine.done.clear()
    run_machine(Machine, examples, steps)
    for what in (*STEPS, "given", "acknowledged", "refused"):
        assert Machine.done[what] > 0, Machine.done


def test_queues_are_as_their_model(here: "sync.Redis") -> None:
    run(here, 10, 40)


@pytest.mark.slow
def test_queues_are_as_their_model_for_long(here: "sync.Redis") -> None:
    run(here, 25 if ROUNDS <= USUAL_ROUNDS else 2_000, 60)


def test_an_attempt_that_is_over_ends_no_other_one_nor_a_task_after_a_loss_of_data(here: "sync.Redis") -> None:
    """An id was given to another task, which the token of the first one ended."""
    settings = Settings(redis="redis://here", redis_namespace="work")

    def fetched(store: Store, worker: str) -> tuple[str, int]:
        [task] = result_of(store.fetch("/one", worker, 60.0, 1))
        return task.id, task.attempt

    def ack(store: Store, id: str, attempt: int) -> list[str | None]:
        return result_of(store.ack("/one", [Ended("", id, attempt, "result", b"", "", "")]))

    def started() -> tuple[Store, str]:
        store = Store(Direct(here), KEYS, settings)
        store.become("1")
        id = result_of(store.new_id())
        record = b'{"ends": 60, "attempts": 3, "backoff": {"initial": 0, "factor": 1, "cap": 0}}'
        assert result_of(store.add("/one", [New(id, record, b"x", b"", 0)]))
        return store, id

    store, id = started()
    assert fetched(store, "w") == (id, 1)
    assert result_of(store.ack("/one", [Ended("", id, 1, "error", b"", "", "")])) == ["waiting"]
    assert fetched(store, "w") == (id, 2)
    assert ack(store, id, 1) == [None]
    here.flushall()
    store, other = started()
    assert fetched(store, "w") == (other, 1)
    assert ack(store, id, 1) == [None]
    assert ack(store, other, 1) == ["done"]
