"""Small compositions with tests of their own: mpush, wrong programs, and programs that report what happens."""

from pathlib import Path
from textwrap import dedent

from penstock.testing.spec import CaseResult
from penstock.testing.spec.files import find, read_all
from penstock.testing.spec.run import perform

PROGRAM = '''
import os, signal, sys, time, redis
def connected():
    while True:
        try:
            server = redis.Redis.from_url(os.environ["REDIS"])
            server.ping()
            return server
        except redis.ConnectionError:
            time.sleep(0.02)
def pops_and_pushes():
    """Pop, work, and push; the work takes long for the first b."""
    server = connected()
    while True:
        _, message = server.brpop("in")
        server.lpush("taken", message)
        time.sleep(60 if message == b"b" and server.set("slow", 1, nx=True) else 0)
        server.lpush("out", message)
def late():
    time.sleep(1.5)
    server = connected()
    while True:
        server.lpush("out", server.brpop("in")[1])
def ending():
    """Report the start and SIGTERM, then end with the status in the argument."""
    server = connected()
    server.lpush("out", "started")
    def end(*_):
        server.lpush("out", "asked")
        sys.exit(int(sys.argv[2]))
    signal.signal(signal.SIGTERM, end)
    while True:
        signal.pause()
def beating():
    """Report pauses of the process."""
    server, last = connected(), time.monotonic()
    server.lpush("out", "ready")
    while True:
        time.sleep(0.02)
        if time.monotonic() - last > 1.5:
            server.lpush("out", "held up")
        last = time.monotonic()
def serving():
    """Report each new run of the server."""
    seen = b""
    while True:
        try:
            server = connected()
            run = server.info("server")["run_id"]
            if run != seen:
                server.lpush("out", run)
            seen = run
            time.sleep(0.02)
        except redis.ConnectionError:
            pass
def scripting():
    """Report for each message whether the server has the script."""
    server = connected()
    sha = server.script_load("return 1")
    while True:
        server.brpop("in")
        server.lpush("out", str(server.script_exists(sha)[0]))
def typing():
    """Report the type of a key when it changes."""
    server, last = connected(), None
    while True:
        found = server.type("in").decode()
        if found != last:
            server.lpush("out", found)
        last = found
def failing():
    connected()
    print("no such thing as luck", flush=True)
    sys.exit(7)
globals()[sys.argv[1]]()
'''

FANOUT = """
redis: redis://localhost:6379/0
redisNamespace: fan
in: in
pending: pending
out: [out, copy]
"""


def written(directory: Path, tests: str, *program: str) -> Path:
    """Write a composition with ``tests``, of a program with its arguments or else of mpush; return its folder."""
    (directory / "tests").mkdir()
    (directory / "tests/t.yaml").write_text(dedent(tests))
    if program:
        (directory / "program.py").write_text(PROGRAM)
        (directory / "Procfile").write_text(f"it: exec python {directory}/program.py {' '.join(program)}\n")
        declared = "programs: {it: {reads: [in], writes: [out, taken]}}\n"
        (directory / "composition.yaml").write_text(declared)
    else:
        (directory / "mpush.yaml").write_text(FANOUT)
        (directory / "Procfile").write_text(f"mpush: exec python -m services.mpush --props {directory}/mpush.yaml\n")
    return directory


async def run_case(directory: Path, tests: str, *program: str) -> CaseResult:
    """Return the result of the only test."""
    (case,) = read_all(find(written(directory, tests, *program)))
    return await perform(case)
