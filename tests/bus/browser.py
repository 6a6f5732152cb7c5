"""Headless Chromium for tests, over its DevTools protocol."""

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from penstock.core.orphaned import Watchdog

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page:
    """One page."""

    def __init__(self, connection: ClientConnection, session: str) -> None:
        self._connection, self._session = connection, session
        self._numbers = count(1_000)

    async def run(self, script: str) -> Any:
        """Return what the body of an asynchronous function returns on the page; fail if it throws."""
        options = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        expression = f"(async () => {{ {script} }})()"
        found = await self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        """Load a page."""
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(30):
            while not await self.run(
                f"return document.readyState === 'complete' && location.href === {json.dumps(url)}"
            ):
                await asyncio.sleep(0.05)

    async def picture(self, *, dark: bool = False) -> bytes:
        """Return what the page looks like, as PNG."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the DevTools protocol."""
        number = next(self._numbers)
        call = {"id": number, "method": method, "params": params, "sessionId": self._session}
        return await _answer(self._connection, call)


async def _answer(connection: ClientConnection, call: dict[str, Any]) -> Any:
    await connection.send(json.dumps(call))
    async with asyncio.timeout(30):
        while True:
            row = json.loads(await connection.recv())
            if row.get("id") == call["id"]:
                assert "error" not in row, row
                return row["result"]


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """Yield a page; skip the test where there is no Chromium."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    options = ["--headless", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    if os.geteuid() == 0:
        options.insert(0, "--no-sandbox")
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(program, *options, stderr=pipe, stdout=nothing)
    watchdog = Watchdog(process.pid)
    assert process.stderr
    draining = list[asyncio.Task[bytes]]()
    try:
        async with asyncio.timeout(60):
            while not (line := (await process.stderr.readline()).decode()).startswith("DevTools listening on "):
                assert line, "Chromium has ended"
        draining.append(asyncio.create_task(process.stderr.read()))
        async with connect(line.split()[-1], max_size=1 << 26, proxy=None) as connection:
            target = {"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}
            found = await _answer(connection, target)
            attach = {"targetId": found["targetId"], "flatten": True}
            attached = await _answer(connection, {"id": 2, "method": "Target.attachToTarget", "params": attach})
            yield Page(connection, attached["sessionId"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.gather(*draining)
        watchdog.release()
