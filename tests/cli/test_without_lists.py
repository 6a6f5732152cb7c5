"""Commands about a service that has no lists, as a gateway has none: they say so."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.base.shape import shape_json
from services.gateway.settings import Settings
from tests.support.commandline import penstock

NAMESPACE = "site:gateway"
PROPS = f"redis: redis://localhost:6379/0\nredisNamespace: {NAMESPACE}\n"


@pytest.fixture
async def gateway(redis: Redis, redis_url: str) -> None:
    """Write what a gateway writes when it registers."""
    keys, now = Keys(NAMESPACE), (await redis.time())[0]
    fields: dict[Any, Any] = {"host": "oak", "pid": "7", "started": now, "renewed": now, "service": "gateway"}
    await redis.hset(keys.instance("1"), mapping=fields)
    await redis.expire(keys.instance("1"), 60)
    await redis.lpush(keys.ids, "1")
    await redis.zadd(keys.owners, {"1": now})
    settings = Settings(redis=redis_url, redis_namespace=NAMESPACE, secret="long enough")
    await redis.set(keys.shape, shape_json(settings))
    await redis.hset(keys.metric("gateway"), "connections", "3")


@pytest.mark.usefixtures("gateway")
async def test_status_shows_its_instances_and_metrics(redis_url: str) -> None:
    result = await penstock("status", NAMESPACE, redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert f"{NAMESPACE}: gateway has no lists\n" in result.text
    assert "connections 3" in result.text


@pytest.mark.usefixtures("gateway")
async def test_audit_has_nothing_to_prove(redis_url: str) -> None:
    one = await penstock("audit", NAMESPACE, redis=redis_url)
    assert (one.status, one.text) == (1, "")
    assert f"gateway has no lists: there is nothing to audit in {NAMESPACE}" in one.error
    every = await penstock("audit", "--all", redis=redis_url)
    assert (every.status, every.text) == (0, "no service here has lists: there is nothing to audit\n")


@pytest.mark.usefixtures("gateway")
async def test_map_draws_it_as_it_runs(redis_url: str) -> None:
    drawn = await penstock("map", "--live", "--once", redis=redis_url)
    assert f"{NAMESPACE} (gateway)  no lists" in drawn.text
    assert "lists unknown" not in drawn.text
    chart = await penstock("map", "--live", "--once", "--mermaid", redis=redis_url)
    assert f'part0["{NAMESPACE} (gateway)<br/>no lists' in chart.text


async def test_map_draws_it_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(PROPS + "secret: long enough\n")
    drawn = await penstock("map", str(tmp_path))
    assert "gateway  no lists" in drawn.text
    none = await penstock("audit", f"{tmp_path}/")
    assert "no service reads a list, so there is nothing to audit" in none.error


async def test_lint_leaves_the_secret_to_the_environment(tmp_path: Path) -> None:
    props = tmp_path / "gateway.yaml"
    props.write_text(PROPS)
    assert (await penstock("lint", str(props))).text == f"{props}: OK\n"
    assert (await penstock("lint", str(tmp_path))).text.startswith(f"{tmp_path}: OK")
    props.write_text(PROPS + "secret: short\n")
    found = await penstock("lint", str(props))
    assert f"{props}:3: secret: expected a text of at least 8 characters" in found.text


async def test_lint_reads_the_file_of_a_secret_unless_only_a_container_has_it(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(PROPS)
    (tmp_path / "secret").write_text("short\n")
    gateway = "python -m services.gateway --props gateway.yaml"
    procfile = tmp_path / "Procfile"
    procfile.write_text(f"gateway: GATEWAY_SECRET_FILE={tmp_path}/secret exec {gateway}\n")
    assert "expected a text of at least 8 characters" in (await penstock("lint", str(tmp_path))).text
    (tmp_path / "secret").write_text("long enough\n")
    assert (await penstock("lint", str(tmp_path))).text.startswith(f"{tmp_path}: OK")
    procfile.unlink()
    (tmp_path / "compose.yaml").write_text(
        "services:\n  gateway:\n    command: [services.gateway, --props, gateway.yaml]\n"
        "    environment: {GATEWAY_SECRET_FILE: /run/secrets/no-such-file}\n"
    )
    assert (await penstock("lint", str(tmp_path))).text.startswith(f"{tmp_path}: OK")
