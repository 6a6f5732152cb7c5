"""The pages of compose/web, and how its load reads answers and counts them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from compose.ending import Ending
from compose.outcome import Outcome
from compose.web.client import Broken, Client
from compose.web.demo import judge
from compose.web.load import Load, Step
from compose.web.pages import Pages
from penstock.accounting.audit import Audit, Output

ROWS = Path("compose/weather/seattle-weather.csv").read_bytes().splitlines()[1:]
SOUND = Audit("web:router", 1, {}, [], [], [])


async def test_a_day_is_json_and_a_month_html() -> None:
    pages = Pages(ROWS)
    day = await pages.answer("/days/2012-01-02")
    assert (day["status"], json.loads(day["body"])["rain"]) == (200, 10.9)
    month = await pages.answer("/months/2012-02")
    assert (month["status"], month["body"].count("<tr>")) == (200, 29)
    assert "2015: 1139 mm of rain" in (await pages.answer("/report"))["body"]


@pytest.mark.parametrize("path", ["/days/2012-02-30", "/days/", "/months/12", "/report/2012", "/elsewhere", "/"])
async def test_another_path_is_404(path: str) -> None:
    assert (await Pages(ROWS).answer(path))["status"] == 404


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[tuple[int, list[str]]]:
    """Answer each request with the next of ``answers``, and close the connection for an empty one."""
    left, asked, serving = list(answers), list[str](), set[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with closing(writer), suppress(asyncio.IncompleteReadError):  # the client has closed
            answer = OK
            while answer:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                await reader.readexactly(int(lines[-3].partition(":")[2]))
                asked.append(lines[0])
                writer.write(answer := left.pop(0))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked
        await asyncio.gather(*(task for task in serving if task))


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


async def test_a_client_keeps_its_connection_until_it_breaks() -> None:
    async with serving(OK, OK, b"", OK) as (port, asked):
        client = Client("127.0.0.1", port)
        assert [(await client.ask("GET", "/a")).body for _ in range(2)] == [b"hi", b"hi"]
        with pytest.raises(Broken, match="ended before an answer"):
            await client.ask("POST", "/b", b"body")
        assert (await client.ask("GET", "/c")).status == 200
        client.close()
    assert asked == ["GET /a HTTP/1.1", "GET /a HTTP/1.1", "POST /b HTTP/1.1", "GET /c HTTP/1.1"]


async def test_a_load_counts_what_was_answered_otherwise_than_expected() -> None:
    wrong = b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"
    async with serving(*[wrong] * 20) as (port, asked):
        load = Load("127.0.0.1", port, rate=1_000)
        load.begin("only")
        await load.run(0.02)  # timing: 20 requests
    [step] = load.steps
    assert (step.asked, step.statuses, len(asked)) == (20, Counter({500: 20}), 20)
    assert len(step.failed) + len(step.undone) == 20
    assert load.noted == []


def outcome(steps: list[Step], *, confirmed: list[str], kept: list[str], dead: int = 0, status: int = 0) -> Outcome:
    counts = {"timeout": 0, "retry": 0, "dead": dead}
    audits = {"web:router": SOUND}
    return judge(steps, Counter(confirmed), Counter(kept), audits, counts, Ending({"router": status}, {}, []))


def test_an_outcome_names_every_difference() -> None:
    fine = Step("all run", asked=2, undone=["POST /notes: 504"])
    assert outcome([fine], confirmed=["a"], kept=["a", "b"], dead=1).differences == []
    bad = Step("killed", asked=1, failed=["GET /: no answer"])
    found = outcome([bad], confirmed=["a", "c"], kept=["a", "a"], dead=1, status=1).differences
    assert found == [
        "failed: GET /: no answer",
        "a: kept 2 times",
        "c: confirmed, and not kept",
        "1 dead letters more than POSTs that were not done",
        "router: exit status 1",
    ]


def test_a_narrow_terminal_cuts_no_number() -> None:
    steps = [Step(name, 1_033, Counter({200: 1_020}), seconds=[5.59]) for name in ("all run", "worker killed") * 2]
    out = StringIO()
    works = [Output(f"web:work:{each}", 1_388, 1_388, 0, 0, 0) for each in (1, 2)]
    audits = {"web:balance": Audit("web:balance", 1, {}, works, [], [])}
    judge(steps, Counter(), Counter(), audits, Counter(), Ending({}, {}, [])).show(Console(file=out, width=60))
    assert "…" not in out.getvalue()
    assert out.getvalue().count("1,388") == 4
    assert "5.590" in out.getvalue()
