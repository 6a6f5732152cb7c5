"""penstock token: what may be a typing error is said, and the token is made."""

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.core.tokens import RIGHTS
from services.himporter.service import RIGHT
from services.hqueue.request import RIGHTS as OF_TASKS
from tests.support.commandline import penstock


async def test_a_token_for_a_namespace_without_a_service_is_made_with_a_note(redis: Redis, redis_url: str) -> None:
    made = await penstock("token", "add", "web:imprter", "ada", redis=redis_url)
    assert (made.status, made.text[:4]) == (0, "pst_")
    assert "penstock: no service has registered in web:imprter so far" in made.error
    await redis.set(Keys("web:importer").shape, "{}")
    assert "no service" not in (await penstock("token", "add", "web:importer", "ada", redis=redis_url)).error


@pytest.mark.parametrize(("right", "noted"), [("ask", False), ("aks", True)])
async def test_a_right_that_no_service_of_ours_knows_is_noted(redis_url: str, right: str, noted: bool) -> None:
    made = await penstock("token", "add", "web", "ada", "--right", right, "--json", redis=redis_url)
    assert made.json["rights"] == [right]
    assert (f"no service of ours knows the right {right}: these are ask, " in made.error) == noted


def test_the_rights_are_those_of_the_services() -> None:
    assert set(RIGHTS) == {RIGHT, *OF_TASKS.values(), "admin"}
