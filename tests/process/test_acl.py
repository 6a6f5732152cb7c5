"""penstock acl: services work with exactly the printed rights, and name all missing rights at once."""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from penstock.base.installed import services
from penstock.cli.acl import _parts
from penstock.core.acl import COMMANDS, METRICS_COMMANDS, SPARK_COMMANDS, _call, script_commands
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.harness import ROOT, Service, until

FILES: dict[str, dict[str, Any]] = {
    "mpush": {"redisNamespace": "t:fan", "in": "t:in", "pending": "t:fan:pending", "out": ["t:one", "t:two", "t:[x]"]},
    "mdispatch": {
        "redisNamespace": "t:track",
        "in": "t:one",
        "pending": "t:track:pending",
        "out": "t:work",
        "res": "t:answers",
        "done": "t:done",
        "messageTimeout": 1,
        "attempts": 2,
        "backoff": [0.1],
        "eventMessages": True,
    },
    "monitor": {"redisNamespace": "t:watch", "watch": ["t:track", "t:fan", "t:send"], "metricsPort": 0},
    "vpush": {"redisNamespace": "t:send", "in": "t:two", "pending": "t:send:pending", "out": "far"},
}
USERS = {"mpush": "fan", "mdispatch": "track", "monitor": "watch", "vpush": "send"}


def take(redis: Any) -> bool:
    """Remove all delivered messages, as workers would; return True."""
    return int(redis.delete("t:work")) >= 0


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    with EmbeddedServer() as here, EmbeddedServer() as there:
        yield here, there


@pytest.fixture
def composition(servers: tuple[EmbeddedServer, EmbeddedServer], tmp_path: Path) -> Path:
    """Write a composition of four services, each with its own user on both (empty) servers; return its folder."""
    here, there = servers
    for server in servers:
        with Redis(port=server.port) as redis:
            redis.flushall()
            redis.execute_command("ACL", "LOG", "RESET")
            for user in (*USERS.values(), "status", "metrics"):
                redis.execute_command("ACL", "DELUSER", user)
    for service, settings in FILES.items():
        own = f"redis://{USERS[service]}:pw@127.0.0.1:{here.port}/0"
        other = {"outRedis": f"redis://send:pw@127.0.0.1:{there.port}/0"} if service == "vpush" else {}
        (tmp_path / f"{service}.yaml").write_text(yaml.safe_dump({"redis": own, **settings, **other}))
    (tmp_path / "composition.yaml").write_text("external: {reads: [far, 't:[[]x]'], writes: [t:in, t:answers]}\n")
    return tmp_path


async def grant(composition: Path, servers: tuple[EmbeddedServer, EmbeddedServer]) -> dict[str, Any]:
    """Create the users that penstock acl prints; return its entries for the server of the lists, by user name."""
    users = (await penstock("acl", composition, "--json", redis=None)).json["users"]
    found = {}
    for user in users:
        (server,) = [each for each in servers if user["server"].endswith(f":{each.port}")]
        with Redis(port=server.port) as redis:
            words = [word.strip('"') for word in user["line"].replace("PASSWORD", "pw").split()]
            redis.execute_command(*[word.replace("\\\\", "\\") for word in words])
        if server is servers[0]:
            found[user["user"]] = user
    return found


def denied(server: EmbeddedServer) -> list[tuple[str, str]]:
    """Return what the server has refused: user and command or key, without optional commands."""
    with Redis(port=server.port, decode_responses=True) as redis:
        log: Any = redis.execute_command("ACL", "LOG")
        return [(each["username"], each["object"]) for each in log if "setinfo" not in each["object"]]


def started(composition: Path, stack: ExitStack) -> dict[str, Service]:
    found = {}
    for service in FILES:
        process = Service(service, composition / f"{service}.log")
        process._environment["PROPS_FILE"] = str(composition / f"{service}.yaml")
        found[service] = stack.enter_context(process)
    return found


async def test_every_service_works_as_the_user_that_acl_prints_and_is_refused_nothing(
    servers: tuple[EmbeddedServer, EmbeddedServer], composition: Path
) -> None:
    here, there = servers
    await grant(composition, servers)
    with ExitStack() as stack, Redis(port=here.port) as redis, Redis(port=there.port) as other:
        running = started(composition, stack)
        until(lambda: all('registered"' in service.log_text() for service in running.values()))
        for number in range(20):
            reply = {"replyTo": "t:track:reply:1"} if number % 2 else {}
            redis.lpush("t:in", json.dumps({"meta": {"id": f"m{number}", **reply}, "number": number}))
        until(lambda: (other.llen("far"), redis.llen("t:[x]"), redis.llen("t:work")) == (20, 20, 20))
        redis.lpush("t:done", *[json.dumps({"xid": f"m{number}"}) for number in range(0, 10, 2)])
        redis.lpush("t:done", '{"xid": "m10", "failed": "no"}', '{"xid": "m12", "touch": 5}', "nonsense")
        redis.lpush("t:answers", *[json.dumps({"meta": {"id": f"m{number}"}}) for number in range(1, 10, 2)])
        until(
            lambda: take(redis) and redis.llen("t:track:reply:1") == 10
        )  # five answers, five errors after two attempts
        until(lambda: take(redis) and redis.zcard("t:track:message:deadlines") == 0)
        running["mpush"].kill()
        running["mpush"].start()
        redis.lpush("t:in", "last")
        until(lambda: other.llen("far") == 21)
        redis.hset("t:fan:2", "reload", "1")
        until(lambda: redis.hget("t:fan:2", "answered") == b"1")
        assert [service.stop() for service in running.values()] == [0, 0, 0, 0]
    assert (denied(here), denied(there)) == ([], [])


async def test_rights_that_a_user_lacks_are_named_all_at_once_and_those_elsewhere_waited_for(
    servers: tuple[EmbeddedServer, EmbeddedServer], composition: Path
) -> None:
    await grant(composition, servers)
    here, there = servers
    with Redis(port=here.port) as redis, Redis(port=there.port) as other:
        less = "-blmove", "-lmove", "-client|setname", "-info", "resetkeys", "~t:fan:*", "~t:in"
        redis.execute_command("ACL", "SETUSER", "fan", *less)
        other.execute_command("ACL", "SETUSER", "send", "-lpushx", "-renamenx")
        with ExitStack() as stack:
            running = started(composition, stack)
            assert running["mpush"].wait() == 1
            until(lambda: "waiting" in running["vpush"].log_text())
            other.execute_command("ACL", "SETUSER", "send", "+lpushx", "+renamenx")
            until(lambda: "resumed" in running["vpush"].log_text())
            log, elsewhere = running["mpush"].log_text(), running["vpush"].log_text()
        assert redis.llen("t:in") == 0
    assert "lacks rights: +blmove +client|setname +info +lmove ~t:one ~t:two ~t:[x]; penstock acl FILE prints" in log
    assert "the other server: the user of this service lacks rights: +lpushx +renamenx; penstock acl" in elsewhere


async def test_outside_of_its_rights_a_user_is_refused(
    servers: tuple[EmbeddedServer, EmbeddedServer], composition: Path
) -> None:
    await grant(composition, servers)
    refused: dict[str, list[tuple[Any, ...]]] = {
        "fan": [("LLEN", "t:work"), ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "SET", "maxmemory", "1"), ("GET", "t:in")],
        "track": [("LPUSH", "t:fan:dead", "x"), ("LPUSH", "elsewhere:reply:1", "x"), ("PUBLISH", "other", "x")],
        "status": [("LPUSH", "t:in", "x"), ("DEL", "t:in"), ("EVAL", "return redis.call('DEL', 't:in')", 0)],
        "metrics": [("LRANGE", "t:in", 0, -1), ("LPUSH", "t:in", "x")],
    }
    for user, commands in refused.items():
        with Redis(port=servers[0].port, username=user, password="pw") as redis:
            for command in commands:
                with pytest.raises(Exception, match=r"(?i)permission"):
                    redis.execute_command(*command)


async def test_the_tools_that_read_work_as_the_user_status(
    servers: tuple[EmbeddedServer, EmbeddedServer], composition: Path
) -> None:
    await grant(composition, servers)
    here = servers[0]
    with ExitStack() as stack, Redis(port=here.port) as redis:
        running = started(composition, stack)
        redis.lpush("t:in", '{"meta": {"id": "a"}}')
        until(lambda: take(redis) and redis.llen("t:track:dead") == 1)
        url = f"redis://status:pw@127.0.0.1:{here.port}/0"
        calls = ["status", "status t:track", "status t:send", "audit --all", "explain t:track a", "trace t:track a"]
        calls.append("bus status")
        results = [await penstock(*words.split(), redis=url) for words in (*calls, "dead t:track", "map --live --once")]
        assert [(result.status, result.error) for result in results] == [(0, "")] * len(results)
        assert [service.stop() for service in running.values()] == [0, 0, 0, 0]
    assert denied(here) == []


async def test_what_only_the_environment_of_the_service_has_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("redisNamespace: site\n")
    result = await penstock("acl", str(tmp_path / "gateway.yaml"))
    assert (result.status, result.error) == (0, "")
    assert "ACL SETUSER gateway reset on >PASSWORD" in result.text
    (tmp_path / "gateway.yaml").write_text("path: nowhere\n")
    wrong = await penstock("acl", str(tmp_path / "gateway.yaml"))
    assert wrong.status == 1
    assert "path" in wrong.error


async def test_a_user_of_the_environment_may_be_an_operators(tmp_path: Path) -> None:
    """Piped to redis-cli, its line would lock the operator out who has exported REDIS."""
    (tmp_path / "mpush.yaml").write_text("in: a\npending: b\nout: [c]\nredisNamespace: d\nredis: redis://h\n")
    result = await penstock("acl", str(tmp_path / "mpush.yaml"), redis="redis://admin:secret@h")
    assert "ACL SETUSER admin reset on" in result.text
    assert "admin is the user of REDIS in the environment: its line takes all of its other rights" in result.error
    named = await penstock("acl", str(tmp_path / "mpush.yaml"), redis=None)
    assert ("ACL SETUSER mpush reset on" in named.text, named.error) == (True, "")


async def test_without_anything_to_print_rights_of_it_is_a_wrong_call() -> None:
    result = await penstock("acl")
    assert (result.status, result.out) == (2, b"")
    assert result.error == "penstock: expected FILE, DIR or --spark KEY\n"


@pytest.mark.parametrize("name", ["acl nothere.yaml", "acl other.yaml", "acl empty"])
async def test_what_is_no_service_is_a_wrong_call(name: str, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("in: a\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "Procfile").write_text("a: sleep 1\n")
    command, file = name.split()
    result = await penstock(command, tmp_path / file)
    assert (result.status, result.out) == (2, b"")


async def test_databases_of_one_server_share_its_users(tmp_path: Path) -> None:
    """Expect one line per user and server, as each line replaces all earlier rights of the user."""
    own = {"in": "in", "pending": "p", "out": "there", "redisNamespace": "v", "service": "vpush"}
    own |= {"redis": "redis://localhost:6379/0", "outRedis": "redis://localhost:6379/1"}
    (tmp_path / "orders.yaml").write_text(yaml.safe_dump(own))
    users = (await penstock("acl", tmp_path / "orders.yaml", "--json", redis=None)).json["users"]
    assert [(user["server"], user["user"]) for user in users] == [
        ("localhost:6379", name) for name in ("orders", "status", "metrics")
    ]
    assert {"in", "there"} <= set(users[0]["keys"])
    bare = await penstock("acl", tmp_path / "orders.yaml", "--server", "localhost:6379", redis=None)
    assert [line.split()[2] for line in bare.text.splitlines()] == ["orders", "status", "metrics"]
    wrong = await penstock("acl", tmp_path / "orders.yaml", "--server", "localhost:6379/0", redis=None)
    assert (wrong.status, wrong.error) == (
        2,
        "penstock: no service uses the server 'localhost:6379/0': expected one of localhost:6379\n",
    )


def test_a_file_alone_has_the_server_and_the_user_of_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS", raising=False)
    (tmp_path / "mpush-orders.yaml").write_text("in: in\npending: p\nout: [a]\n")
    (part,) = _parts(tmp_path / "mpush-orders.yaml", None)
    assert (part.name, part.urls[0]) == ("mpush-orders", "redis://localhost:6379/0")
    rights = part.rights["redis://localhost:6379/0"]
    assert rights.keys == ("a", "in", "p", "p:*")
    assert rights.line("orders").startswith("ACL SETUSER orders reset on >PASSWORD ~a ~in ~p ~p:* +blmove ")


@pytest.mark.parametrize("service", ["mpush", "mbalance", "mdispatch", "monitor", "outbox", "vpush"])
def test_what_the_code_sends_is_declared_and_nothing_else_is(service: str) -> None:
    """Compare with the imported modules: client calls, command words and script names."""
    settings: Any = services()[service].load()
    modules = imported(f"services.{service}.service")
    sent = set[str]().union(*map(commands_in, modules.values()))
    assert settings.sends <= sent, "declared, but nowhere sent"
    files = {name for text in modules.values() for name in re.findall(r"\b([a-z_]+)\.lua\b", text)}
    for script in settings.scripts:
        assert script.name in files or script.stem in " ".join(modules.values()), f"{script} is not called"


def imported(module: str) -> dict[str, str]:
    """Return the source of ``module`` and of all modules of this project that it imports, by name."""
    found: dict[str, str] = {}
    left = [module]
    while left:
        name = left.pop()
        path = ROOT / f"{name.replace('.', '/')}.py"
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        if name in found or not path.exists() or name.split(".")[0] not in ("penstock", "common", "services"):
            continue
        found[name] = path.read_text()
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.ImportFrom) and node.module:
                left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def commands_in(text: str) -> set[str]:
    names = {name.lower(): name for name in COMMANDS} | {
        "delete": "DEL",
        "scan_iter": "SCAN",
        "config_get": "CONFIG|GET",
    }
    found = set(re.findall(r'"([A-Z]+)"', text))
    return found | {names[name] for name in re.findall(r"\.([a-z_]+)\(", text) if name in names}


def test_every_command_that_is_probed_is_known() -> None:
    assert {*COMMANDS} >= SPARK_COMMANDS | METRICS_COMMANDS


def test_every_command_of_every_script_is_known() -> None:
    for file in [*ROOT.glob("*/lua/**/*.lua"), *ROOT.glob("services/*/lua/*.lua")]:
        called = set(re.findall(r"""call\(\s*['"]([A-Z]+)['"]""", file.read_text()))
        assert called <= {command.partition("|")[0] for command in script_commands(file)}, file


def test_the_channel_that_is_probed_is_one_of_the_pattern() -> None:
    assert _call("PUBLISH", "k", (r"my ns\*\[1\]:message:due",)) == ("PUBLISH", b"my ns*[1]:message:due", "0")
