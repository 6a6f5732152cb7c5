"""How the client of hqueue calls: when it repeats, what it says of errors, and what becomes of a lost answer."""

import asyncio
import json
import logging
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.base.errors import PenstockError, Unauthorized, Unavailable, Unconfirmed, Unreadable, WrongCall
from penstock.hqueue import AnswerError, LeaseLost, NewTask, NotAllowed, Queues, TaskExpired, TaskFailed
from penstock.hqueue.queue import made_up
from penstock.hqueue.source import _process
from tests.http.queue_answers import Scripted, answer, problem, task

SECRET = "pst_" + "s3cr3t" * 7
URL = "http://queues.test:8080"
ADDED = {"taskId": "1", "index": 1, "state": "waiting"}


@pytest.fixture(autouse=True)
def logging_without_structlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client log as in a program that has not configured structlog, which other tests may have."""
    monkeypatch.setattr("structlog.is_configured", lambda: False)


def queues(handler: Any, **options: Any) -> Queues:
    return Queues(URL, transport=handler if isinstance(handler, Scripted) else Scripted(handler), **options)


async def drained(here: Queues, **options: Any) -> None:
    """Take tasks of a queue that has none."""
    async for found in here["a"].tasks(**options):
        pytest.fail(f"there is {found}")


def in_turn(*answers: Any) -> Scripted:
    """Return a transport that gives ``answers`` in turn, and the last one for ever."""
    left = [*answers]
    return Scripted(lambda *_: left.pop(0) if len(left) > 1 else left[0])


async def test_a_task_is_added_with_an_id_so_that_a_repeated_call_adds_it_once() -> None:
    transport = in_turn(httpx.ReadError("lost"), answer(200, ADDED))
    async with queues(transport) as here:
        added = await here["resize"].add({"a": 1}, key="k", start_timeout=3, non_retryable=("ValueError",))
    assert (added.id, added.index, added.state, added.is_new) == ("1", 1, "waiting", False)
    first, second = transport.calls
    assert first == second
    assert first[:2] == ("POST", "/queues/resize/tasks")
    id = first[2].pop("id")
    assert len(id) == 32
    assert first[2] == {"value": {"a": 1}, "key": "k", "startTimeout": 3, "nonRetryable": ["ValueError"]}


async def test_values_are_any_json_and_bytes() -> None:
    transport = Scripted(lambda *_: answer(201, ADDED))
    async with queues(transport) as here:
        for value in (None, False, 0, "", 2**70, [1.5, {"ü": "\U0001f600"}]):
            await here["a"].add(value)
            assert transport.calls[-1][2]["value"] == value
        await here["a"].add(b"\0\xff")
        assert transport.calls[-1][2]["value64"] == "AP8="
        for wrong in (float("nan"), {1, 2}, {"a": b"x"}, "\ud800", object()):
            with pytest.raises(WrongCall, match="expected a value that JSON has, or bytes"):
                await here["a"].add(wrong)


async def test_many_are_added_a_hundred_at_a_time_each_with_options_of_its_own() -> None:
    transport = Scripted(lambda method, path, body: answer(201, [ADDED] * len(body)))

    async def values() -> Any:
        for number in range(250):
            yield number

    async with queues(transport) as here:
        assert len(await here["a"].add_many(values(), key="all")) == 250
        assert [len(body) for *_, body in transport.calls] == [100, 100, 50]
        assert len({each["id"] for *_, body in transport.calls for each in body}) == 250
        await here["a"].add_many([NewTask(1, id="mine", key="own"), 2], key="all", ttl=5)
        own, other = transport.calls[-1][2]
        assert own == {"value": 1, "id": "mine", "key": "own", "ttl": 5}
        assert (other["value"], other["key"]) == (2, "all")
        for wrong in ("text", b"bytes", {"a": 1}):
            with pytest.raises(WrongCall, match="expected several values, found one: use add"):
                await here["a"].add_many(wrong)
        with pytest.raises(WrongCall, match="unknown option later"):
            await here["a"].add(1, later=3)  # type: ignore[call-arg]


async def test_an_error_says_how_many_were_added_before() -> None:
    transport = in_turn(answer(201, [ADDED] * 100), problem(429, "full"))
    async with queues(transport, patience=0) as here:
        with pytest.raises(Unavailable, match="429 full"):
            await here["a"].add_many(range(150))
    transport = in_turn(answer(201, [ADDED] * 100), problem(422, "no"))
    async with queues(transport) as here:
        with pytest.raises(AnswerError) as raised:
            await here["a"].add_many(range(150))
    assert raised.value.__notes__ == ["100 tasks before these were added"]


async def test_errors_have_status_and_detail_and_say_what_to_do() -> None:
    async def error_of(response: httpx.Response, call: str = "info") -> PenstockError:
        async with queues(lambda *_: response, patience=0) as here:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "info": here["a"].info,
                "ack": lambda: here["a"].ack("t"),
                "status": lambda: here["a"].status("7"),
            }
            with pytest.raises(PenstockError) as raised:
                await calls[call]()
            return raised.value

    error = await error_of(problem(403, "the token does not allow this", extra=1))
    assert isinstance(error, NotAllowed)
    assert isinstance(error, Unauthorized)
    assert (error.status, error.detail, error.problem["extra"]) == (403, "the token does not allow this", 1)
    assert str(error) == (
        "GET /queues/a/info: 403 the token does not allow this; "
        "give a token with this right: `penstock token add --right` makes one"
    )
    assert "penstock token add" in str(await error_of(problem(401, "expected a token")))
    lost = await error_of(problem(409, "stale"), "ack")
    assert isinstance(lost, LeaseLost)
    assert str(lost) == "POST /queues/a/ack: 409 stale; the lease has ended: another worker may have the task"
    assert "it was cancelled, has ended long ago" in str(await error_of(problem(404, "none"), "status"))
    assert "is it that of hqueue?" in str(await error_of(httpx.Response(404, text="<html>")))
    assert "is it that of hqueue?" in str(await error_of(httpx.Response(200, text="<html>")))
    moved = await error_of(httpx.Response(302, headers={"location": "https://there.test/"}))
    assert "it redirects to https://there.test/: name that URL" in str(moved)
    assert isinstance(await error_of(answer(200, {"no": "info"})), Unreadable)
    long = await error_of(problem(400, "x" * 10_000))
    assert len(str(long)) < 600


async def test_a_service_that_is_away_is_called_again_for_as_long_as_the_patience(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    info = {"service": "a", "index": 0, "held": []}
    transport = in_turn(
        httpx.ConnectError("refused"), problem(503, "just started"), httpx.ReadTimeout("slow"), answer(200, info)
    )
    async with queues(transport) as here:
        assert (await here["a"].info()).index == 0
    assert len(transport.calls) == 4
    assert [record.message.split(" url=")[0] for record in caplog.records if record.name == "penstock.hqueue"] == [
        "hqueue away",  # the second reason
        "hqueue away",
        "hqueue back",
    ]
    async with queues(lambda *_: httpx.ConnectError("refused"), patience=0.2) as here:
        with pytest.raises(Unavailable, match=r"cannot reach http://queues\.test:8080: refused"):
            await here["a"].info()


async def test_the_service_says_how_long_to_wait() -> None:
    transport = in_turn(answer(429, {"detail": "full"}, **{"retry-after": "1"}), answer(201, ADDED))
    async with queues(transport) as here:
        begun = asyncio.get_running_loop().time()
        await here["a"].add()
        assert asyncio.get_running_loop().time() - begun >= 1


async def test_what_a_second_run_would_do_twice_is_not_repeated_once_it_may_have_arrived() -> None:
    for trouble in (httpx.ReadError("lost"), problem(503, "it may have done this, or not"), problem(504, "proxy")):
        transport = in_turn(trouble, answer(200, {"rewound": 1}))
        async with queues(transport) as here:
            with pytest.raises(Unconfirmed, match="the service may have done it, or not"):
                await here["a"].rewind(0)
        assert len(transport.calls) == 1
    transport = in_turn(httpx.ConnectError("refused"), problem(429, "busy"), answer(200, {"rewound": 1}))
    async with queues(transport) as here:
        assert await here["a"].rewind(0) == 1


async def test_a_repeated_cancel_finds_the_task_gone() -> None:
    async with queues(in_turn(httpx.ReadError("lost"), problem(404, "no such task"))) as here:
        assert await here["a"].cancel("1") is True
    async with queues(in_turn(httpx.ReadError("lost"), problem(409, "it is dead", state="dead"))) as here:
        assert await here["a"].cancel("1") is True


async def test_results_are_waited_for_and_failures_raised() -> None:
    waiting = {"taskId": "1", "index": 1, "state": "waiting", "attempt": 0, "added": 1.0}
    transport = in_turn(answer(200, waiting), answer(200, {**waiting, "state": "done", "result64": "AP8="}))
    async with queues(transport) as here:
        assert await here["a"].result("1") == b"\0\xff"
    assert transport.calls[0][1] == "/queues/a/tasks/1?wait=20"
    error = {"type": "ValueError", "message": "no tea"}
    dead = {**waiting, "state": "dead", "attempt": 2, "reason": "failed", "error": error}
    async with queues(lambda *_: answer(200, dead)) as here:
        with pytest.raises(TaskFailed, match=r"^task 1 is dead after 2 attempts \(failed\): no tea$") as raised:
            await here["a"].result("1")
        assert (raised.value.error, raised.value.state, raised.value.attempts) == (error, "dead", 2)
    async with queues(lambda *_: answer(200, {**waiting, "state": "expired", "reason": "ttl"})) as here:
        with pytest.raises(TaskExpired, match=r"^task 1 is expired after 0 attempts \(ttl\)$"):
            await here["a"].result("1")
    async with queues(lambda *_: answer(200, waiting)) as here:
        with pytest.raises(PenstockError, match=r"^task 1 has not ended within 0.2 s: it is waiting$"):
            await here["a"].result("1", timeout=0.2)


async def test_a_token_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "token").write_text(f"{SECRET}\n")
    for token in (SECRET, f"@{tmp_path}/token"):
        transport = in_turn(httpx.ConnectError("refused"), problem(403, "no"))
        async with queues(transport, token=token) as here:
            with pytest.raises(NotAllowed) as raised:
                await here["a"].add(1)
            shown = [repr(here), repr(here["a"]), repr(here.http), str(raised.value), repr(raised.value), caplog.text]
            shown += traceback.format_exception(raised.value)
            assert here.http._client is not None
            shown += [repr(here.http._client.headers), repr(vars(raised.value))]
        assert transport.headers[-1]["authorization"] == f"Bearer {SECRET}"
        assert SECRET not in "".join(shown)


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"{SECRET} x", "ü" + SECRET, f"{SECRET}\r\nX: y", ""])
def test_a_token_that_is_none_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(WrongCall, match="the token has letters that no token has") as raised:
        Queues(URL, token=token)
    assert "s3cr3t" not in str(raised.value)


def test_a_reference_to_a_token_that_leads_nowhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(WrongCall, match="the variable NOWHERE is empty or not set: expected a token in it"):
        Queues(URL, token="env:NOWHERE")
    with pytest.raises(PenstockError, match="cannot be read"):
        Queues(URL, token="@/nowhere/token")


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "localhost:8080",
        "http://",
        "http://a?b=c",
        "http://a#b",
        "http://a:b",
        "http://[a",
        "http://a b",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(WrongCall, match=r"URL"):
        Queues(url)


def test_a_url_with_a_login_is_refused_without_showing_it() -> None:
    with pytest.raises(WrongCall, match="has a login") as raised:
        Queues("https://ann:s3cr3t@queues.test")
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 129, "a?b"])
def test_a_name_that_is_no_name_of_a_queue_is_refused(name: str) -> None:
    with pytest.raises(WrongCall, match="is no name of a queue"):
        Queues(URL)[name]


async def test_calls_need_the_with() -> None:
    here = Queues(URL)
    with pytest.raises(WrongCall, match="expected `async with Queues"):
        await here["a"].info()
    with pytest.raises(WrongCall, match="expected `async with Queues"):
        await drained(here)


async def test_a_path_in_front_of_the_service_is_kept() -> None:
    transport = Scripted(lambda *_: answer(201, ADDED))
    async with Queues("https://queues.test/behind/", transport=transport) as here:
        await here["a"].add(1)
    assert transport.calls[0][1] == "/behind/queues/a/tasks"


class Service:
    """Gives each worker the tasks it is made with, and answers acknowledgements by ``judge``."""

    def __init__(self, tasks: list[dict[str, Any]], judge: Any) -> None:
        self.tasks, self.judge, self.acks, self.status = tasks, judge, list[Any](), dict[str, Any]()

    def __call__(self, method: str, path: str, body: Any) -> Any:
        if path.endswith("/fetch"):
            found, self.tasks = self.tasks[: body["max"]], self.tasks[body["max"] :]
            return answer(200, {"tasks": found}) if found else answer(204)
        if path.endswith("/ack"):
            self.acks.append(body)
            return self.judge(body)
        if path.endswith("/heartbeat"):
            return answer(200, {"cancelRequested": False, "leaseEnd": 1.0})
        return answer(200, self.status)


async def handled(service: Service, many: int, **options: Any) -> list[Any]:
    """Handle ``many`` tasks, and return their values."""
    found = list[Any]()
    async with queues(service) as here:
        async for each in here["a"].tasks(**options):
            with each:
                found.append(each.value)
                each.finish(each.value)
            if len(found) == many:
                break
    return found


DONE = {"acknowledged": True, "state": "done"}


def judged(body: Any) -> httpx.Response:
    return answer(200, [DONE] * len(body) if isinstance(body, list) else DONE)


async def test_tasks_of_a_batch_are_acknowledged_together() -> None:
    service = Service([task(str(number), value=number) for number in range(1, 32)], judged)
    assert await handled(service, 31, batch=10) == [*range(1, 32)]
    sizes = [len(body) if isinstance(body, list) else 1 for body in service.acks]
    assert sum(sizes) == 31
    assert max(sizes) > 1  # as many as were handled in 50 ms
    assert max(sizes) <= 10


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"state": "done", "attempt": 1}, None),
        ({"state": "held", "attempt": 2}, "lease lost"),
        ({"state": "held", "attempt": 1}, "lease lost"),
        (None, "not sure whether acknowledged"),
    ],
)
async def test_a_lost_answer_to_an_acknowledgement_is_cleared_up_by_the_status(
    status: dict[str, Any] | None, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [httpx.ReadError("lost"), problem(409, "stale")]
    service = Service([task()], lambda body: answers.pop(0))
    service.status = {} if status is None else {"taskId": "1", "index": 1, "added": 1.0, **status}
    assert await handled(service, 1) == [None]
    found = [record.message for record in caplog.records if "away" not in record.message]
    assert len(found) == (1 if words else 0)
    assert words is None or found[0].startswith(words)


async def test_an_acknowledgement_that_came_too_late_is_logged_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Any] = [problem(409, "stale"), answer(200, DONE)]
    service = Service([task("1"), task("2")], lambda body: answers.pop(0))
    await handled(service, 2)
    (record,) = caplog.records
    assert record.message.startswith("lease lost service='a' task='1' attempt=1")


@pytest.mark.parametrize("size", [1, 3])
async def test_a_result_that_the_service_refuses_becomes_an_error_of_its_task_alone(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    def judge(body: Any) -> Any:
        several = body if isinstance(body, list) else [body]
        if any(each.get("result") == 2 for each in several):
            return problem(413, "too large")
        return judged(body)

    service = Service([task(str(number), value=number) for number in (1, 2, 3)], judge)
    await handled(service, 3, batch=size)
    accepted = [each for body in service.acks for each in (body if isinstance(body, list) else [body])]
    errors = [each for each in accepted if "error" in each]
    assert errors == [
        {"taskToken": "token2", "error": {"type": "ResultRefused", "message": "too large"}, "retry": False}
    ]
    assert {each["taskToken"] for each in accepted} == {"token1", "token2", "token3"}
    assert [record.message.split(" service=")[0] for record in caplog.records] == ["result refused"]


async def test_a_refused_token_ends_the_loop() -> None:
    async with queues(lambda *_: problem(401, "no token")) as here:
        with pytest.raises(NotAllowed):
            await drained(here)


async def test_a_service_that_does_not_wait_is_not_called_without_a_pause() -> None:
    def none(*_: Any) -> httpx.Response:
        if len(transport.calls) == 5:
            here.stop()
        return answer(204)

    transport, begun = Scripted(none), asyncio.get_running_loop().time()
    async with queues(transport) as here:
        await drained(here)
    assert asyncio.get_running_loop().time() - begun > 0.15


async def test_names_of_workers_are_their_own() -> None:
    assert made_up() != made_up()
    service = Service([task("1"), task("2")], judged)
    async with queues(service) as here:
        async for each in here["a"].tasks(worker="w1"):
            with each, pytest.raises(WrongCall, match="another loop over a has this name"):
                await drained(here, worker="w1")
            break


async def test_a_loop_says_which_process_it_belongs_to_and_a_call_by_hand_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a process that starts again under its name is known as another one, and a lost answer asked for again."""
    transport = Scripted(Service([task("1"), task("2")], judged))
    async with queues(transport) as here:
        async for each in here["a"].tasks(worker="w"):
            with each:
                pass
            if each.id == "2":
                break
        await here["a"].fetch_many("w", 1)
    calls = zip(transport.calls, transport.headers, strict=True)
    first, second, by_hand = (headers.get("worker-process") for call, headers in calls if call[1].endswith("/fetch"))
    assert first == second == _process()
    assert by_hand is None
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert _process() != first, "of a process that was forked"


def test_options_of_a_loop_are_checked() -> None:
    here = Queues(URL)
    for wrong in ({"batch": 0}, {"batch": 101}, {"time_to_recover": 0}, {"worker": ""}, {"worker": "x" * 129}):
        with pytest.raises(WrongCall):
            here["a"].tasks(**wrong)


def test_the_protocol_has_the_names_that_the_options_have() -> None:
    body = json.loads(NewTask(1, token=None, attempts=0, backoff={"initial": 1}).body({"delay": 0.5}, "me"))
    assert body == {"value": 1, "id": "me", "delay": 0.5, "attempts": 0, "backoff": {"initial": 1}}
