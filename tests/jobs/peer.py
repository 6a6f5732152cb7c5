"""A program of peers of `penstock.jobs`, with the protocol and the roles of ``hfx_peer.js``."""

import asyncio
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from penstock.jobs import DISTRIBUTED, Attempt, Completion, Consumer, FinishTimeout, Jobs, Rejected
from tests.bus.node import LONGEST_LINE

Out = Callable[..., None]
Take = Callable[[str], Awaitable[None]]


def error_of(found: Any) -> Any:
    """Return what hfxbus shows of an error."""
    return {name: found.get(name) for name in ("name", "message", "code")} if isinstance(found, dict) else found


def completions(found: dict[str, Completion]) -> dict[str, Any]:
    return {group: "done" if each.error is None else error_of(each.error) for group, each in found.items()}


async def producer(jobs: Jobs, out: Out, stream: str, options: dict[str, Any]) -> Take:
    sender = jobs.producer(options.get("id"))
    route = DISTRIBUTED if options.get("route") == "*" else options.get("route")

    async def take(line: str) -> None:
        call = json.loads(line)
        job = jobs.job(call.get("id"))
        for key, value in call.get("set", {}).items():
            job.set(key, value)
        for key, value in call.get("raw", {}).items():
            job.set(key, b64decode(value))
        groups = call.get("wait_for", ())
        sent = await sender.send(stream, job, wait_for=groups, route=route, capped=call.get("capped"))
        out("sent", job.id)
        if not groups:
            return
        try:
            found = await sent.finished(call.get("timeout"), reject=call.get("reject", False))
        except (FinishTimeout, Rejected) as error:
            out("failed", job.id, error.code if isinstance(error, FinishTimeout) else completions(error.completed))
            return
        got, raw = call.get("get", ()), call.get("raw_get", ())
        for key in (*got, *raw):
            job.get(key, bytes if key in raw else None)
        values = [
            {"base64": b64encode(each).decode()} if isinstance(each, bytes) else each for each in await job.pull()
        ]
        out("finished", job.id, completions(found), dict(zip((*got, *raw), values, strict=True)))

    out("ready", sender.id)
    return take


async def consumer(jobs: Jobs, out: Out, stream: str, options: dict[str, Any]) -> Take:
    chosen: dict[str, Any] = {
        name: options[name] for name in ("id", "concurrency", "claim_after", "attempts") if name in options
    }
    route = DISTRIBUTED if options.get("route") == "*" else options.get("route")
    worker = Consumer(options["group"], route=route, **{"attempts": 1, **chosen})

    @worker.job(stream, deadline=options.get("deadline", 30), start=options.get("start", "0"))
    async def process(job: Attempt) -> None:
        [value] = await job.get("in").pull()
        out("job", job.id, value)
        call = value if isinstance(value, dict) else {}
        if call.get("fail"):
            error = Exception(call["fail"])
            if "code" in call:
                error.code = call["code"]  # type: ignore[attr-defined]
            raise error
        if call.get("hang"):
            await asyncio.Event().wait()
        await asyncio.sleep(call.get("sleep", 0))
        if call.get("raw"):
            [bin] = await job.get("bin", bytes).pull()
            await job.set("bout", bin[::-1]).push()
        else:
            await job.set("out", {"echo": value}).push()
        out("done", job.id)

    async def take(line: str) -> None:
        if line == "pause":
            await worker.pause()
            out("paused")
        else:
            worker.play()

    running.add(asyncio.ensure_future(jobs.run(worker)))
    out("ready", worker.id)
    return take


ROLES = {"producer": producer, "consumer": consumer}
running = set[asyncio.Future[None]]()


async def play(
    number: int, lines: "asyncio.Queue[str | None]", role: str, stream: str, options: Any, where: Any
) -> None:
    """Be one peer until it is closed."""

    def out(*values: Any) -> None:
        sys.stdout.write(json.dumps([number, *values]) + "\n")
        sys.stdout.flush()

    async with Jobs(*where["redis"], prefix=options.get("prefix", "hfxbus"), routes=options.get("routes")) as jobs:
        take = await ROLES[role](jobs, out, stream, options)
        while (line := await lines.get()) is not None:
            running.add(asyncio.ensure_future(take(line)))
    out("gone")


async def main() -> None:
    """Do what the lines of stdin say, until it ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    queues = dict[int, asyncio.Queue[str | None]]()
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), sys.stdin)
    async for line in reader:
        number, what, *rest = json.loads(line)
        if what == "open":
            queues[number] = asyncio.Queue()
            running.add(asyncio.ensure_future(play(number, queues[number], *rest)))
        else:
            queues[number].put_nowait(rest[0] if what == "line" else None)


if __name__ == "__main__":
    asyncio.run(main())
