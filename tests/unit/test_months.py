"""How the demo of compose/queue judges: what is right has no differences, and each damage is named."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compose.ending import Ending
from compose.months import is_right, rows_by_month
from compose.queue.outcome import Found, judge
from compose.queue.scan import Scan
from compose.queue.worker import summary
from penstock.accounting.tracked import TrackedAudit
from penstock.hqueue import Status

MONTHS = ("2012-01", "2012-02", "2012-03")
"""One for each way of an outcome: webhook, list and long poll."""


def status(id: str, name: str, state: str = "done", reason: str | None = None, worker: str = "node") -> Status:
    rows = rows_by_month().get(name, [])
    value = {"month": name, "rows": " ".join(rows)}
    result = summary(value, 2, worker)["result"] if rows else None
    return Status(id, int(id), state, 1, 0.0, result, reason=reason, name=name)


def sound() -> Found:
    """Return what is found after a run in which all was as promised."""
    tasks = [status(str(number), name) for number, name in enumerate(MONTHS, start=1)]
    tasks += [status("4", "1812-02", "dead", "failed"), status("5", "2016-01", "dead", "cancelled")]
    events = {each.id: Counter({each.state: 1}) for each in tasks}
    events["1"] += Counter(timeout=1, failed=1)
    events["2"] += Counter(timeout=1)
    return Found(
        MONTHS,
        never="1812-02",
        cancelled="2016-01",
        killed_worker="python",
        killed_process="worker-python",
        mark="mark",
        tasks={each.id: each for each in tasks},
        replies=[json.dumps({"id": "2012-02", "state": "done"}), json.dumps({"id": "1812-02", "state": "dead"})],
        received={"taken": [{"id": "2012-01", "state": "done", "result": tasks[0].result}], "refused": 3},
        polled=[tasks[2]],
        refused=Counter({("forged task token", 409): 40}),
        forger_had="2",
        killed="1",
        events=events,
        late=1,
        scan=Scan(keys=30),
        audit=TrackedAudit("months:work", 5, {}, [], [], []),
        ending=Ending({"worker-python": -9, "queue-one": 0}, {}, []),
    )


def test_a_run_as_promised_has_no_differences() -> None:
    assert judge(sound()).differences == []
    assert judge(sound()).figures()["holds"] is True


def lose_task(found: Found) -> None:
    del found.tasks["2"]


def double_end(found: Found) -> None:
    found.tasks["1"] = status("1", "2012-01")
    Counter.update(found.events["1"], done=1)


def lie(found: Found) -> None:
    found.tasks["2"].result["rainy"] += 1


def double_reply(found: Found) -> None:
    found.replies.append(found.replies[0])


def open_reply(found: Found) -> None:
    found.replies[0] = json.dumps({"id": "2012-02", "state": "done", "result": 1})


def other_webhook(found: Found) -> None:
    found.received["taken"][0] = {"id": "2012-01", "state": "done", "result": {}}


def lose_poll(found: Found) -> None:
    found.polled.clear()


def accept_forgery(found: Found) -> None:
    found.accepted.append("forged task token: POST /ack is answered 200, expected 409")


def done_by_the_dead(found: Found) -> None:
    found.tasks["1"].result["worker"] = "python"


def find_plaintext(found: Found) -> None:
    found.scan.found.append("months:work:x: b'2012/01/01,0.0,'")


def see_nothing(found: Found) -> None:
    found.scan.unread.append("the AOF")


def end_badly(found: Found) -> None:
    found.ending.statuses["queue-one"] = 1


def break_sums(found: Found) -> None:
    assert found.audit
    found.audit.problems.append("registered 5 is not done 4")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lose_task, ["2012-02: 0 tasks", "2012-02: came by list as done", "task 2, which the forger had"]),
        (double_end, ["2012-01: has ended 2 times"]),
        (lie, ["2012-02: the result is {"]),
        (double_reply, ["2012-02: came by list 2 times"]),
        (open_reply, ["2012-02: its contents lie in the list"]),
        (other_webhook, ["2012-01: came by webhook with the result {}"]),
        (lose_poll, ["2012-03: no outcome came by poll"]),
        (accept_forgery, ["accepted: forged task token: POST /ack is answered 200"]),
        (done_by_the_dead, ["task 1 was done by the worker that was killed in it"]),
        (find_plaintext, ["plaintext in months:work:x"]),
        (see_nothing, ["the AOF: the search does not even find what is there"]),
        (end_badly, ["queue-one: exit status 1"]),
        (break_sums, ["months:work: registered 5 is not done 4"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_each_damage_is_named(damage: Callable[[Found], None], expected: list[str]) -> None:
    found = sound()
    damage(found)
    lines = judge(found).differences
    assert len(lines) == len(expected), lines
    for line, begins in zip(lines, expected, strict=True):
        assert line.startswith(begins)


def test_faults_that_did_not_happen_are_named() -> None:
    found = sound()
    found.killed, found.forger_had = None, None
    found.refused.clear()
    found.received["refused"] = 0
    found = replace(found, late=0, events={id: Counter(done=1) for id in "123"} | {id: Counter(dead=1) for id in "45"})
    assert judge(found).differences == [
        "no webhook was refused at first",
        "the killed worker had no task",
        "the forger had no task",
        "nothing was forged",
        "no task was tried again",
        "no acknowledgement came too late",
    ]


@pytest.mark.parametrize("change", [{"mean": 7.1}, {"max": 12}, {"rainy": 0}, {"days": 30}, {"mean": None}])
def test_a_result_is_right_only_if_each_number_is(change: dict[str, Any]) -> None:
    rows = rows_by_month()["2012-01"]
    right = {"days": 31, "mean": 7.05, "max": 12.8, "rainy": 22}
    assert is_right(right, rows)
    assert not is_right(right | change, rows)
    assert not is_right(right, [])
