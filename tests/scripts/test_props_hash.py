"""MP-21: settings from a hash on a Redis server, read like those of a file."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.base.errors import SettingsError
from penstock.base.ports import free_port
from penstock.composition import files as composition
from penstock.testing.server import EmbeddedServer
from services.mpush.settings import Settings
from tests.support.commandline import ROOT, penstock
from tests.support.harness import Service, until

FIELDS = {"in": "demo:in", "pending": "p", "out": '["a", "b"]', "redisNamespace": "demo", "popTimeout": "7", "done": ""}
SECRET: dict[str, Any] = {"requirepass": "s3cret"}


@pytest.fixture
def client(here: Any) -> Any:
    here.hset("cfg", mapping=FIELDS)
    return here


def read(place: str, **environ: str) -> Settings:
    return Settings.load(place, {"REDIS": "redis://h", **environ})


def refused(place: str) -> str:
    with pytest.raises(SettingsError) as refusal:
        read(place)
    return str(refusal.value)


def line(service: Service, event: str) -> dict[str, Any]:
    """Return the last log line of ``event``; {} if none."""
    found = [json.loads(line) for line in service.log_text().splitlines() if f'"{event}"' in line]
    return found[-1] if found else {}


@pytest.mark.usefixtures("client")
def test_mp_21_a_hash_is_read_as_the_environment_is(redis_url: str) -> None:
    """Lists are JSON or separated by commas, an empty field is absent, and the environment wins."""
    settings = read(f"{redis_url}/cfg", MPUSH_PENDING="other")
    assert (settings.in_, settings.out, settings.pop_timeout, settings.done) == ("demo:in", ["a", "b"], 7, None)
    assert settings.pending == "other"
    assert settings.origins()["in"] == f"{redis_url}/cfg"
    assert read(f"{redis_url}?key=cfg").in_ == "demo:in"


def test_mp_21_errors_name_the_key_and_the_field(client: Any, redis_url: str) -> None:
    place = f"{redis_url}/cfg"
    client.hset("cfg", mapping={"popTimeout": "1", "colour": "red"})
    problems = refused(place).splitlines()
    assert f'{place}: popTimeout: expected a whole number of seconds from 5 to 30, found "1"' in problems
    assert f"{place}: colour: unknown property" in problems
    client.hset("cfg", "popTimeout", b"\xff")
    assert refused(place).startswith(f"{place}: popTimeout is not UTF-8")
    assert refused(f"{redis_url}/none").startswith(f"{redis_url}/none: no such key, or no fields: expected a hash")
    client.lpush("list", 1)
    assert refused(f"{redis_url}/list").startswith(f"{redis_url}/list: another type than a hash")
    client.hset("many", mapping=dict.fromkeys(map(str, range(1001)), 1))
    assert "more than 1,000 properties" in refused(f"{redis_url}/many")
    client.hset("long", "in", "x" * 2**20)
    assert "longer than 1048576 bytes" in refused(f"{redis_url}/long")


@pytest.mark.parametrize("place", ["redis://h/0/", "redis://h/cfg", "http://h/0/cfg", "unix:///run/redis.sock"])
def test_mp_21_a_place_that_is_none_is_refused_with_what_was_expected(place: str) -> None:
    said = refused(place)
    assert said.startswith("--props: not the place of a hash (")
    assert "expected redis://host:port/db/key" in said


def test_mp_21_credentials_need_not_stand_on_the_command_line(tmp_path: Path) -> None:
    with EmbeddedServer(**SECRET) as server, Redis.from_url(server.url, password="s3cret") as client:
        client.hset("cfg", mapping=FIELDS)
        url = server.url.replace("redis://", "redis://:s3cret@")
        (tmp_path / "place").write_text(f"{url}/cfg\n")
        for place, environ in ((f"@{tmp_path}/place", {}), ("env:PLACE", {"PLACE": f"{url}/cfg"})):
            settings = read(place, **environ)
            assert settings.in_ == "demo:in"
            assert settings.origins()["in"] == f"{server.url.replace('redis://', 'redis://:***@')}/cfg"
        wrong = refused(f"{url.replace('s3cret', 'wr0ng')}/cfg")
        assert "cannot be read: " in wrong
        assert not any(secret in wrong for secret in ("s3cret", "wr0ng"))
    assert refused("env:PLACE") == "--props: the variable PLACE is empty or not set: expected a URL in it"


@pytest.mark.slow
def test_mp_21_a_service_reads_its_hash_anew_on_sighup(client: Any, redis_url: str, tmp_path: Path) -> None:
    with Service("mpush", tmp_path / "log", redis=redis_url) as service:
        pass
    service._environment["PROPS_FILE"] = f"{redis_url}/cfg"
    service.log.unlink()
    with service:
        client.lpush("demo:in", "one")
        until(lambda: client.llen("b"))
        client.hset("cfg", "out", "a,c")
        service.signal(signal.SIGHUP)
        until(lambda: line(service, "reloaded"))
        assert line(service, "reloaded")["changes"] == {"out": "['a', 'b'] -> ['a', 'c']"}
        client.lpush("demo:in", "two")
        until(lambda: client.llen("c"))
        client.hset("cfg", "popTimeout", "1")
        service.signal(signal.SIGHUP)
        until(lambda: line(service, "reload refused"))
        assert line(service, "reload refused")["problem"].startswith(f"{redis_url}/cfg: popTimeout: expected")
        assert service.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("comes", [True, False])
def test_mp_21_a_server_that_is_away_is_waited_for_and_sigterm_is_obeyed_meanwhile(tmp_path: Path, comes: bool) -> None:
    port = free_port()
    place = f"redis://127.0.0.1:{port}/0/cfg"
    with Service("mpush", tmp_path / "log", redis=place.removesuffix("/cfg")) as service:
        pass
    service._environment["PROPS_FILE"] = place
    with service:
        until(lambda: f"{place}: cannot be read: " in service.log_text())
        assert service.log_text().count("; waiting") == 1
        if comes:
            # A server without the hash is an error, so the hash must exist as soon as the server starts.
            with EmbeddedServer(directory=tmp_path, aof=True) as before, Redis.from_url(before.url) as client:
                client.hset("cfg", mapping=FIELDS)
            with EmbeddedServer(directory=tmp_path, aof=True, port=port):
                until(lambda: line(service, "registered"))
                assert service.stop() == 0
        else:
            assert service.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("key", ["mpush-orders", "orders"])
def test_mp_21_penstock_run_takes_a_hash_too(client: Any, redis_url: str, key: str) -> None:
    client.hset(key, mapping={**FIELDS, **({"service": "mpush"} if key == "orders" else {})})
    call = [sys.executable, "-m", "penstock", "run", f"{redis_url}/{key}", "--check", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "REDIS": redis_url}
    ran = subprocess.run(call, env=environ, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["settings"]["in"] == {"value": "demo:in", "from": f"{redis_url}/{key}"}


@pytest.mark.usefixtures("client")
async def test_mp_21_a_composition_may_name_a_hash(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text(f"fan: python -m services.mpush --props {redis_url}/cfg\n")
    (tmp_path / "composition.yaml").write_text("external: {reads: [a, b], writes: ['demo:in']}\n")
    result = await penstock("lint", tmp_path)
    assert (result.status, result.text.partition(" (")[0]) == (0, f"{tmp_path}: OK")
    (part,) = composition.read(tmp_path).parts
    assert (part.service, part.namespace) == ("mpush", "demo")
