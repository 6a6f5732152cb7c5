"""Tokens: who may ask an importer, as long as the token lives, and what the command line says of them."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from common.http import tokens as module
from penstock.core.tokens import add_token, digest_of, read_tokens, revoke_token
from tests.http.clients import Answer
from tests.http.importing import KEYS, OUT, Importing, importing
from tests.support.commandline import penstock


@pytest.fixture
async def here(redis: "Redis", redis_url: str) -> AsyncIterator[Importing]:
    async with importing(redis, redis_url, tokens=True) as here:
        yield here


async def ask(here: Importing, *headers: str) -> Answer:
    """Ask with ``headers``; a worker answers what becomes a message."""
    async with here.connect() as client:
        lines = "".join(f"{line}\r\n" for line in headers)
        asking = asyncio.create_task(client.ask(f"GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode()))
        while not asking.done():
            if await here.redis.llen(OUT):
                request = await here.request()
                await here.answer(request, body=json.dumps(request))
            await asyncio.sleep(0.01)
        return await asking


async def test_a_token_is_needed_and_workers_see_its_owner_but_not_the_token(here: Importing) -> None:
    token, made = await add_token(here.redis, KEYS, "ann", ("ask",), None)
    answer = await ask(here, f"Authorization: Bearer {token}")
    assert answer.status == 200
    request = json.loads(answer.body)
    assert request["meta"]["owner"] == "ann"
    assert token not in answer.body.decode()
    stored = await here.redis.hgetall(KEYS.token(made.digest))
    assert stored[b"owner"] == b"ann"
    assert token not in str(stored)


WRONG = {
    "none": [],
    "unknown": ["Authorization: Bearer pst_" + "x" * 43],
    "of another kind": ["Authorization: Basic YTpi"],
    "too long": ["Authorization: Bearer pst_" + "x" * 1_000],
    "twice": ["Authorization: Bearer pst_" + "x" * 43] * 2,
}


@pytest.mark.parametrize("case", WRONG)
async def test_without_a_token_that_is_known_nothing_becomes_a_message(here: Importing, case: str) -> None:
    answer = await ask(here, *WRONG[case])
    assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer")
    assert await here.redis.llen(OUT) == 0


async def test_a_token_without_the_right_is_403(here: Importing) -> None:
    token, _ = await add_token(here.redis, KEYS, "ann", ("fetch", "ack"), None)
    assert (await ask(here, f"Authorization: Bearer {token}")).status == 403


async def test_a_token_that_ends_or_is_revoked_is_refused(here: Importing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.05)
    ending, _ = await add_token(here.redis, KEYS, "ann", ("ask",), 0.1)
    revoked, made = await add_token(here.redis, KEYS, "bob", ("ask",), 60)
    assert (await ask(here, f"authorization: bearer {revoked}")).status == 200
    assert [token.owner for token in await revoke_token(here.redis, KEYS, made.id)] == ["bob"]
    for token in (ending, revoked):
        async with asyncio.timeout(30):
            while (await ask(here, f"Authorization: Bearer {token}")).status != 401:
                await asyncio.sleep(0.05)
    assert await read_tokens(here.redis, KEYS) == []
    assert not await here.redis.exists(KEYS.tokens)


async def test_a_token_is_looked_up_once_in_a_while(here: Importing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_SECONDS", 3_600)
    token, made = await add_token(here.redis, KEYS, "ann", ("ask",), None)
    assert (await ask(here, f"Authorization: Bearer {token}")).status == 200
    await here.redis.delete(KEYS.token(made.digest))
    assert (await ask(here, f"Authorization: Bearer {token}")).status == 200


async def test_the_command_line_makes_lists_and_revokes_tokens(redis: "Redis", redis_url: str) -> None:
    result = await penstock("token", "add", "web", "ann", "--right", "ask", "--days", "2", redis=redis_url)
    assert result.status == 0
    token = result.text.strip()
    assert token.startswith("pst_")
    id = digest_of(token)[:12]
    assert result.error.startswith(f"token {id} of ann for ask; ends 20")
    listed = await penstock("token", "list", "web", "--json", redis=redis_url)
    (only,) = json.loads(listed.text)
    assert (only["id"], only["owner"], only["rights"]) == (id, "ann", ["ask"])
    assert 172_790 < only["expires"] - only["created"] < 172_810
    assert id in (await penstock("token", "list", "web", redis=redis_url)).text
    assert token not in listed.text
    empty = await penstock("token", "revoke", "web", "", redis=redis_url)
    assert (empty.status, "expected an id" in empty.error) == (2, True)
    assert (await penstock("token", "revoke", "web", id, redis=redis_url)).text == f"token {id} of ann is revoked\n"
    again = await penstock("token", "revoke", "web", id, redis=redis_url)
    assert (again.status, again.error) == (
        1,
        f"penstock: web has no token {id}: `penstock token list web` shows all\n",
    )
    assert (await penstock("token", "list", "web", redis=redis_url)).text == "web has no tokens\n"


@pytest.mark.parametrize("words", [("ann", "--right", "Ask me"), (" ",), ("ann", "--days", "0")])
async def test_the_command_line_refuses_what_makes_no_token(
    redis: "Redis", redis_url: str, words: tuple[str, ...]
) -> None:
    assert (await penstock("token", "add", "web", *words, redis=redis_url)).status == 2
    assert await redis.keys() == []
