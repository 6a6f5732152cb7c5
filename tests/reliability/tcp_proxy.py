"""A proxy as a process, which a test suspends to make the link silent: ``python -m tests.reliability.tcp_proxy``.

TO is the port of the server, PORT its own. It prints ``listens``.
"""

import asyncio
import os
from contextlib import suppress


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    there, back = await asyncio.open_connection("127.0.0.1", int(os.environ["TO"]))
    await asyncio.wait(
        [asyncio.ensure_future(pump(reader, back)), asyncio.ensure_future(pump(there, writer))],
        return_when=asyncio.FIRST_COMPLETED,
    )
    for each in (writer, back):
        each.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(os.environ["PORT"]))
    print("listens", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
