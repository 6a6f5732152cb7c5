"""penstock owner: list, rotate, rewrap and forget the data keys of owners."""

import json
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Forgotten
from penstock.sealing.master import FileKey
from penstock.sealing.sealed import epoch_of
from penstock.webhook import owner_secret
from tests.support.commandline import penstock
from tests.support.sealing import AAD, FIRST, KEYS, SECOND, key_file, keyring

ANN = KEYS.owner_keys("ann")


async def test_owners_are_listed_with_the_age_of_their_keys_and_without_the_keys(redis: Redis, redis_url: str) -> None:
    assert (await penstock("owner", "list", "box", redis=redis_url)).text == (
        "box has no owners with data keys on this server\n"
    )
    ring = keyring(redis)
    await ring.current("ann")
    await ring.rotate("ann")
    await ring.forget("bob")
    shown = await penstock("owner", "list", "box", redis=redis_url)
    assert (shown.status, shown.error) == (0, "")
    assert [line.split()[1] for line in shown.text.splitlines() if " ann " in line or " bob " in line] == ["ann", "bob"]
    listed = await penstock("owner", "list", "box", "--json", redis=redis_url)
    ann, bob = listed.json
    assert (ann["owner"], ann["epoch"], ann["keys"], ann["sealed"], ann["forgotten"]) == ("ann", 2, 2, 0, None)
    assert (bob["owner"], bob["keys"], bob["made"]) == ("bob", 0, None)
    assert bob["forgotten"] >= ann["made"] > 0
    assert set(ann) == {"owner", "epoch", "keys", "made", "sealed", "forgotten"}


async def test_a_new_key_seals_and_the_old_one_opens(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    master = f"file:{key_file(tmp_path / 'master', FIRST)}"
    old = await keyring(redis).seal("ann", b"secret", AAD)
    result = await penstock("owner", "rotate", "box", "ann", "--master", master, redis=redis_url)
    assert (result.status, result.text, result.error) == (0, "ann has data key 2\n", "")
    again = await penstock("owner", "rotate", "box", "ann", "--master", master, "--json", redis=redis_url)
    assert again.json == {"owner": "ann", "epoch": 3}
    assert epoch_of(await keyring(redis).seal("ann", b"", AAD)) == 3
    assert await keyring(redis).open("ann", old, AAD) == b"secret"


async def test_forgetting_says_what_would_go_and_needs_a_yes(redis: Redis, redis_url: str) -> None:
    message = await keyring(redis).seal("ann", b"secret", AAD)
    asked = await penstock("owner", "forget", "box", "ann", redis=redis_url)
    assert (asked.status, asked.text) == (2, "")
    assert asked.error == "penstock: 1 data key of ann would be deleted permanently: pass --yes to confirm\n"
    assert await keyring(redis).open("ann", message, AAD) == b"secret"
    done = await penstock("owner", "forget", "box", "ann", "--yes", redis=redis_url)
    assert (done.status, done.text, done.error) == (0, "deleted 1 data key of ann\n", "")
    with pytest.raises(Forgotten):
        await keyring(redis).open("ann", message, AAD)
    again = await penstock("owner", "forget", "box", "ann", "--yes", "--json", redis=redis_url)
    assert (again.status, again.json) == (0, {"owner": "ann", "deleted": 0})
    assert {*await redis.hgetall(ANN)} == {b"forgotten"}


async def test_a_forgotten_owner_gets_no_new_key(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    await keyring(redis).forget("ann")
    master = f"file:{key_file(tmp_path / 'master', FIRST)}"
    result = await penstock("owner", "rotate", "box", "ann", "--master", master, redis=redis_url)
    assert (result.status, result.error) == (
        1,
        "penstock: the owner 'ann' was forgotten: its data keys are deleted for good\n",
    )


async def test_an_owner_without_keys_may_be_misspelt_and_is_neither_made_nor_forgotten(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    master = f"file:{key_file(tmp_path / 'master', FIRST)}"
    for words in (("forget", "box", "anne", "--yes"), ("rotate", "box", "anne", "--master", master)):
        result = await penstock("owner", *words, redis=redis_url)
        assert (result.status, result.text) == (1, "")
        assert result.error == (
            "penstock: this server has no data keys of the owner 'anne' in box: "
            "`penstock owner list box` shows all; --redis names another server\n"
        )
    assert await redis.keys("*") == []


async def test_all_keys_are_wrapped_anew_with_the_first_master_key(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    message = await keyring(redis).seal("ann", b"secret", AAD)
    await keyring(redis).current("bob")
    file = key_file(tmp_path / "master", SECOND, FIRST)
    result = await penstock("owner", "rewrap", "box", "--master", f"file:{file}", redis=redis_url)
    assert (result.status, result.text, result.error) == (0, "rewrapped 2 data keys of box\n", "")
    assert await keyring(redis, FileKey([SECOND])).open("ann", message, AAD) == b"secret"
    key_file(file, SECOND)
    again = await penstock("owner", "rewrap", "box", "--master", f"file:{file}", "--json", redis=redis_url)
    assert json.loads(again.text) == {"namespace": "box", "rewrapped": 2}
    key_file(file, FIRST)
    wrong = await penstock("owner", "rewrap", "box", "--master", f"file:{file}", redis=redis_url)
    assert (wrong.status, wrong.text) == (1, "")
    assert wrong.error == (
        "penstock: data key 1 of 'ann': wrapped with the master key "
        f"{FileKey([SECOND]).id}, which the file does not have\n"
    )


async def test_a_master_key_that_cannot_be_read_is_a_wrong_call(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    file = key_file(tmp_path / "master", FIRST, mode=0o644)
    wide = await penstock("owner", "rewrap", "box", "--master", f"file:{file}", redis=redis_url)
    assert wide.status == 2
    assert wide.error == (
        f"penstock: master key: {file} cannot be read: its mode is 0644, so others may use it: expected 0400 or 0600\n"
    )
    unknown = await penstock("owner", "rotate", "box", "ann", "--master", str(file), redis=redis_url)
    assert unknown.status == 2
    assert unknown.error.startswith("penstock: expected a master key as file:/PATH or vault:https://")
    assert (await penstock("owner", "rotate", "box", "ann", redis=redis_url)).status == 2


async def test_without_a_server_there_is_one_clear_line() -> None:
    result = await penstock("owner", "list", "box", redis="redis://127.0.0.1:1/0")
    assert (result.status, result.text) == (1, "")
    assert result.error.startswith("penstock: cannot reach redis://127.0.0.1:1/0: connection refused")


async def test_the_secret_of_an_owners_webhooks_is_made_of_the_newest_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HQUEUE_WEBHOOK_SECRET", raising=False)
    file = tmp_path / "secret"
    file.write_text("the-newest the-former\n")
    given = await penstock("owner", "secret", "ann", "--secret-file", str(file), "--json")
    assert given.json == {"owner": "ann", "secret": owner_secret("the-newest", "ann")}
    monkeypatch.setenv("HQUEUE_WEBHOOK_SECRET_FILE", str(file))
    assert (await penstock("owner", "secret", "ann")).text == f"{owner_secret('the-newest', 'ann')}\n"
    monkeypatch.delenv("HQUEUE_WEBHOOK_SECRET_FILE")
    missing = await penstock("owner", "secret", "ann")
    assert (missing.status, "--secret-file" in missing.error) == (2, True)
