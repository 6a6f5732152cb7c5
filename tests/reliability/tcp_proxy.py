"""A proxy as a process, which a test suspends to make the link silent: ``python -m tests.reliability.tcp_proxy``.

TO is the port of the server, PORT its own. It prints ``listens``.
"""

import asyncio
import os

from penstock.testing.proxy import Proxy


async def main() -> None:
    async with Proxy(int(os.environ["TO"]), listen=int(os.environ["PORT"])):
        print("listens", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
