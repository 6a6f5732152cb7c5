"""Clients that exist, and nginx in front: what they send arrives at a worker, and its answer at them."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from email.message import Message
from email.parser import BytesHeaderParser
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer
from tests.support.harness import Service, until
from tests.support.importers import BODY, Worker, importer, is_ready

LARGE: Final = BODY * 300
"""A body for which curl asks with Expect: 100-continue first."""
TOO_LARGE: Final = bytes(9_000_000)
TARGET: Final = "/a%2Fb?c=%20&d=%C3%A4"
HTTPX: Final = """
import sys, httpx
url, file = sys.argv[1:]
with httpx.Client() as client:
    found = client.post(url, content={content})
head = b"".join(b"%b: %b\\r\\n" % pair for pair in found.headers.raw)
sys.stdout.buffer.write(b"HTTP/1.1 %d\\r\\n%b\\r\\n%b" % (found.status_code, head, found.content))
"""
NODE: Final = """
const [url, file] = process.argv.slice(1);
(async () => {
  const found = await fetch(url, {method: 'POST', body: {content}, duplex: 'half'});
  const head = [...found.headers].map(([name, value]) => `${name}: ${value}\\r\\n`).join('');
  process.stdout.write(`HTTP/1.1 ${found.status}\\r\\n${head}\\r\\n`);
  process.stdout.write(Buffer.from(await found.arrayBuffer()));
})();
"""
CURL: Final = ["curl", "-sS", "-i"]
CLIENTS: Final = {
    "curl": [*CURL, "--data-binary", "@{file}", "{url}"],
    "curl over HTTP/1.0": [*CURL, "-0", "--data-binary", "@{file}", "{url}"],
    "curl that offers h2c": [*CURL, "--http2", "--data-binary", "@{file}", "{url}"],
    "curl in chunks": [*CURL, "-H", "Transfer-Encoding: chunked", "--data-binary", "@{file}", "{url}"],
    "httpx": [sys.executable, "-c", HTTPX.replace("{content}", "open(file, 'rb').read()"), "{url}", "{file}"],
    "httpx in chunks": [sys.executable, "-c", HTTPX.replace("{content}", "open(file, 'rb')"), "{url}", "{file}"],
    "node": ["node", "-e", NODE.replace("{content}", "require('fs').readFileSync(file)"), "{url}", "{file}"],
    "node in chunks": [
        "node",
        "-e",
        NODE.replace("{content}", "require('fs').createReadStream(file)"),
        "{url}",
        "{file}",
    ],
}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Web"]:
    with EmbeddedServer() as server, Worker(server.url), ExitStack() as services:
        yield Web(server.url, tmp_path_factory.mktemp("web"), services)


class Web:
    """Two importers that trust a proxy, one that does not, and a worker, which tests share."""

    def __init__(self, url: str, path: Path, services: ExitStack) -> None:
        self.path = path
        self.ports = [free_port() for _ in range(3)]
        trusted: list[dict[str, Any]] = [{"trusted_proxies": ["127.0.0.0/8"]}] * 2
        self.importers = [
            services.enter_context(importer(url, port, path / f"{port}.log", **settings))
            for port, settings in zip(self.ports, [*trusted, {}], strict=True)
        ]
        self.wait()

    def wait(self) -> None:
        """Wait until all importers are ready."""
        for port in self.ports:
            until(partial(is_ready, port))

    @property
    def alone(self) -> str:
        """Return the URL of the importer that trusts nobody."""
        return f"http://127.0.0.1:{self.ports[2]}"


class Found:
    """An answer as a client printed it: its status, headers and body."""

    def __init__(self, printed: bytes) -> None:
        head, _, self.body = printed.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head, _, self.body = self.body.partition(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        self.status = int(line.split()[1])
        self.headers: Message = BytesHeaderParser().parsebytes(rest)


def ask(client: str, url: str, body: bytes, path: Path) -> Found:
    """Return what a client gets that posts ``body``; skip the test if there is no such client."""
    words = CLIENTS[client]
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not installed")
    file = path / "body"
    file.write_bytes(body)
    filled = [word.replace("{url}", url).replace("{file}", str(file)) for word in words]
    done = subprocess.run(filled, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return Found(done.stdout)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("body", [b"", BODY, LARGE], ids=["empty", "small", "large"])
def test_clients_that_exist_are_served(web: Web, tmp_path: Path, client: str, body: bytes) -> None:
    found = ask(client, web.alone + TARGET, body, tmp_path)
    assert (found.status, found.body == body) == (200, True)
    assert [found.headers[f"x-{name}"] for name in ("method", "path", "query")] == ["POST", *TARGET.split("?")]
    assert found.headers.get_all("set-cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_that_exist_read_why_a_body_is_refused(web: Web, tmp_path: Path, client: str) -> None:
    """The server answers 413 while they still send, and closes: no client may report a broken connection instead."""
    found = ask(client, web.alone, TOO_LARGE, tmp_path)
    assert (found.status, found.body) == (413, b'{"error":"the body is longer than 8388608 bytes"}\n')


def test_curl_uses_a_connection_again(web: Web) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    words = ["curl", "-sS", "-w", "%{http_code} %{num_connects}\n", web.alone, "-I", web.alone, web.alone]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("200")] == ["200 1", "200 0", "200 0"]


NGINX: Final = """
{user}
worker_processes 1; daemon off; pid {path}/pid; error_log {path}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {path}; proxy_temp_path {path}; fastcgi_temp_path {path};
  uwsgi_temp_path {path}; scgi_temp_path {path};
  upstream trusting {{ server 127.0.0.1:{ports[0]} max_fails=0; server 127.0.0.1:{ports[1]} max_fails=0; keepalive 8; }}
  upstream distrusting {{ server 127.0.0.1:{ports[2]}; }}
  proxy_http_version 1.1; proxy_set_header Connection "";
  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
  proxy_set_header X-Forwarded-Proto https; proxy_set_header X-Forwarded-Host $host;
  server {{
    listen 127.0.0.1:{front};
    location / {{ proxy_pass http://trusting; }}
    location /distrusted {{ proxy_pass http://distrusting; }}
  }}
}}
"""


@pytest.fixture(scope="module")
def nginx(web: Web) -> Iterator[str]:
    """Yield the URL of nginx in front of the importers."""
    if not (program := shutil.which("nginx") or shutil.which("/usr/sbin/nginx")):
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    front, conf = free_port(), web.path / "nginx.conf"
    user = "" if os.geteuid() else "user root;"
    conf.write_text(NGINX.format(path=web.path, front=front, ports=web.ports, user=user))
    with subprocess.Popen([program, "-c", str(conf), "-p", str(web.path)]) as process:
        try:
            until(lambda: is_ready(front))
            yield f"http://127.0.0.1:{front}"
        finally:
            process.terminate()


@pytest.mark.parametrize("trusted", [True, False])
def test_nginx_in_front_says_where_a_request_came_from_if_it_is_trusted(nginx: str, trusted: bool) -> None:
    path = "/a" if trusted else "/distrusted"
    found = httpx.post(nginx + path, content=BODY, headers={"x-forwarded-for": "192.0.2.7", "host": "example.org"})
    assert (found.status_code, found.content, found.headers["x-path"]) == (200, BODY, path)
    said = {name: value for name, value in found.headers.items() if name.startswith("x-forwarded")}
    assert said == (
        {
            "x-forwarded-for": "192.0.2.7, 127.0.0.1, 127.0.0.1",
            "x-forwarded-proto": "https",
            "x-forwarded-host": "example.org",
        }
        if trusted
        else {"x-forwarded-for": "127.0.0.1"}
    )


@contextmanager
def ended(service: Service, how: str) -> Iterator[None]:
    """End one importer while the block runs; start it again afterwards."""
    if how == "killed":
        service.kill()
    else:
        assert service.stop() == 0
    yield
    service.start()


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_no_request_through_nginx_fails_if_one_of_two_importers_ends(web: Web, nginx: str, how: str) -> None:
    """Of an importer that is killed, no GET: nginx asks the other one, which it does not do with a POST."""
    got, wrong, running = Counter[int](), list[str](), True
    methods = ["GET"] if how == "killed" else ["GET", "POST"]

    async def load(number: int) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            while running:
                path = f"/{number}/{got.total()}"
                found = await client.request(methods[number % len(methods)], nginx + path)
                got[found.status_code] += 1
                if found.headers.get("x-path") != path:
                    wrong.append(f"{path}: {found.status_code} {found.text}")

    async def served(more: int) -> None:
        wanted = got.total() + more
        async with asyncio.timeout(60):
            while got.total() < wanted:
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as clients:
        for number in range(8):
            clients.create_task(load(number))
        for each in web.importers[:2]:
            await served(100)
            stack = ExitStack()
            await asyncio.to_thread(stack.enter_context, ended(each, how))
            await served(100)
            await asyncio.to_thread(stack.close)
            await asyncio.to_thread(web.wait)
        running = False
    assert wrong == []
    assert set(got) == {200}
