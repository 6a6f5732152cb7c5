"""The queue composition, run as by a user, also with a worker that lies and a task that is gone: that is reported."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from compose.queue.scan import scan
from penstock.core.connection import connect
from penstock.testing.server import EmbeddedServer
from tests.support.demos import ROOT, demonstrate

DEMO = """
import sys
from pathlib import Path
from compose.queue import demo
demo.main(Path(sys.argv.pop()), months=24, lease=1.0)
"""
"""Program that runs the demo of the directory in its argument with the last 24 months."""
LIAR = """
import httpx, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
queue, token = os.environ["QUEUE_URL"] + "/queues/summary/", os.environ["QUEUE_WORKER_TOKEN"]
http = httpx.Client(base_url=queue, headers={"authorization": f"Bearer {token}"})
def lie():
    task = http.post("fetch", json={"workerId": "liar", "wait": 0.1}).json()
    result = {"month": task["value"]["month"], "days": 31, "mean": 1.0, "max": 2.0, "rainy": 3, "worker": "liar"}
    return http.post("ack", json={"taskToken": task["taskToken"], "result": result}).status_code == 200
while True:
    try:
        if lie():
            signal.pause()
    except Exception:
        time.sleep(0.05)
"""
"""Worker that does one task, and returns what is not so."""
THIEF = '''
import os, redis, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
server, queue = redis.Redis.from_url(os.environ["REDIS"]), "months:work:queue:anna/summary:"
keys = [queue + part for part in ("ready", "order", "tasks")] + ["months:work:message:deadlines"]
script = """
local id = redis.call('ZRANGE', KEYS[1], -1, -1)[1]
if not id then return end
redis.call('ZREM', KEYS[1], id)
redis.call('ZREM', KEYS[2], id)
redis.call('HDEL', KEYS[3], id)
redis.call('ZREM', KEYS[4], id .. ' anna/summary')
return id
"""
while not server.eval(script, 4, *keys):
    time.sleep(0.01)
signal.pause()
'''
"""Program that removes a task that waits."""


def run(directory: Path, status: int) -> Any:
    done = demonstrate(None, "-c", DEMO, "--json", str(directory))
    assert done.returncode == status, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_every_task_ends_once_while_workers_die_dawdle_and_forge() -> None:
    found = run(ROOT / "compose/queue", 0)
    assert found["differences"] == []
    assert found["tasks"] == {"done": 24, "dead: failed": 1, "dead: cancelled": 1}
    assert sum(found["byWorker"].values()) == len(found["months"]) == 24
    assert found["months"]["2015-07"]["max"] == 35.0
    assert found["recovered"] >= 2
    assert 2 <= found["retried"] <= 8
    assert found["lateAcks"] >= 1
    assert 1 <= found["refused"]["forged task token (409)"] <= 40  # the tasks may be done before it has forged all
    assert sum(found["delivered"].values()) == 25
    assert found["webhooksRefusedAtFirst"] == 3
    assert found["scan"]["plaintext"] == []
    assert len(found["scan"]["files"]) == 3
    assert {name for name, status in found["exitStatus"].items() if status} == {"worker-python"}


def test_the_demo_reports_a_wrong_result_and_a_task_that_was_removed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "compose/queue", tmp_path / "copy")
    with (tmp_path / "copy/Procfile").open("a") as procfile:
        for name, program in (("liar", LIAR), ("thief", THIEF)):
            (tmp_path / f"{name}.py").write_text(program)
            procfile.write(f"{name}: exec python {tmp_path / name}.py\n")
    differences = run(tmp_path / "copy", 1)["differences"]
    [lie] = [line for line in differences if "the result is {" in line]
    assert "'worker': 'liar'" in lie
    [lost] = [line for line in differences if line.endswith(": 0 tasks")]
    assert any(line.startswith(f"{lost.partition(':')[0]}: no outcome came by ") for line in differences)
    assert any(line.startswith("months:work: registered 26 is not done 23") for line in differences)


async def test_the_search_finds_plaintext_in_every_type_of_key_and_what_is_deleted_in_the_aof() -> None:
    secret, value = re.compile(b"s3cret"), b"s3cret " * 1_000  # which a dump compresses
    with EmbeddedServer(aof=True) as server:
        async with connect(server.url) as redis:
            await redis.set("a:control", "here")
            await redis.set("a:gone", value)
            await redis.delete("a:gone")
            aof = server.directory / "appendonlydir"
            deleted = await scan(redis, "a:*", secret, b"here", aof)
            await redis.set("a:string", value)
            await redis.lpush("a:list", value)
            await redis.hset("a:hash", "field", value)
            await redis.sadd("a:set", value)
            await redis.zadd("a:zset", {value: 1})
            await redis.xadd("a:stream", {"field": value})
            found = await scan(redis, "a:*", secret, b"here", None)
            blind = await scan(redis, "b:*", secret, b"here", None)
    assert [place.partition(": ")[0] for place in deleted.found] == ["appendonly.aof.1.incr.aof"]
    assert deleted.unread == []
    types = ("hash", "list", "set", "stream", "string", "zset")
    assert {place.partition(": ")[0] for place in found.found} == {f"a:{name}" for name in types}
    assert (blind.keys, blind.unread) == (0, ["the keys"])
