"""Sealed messages and master keys in files: what opens, and what is refused."""

import os
import time
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.base.errors import Forgotten, Unopenable, WrongCall, WrongMasterKey
from penstock.base.secrets import NoSecret
from penstock.sealing import sealed as module
from penstock.sealing.master import FileKey, master_key
from penstock.sealing.sealed import OVERHEAD, DataKey, OwnerKeys, epoch_of
from tests.support.sealing import AAD, FIRST, SECOND, key_file

PLAIN = bytes(range(64, 96))
KEYS = OwnerKeys("ann", {1: DataKey(PLAIN, b"")})
SEALED = KEYS.seal(b"secret", AAD)


@given(some.binary(max_size=5_000), some.binary(max_size=300), some.integers(1, 2**32 - 1))
def test_any_bytes_come_back(plain: bytes, aad: bytes, epoch: int) -> None:
    keys = OwnerKeys("ann", {epoch: DataKey(PLAIN, b"")})
    sealed = keys.seal(plain, aad)
    assert keys.open(sealed, aad) == plain
    assert (len(sealed), epoch_of(sealed)) == (len(plain) + OVERHEAD, epoch)


@given(some.binary(max_size=200))
def test_bytes_that_were_never_sealed_are_refused(other: bytes) -> None:
    with pytest.raises(Unopenable):
        KEYS.open(other, AAD)


def test_every_flipped_bit_is_refused() -> None:
    """The original's cipher, CBC, detects none: IQ-D14."""
    for place in range(len(SEALED) * 8):
        changed = bytearray(SEALED)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(Unopenable):
            KEYS.open(bytes(changed), AAD)


def test_what_is_truncated_or_extended_is_refused() -> None:
    for changed in (*(SEALED[:length] for length in range(len(SEALED))), SEALED + b"\0"):
        with pytest.raises(Unopenable):
            KEYS.open(changed, AAD)


@pytest.mark.parametrize("aad", [b"bob|orders|17", b"ann|other|17", b"ann|orders|18", b"ann|orders|1", b""])
def test_a_message_that_was_moved_to_another_owner_queue_or_task_is_refused(aad: bytes) -> None:
    assert KEYS.open(SEALED, AAD) == b"secret"
    with pytest.raises(Unopenable, match="another owner, queue or task"):
        KEYS.open(SEALED, aad)


def test_keys_of_another_owner_do_not_open() -> None:
    with pytest.raises(Unopenable):
        OwnerKeys("bob", {1: DataKey(SECOND, b"")}).open(SEALED, AAD)
    with pytest.raises(Unopenable, match="data key 1, which its owner does not have"):
        OwnerKeys("bob", {2: DataKey(PLAIN, b"")}).open(SEALED, AAD)


def test_the_newest_key_seals_and_all_of_them_open() -> None:
    both = OwnerKeys("ann", {2: DataKey(SECOND, b""), 1: DataKey(PLAIN, b"")})
    assert both.open(SEALED, AAD) == b"secret"
    assert epoch_of(both.seal(b"", AAD)) == 2


def test_the_same_message_is_never_sealed_to_the_same_bytes() -> None:
    assert len({KEYS.seal(b"secret", AAD) for _ in range(100)}) == 100


def test_a_new_epoch_is_due_without_a_key_after_its_time_and_after_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = DataKey(PLAIN, b"")
    assert not OwnerKeys("ann", {1: key}).due
    assert OwnerKeys("ann", {}).due
    assert OwnerKeys("ann", {1: key}, due_at=time.monotonic()).due
    monkeypatch.setattr(module, "MOST_MESSAGES", 12)
    used = OwnerKeys("ann", {1: key}, sealed_before=10)
    used.seal(b"", AAD)
    assert not used.due
    used.seal(b"", AAD)
    assert used.due
    with pytest.raises(WrongCall):
        OwnerKeys("ann", {}).seal(b"", AAD)


def test_forgotten_keys_neither_seal_nor_open() -> None:
    keys = OwnerKeys("ann", {1: DataKey(PLAIN, b"")})
    keys.forget()
    with pytest.raises(Forgotten, match="'ann' was forgotten"):
        keys.seal(b"", AAD)
    with pytest.raises(Forgotten, match="'ann' was forgotten"):
        keys.open(SEALED, AAD)


@pytest.mark.parametrize("text", [FIRST.hex(), FIRST.hex().upper(), f"\n {b64encode(FIRST).decode()}\r\n\n"])
async def test_a_master_key_is_read_as_hex_or_base64(text: str, tmp_path: Path) -> None:
    file = key_file(tmp_path / "master", mode=0o600)
    file.write_text(text)
    file.chmod(0o400)
    assert (await master_key(f"file:{file}").unwrap(await FileKey([FIRST]).wrap(PLAIN, b"x"), b"x")) == PLAIN


async def test_base64_may_be_that_of_urls_and_without_padding(tmp_path: Path) -> None:
    key = b"\xff\xfe" * 16
    file = key_file(tmp_path / "master")
    file.write_bytes(urlsafe_b64encode(key).rstrip(b"="))
    assert FileKey.read(file).id == FileKey([key]).id


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602, 0o444, 0o440, 0o610])
def test_a_file_that_others_may_use_is_refused(mode: int, tmp_path: Path) -> None:
    file = key_file(tmp_path / "master", FIRST, mode=mode)
    with pytest.raises(NoSecret) as raised:
        FileKey.read(file)
    reason = f"its mode is {mode:04o}, so others may use it: expected 0400 or 0600"
    assert str(raised.value) == f"master key: {file} cannot be read: {reason}"


def test_systemd_gives_a_file_that_its_group_may_read(tmp_path: Path) -> None:
    file = key_file(tmp_path / "master", FIRST, mode=0o440)
    assert FileKey.read(file, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).id == FileKey([FIRST]).id
    with pytest.raises(NoSecret):
        FileKey.read(file, {"CREDENTIALS_DIRECTORY": str(tmp_path / "other")})


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", FIRST, b"x" * 44, FIRST.hex()[:-2].encode(), b64encode(FIRST + b"x"), b"\xff\n", b"=" * 44],
)
def test_what_is_no_master_key_is_refused_without_showing_it(content: bytes, tmp_path: Path) -> None:
    file = key_file(tmp_path / "master")
    file.write_bytes(content)
    with pytest.raises(NoSecret, match="32 bytes as base64") as raised:
        FileKey.read(file)
    if words := content.strip().decode(errors="replace"):
        assert words not in str(raised.value)


@pytest.mark.parametrize("path", ["missing", "."])
def test_a_file_that_cannot_be_read_is_named(path: str, tmp_path: Path) -> None:
    with pytest.raises(NoSecret, match=f"{tmp_path / path} cannot be read: "):
        master_key(f"file:{tmp_path / path}")


async def test_the_first_of_several_master_keys_wraps_and_all_unwrap() -> None:
    old, both, new = FileKey([FIRST]), FileKey([SECOND, FIRST]), FileKey([SECOND])
    wrapped = await old.wrap(PLAIN, b"x")
    assert await both.unwrap(wrapped, b"x") == PLAIN
    assert await new.unwrap(await both.rewrap(wrapped, b"x"), b"x") == PLAIN
    with pytest.raises(WrongMasterKey, match=f"wrapped with the master key {old.id}, which the file does not have"):
        await new.unwrap(wrapped, b"x")


async def test_a_data_key_that_was_changed_or_moved_does_not_unwrap() -> None:
    master = FileKey([FIRST])
    wrapped = await master.wrap(PLAIN, b"dek|ann|1")
    flipped = bytes([*wrapped[:-1], wrapped[-1] ^ 1])
    for given_, context in ((wrapped, b"dek|bob|1"), (flipped, b"dek|ann|1"), (wrapped[:-1], b"dek|ann|1")):
        with pytest.raises(WrongMasterKey):
            await master.unwrap(given_, context)
    for length in range(len(wrapped)):
        with pytest.raises(WrongMasterKey):
            await master.unwrap(wrapped[:length], b"dek|ann|1")


def test_no_key_is_in_a_repr() -> None:
    for one in (FileKey([FIRST]), DataKey(PLAIN, b"wrapped"), KEYS):
        for secret in (FIRST, PLAIN):
            for words in (secret.hex(), b64encode(secret).decode(), str(secret)[2:-1]):
                assert words not in repr(one)


@pytest.mark.parametrize(
    "setting",
    [
        *(
            "",
            "file:",
            "vault:",
            "/run/secrets/master",
            "env:MASTER",
            "vault:https://vault:8200",
            "vault:vault/transit/a",
        ),
        *("vault:https://vault:8200/transit", "vault:https://vault:x/transit/a", "vault:https://a:b@vault/transit/a?x"),
    ],
)
def test_what_names_no_master_key_is_refused(setting: str) -> None:
    with pytest.raises(NoSecret, match="expected"):
        master_key(setting, {"VAULT_TOKEN": "x"})


def test_vault_needs_a_token_and_encryption_unless_it_is_on_this_machine() -> None:
    with pytest.raises(NoSecret, match="no token: set VAULT_TOKEN_FILE or VAULT_TOKEN"):
        master_key("vault:https://vault:8200/transit/a", {})
    with pytest.raises(NoSecret, match="expected https"):
        master_key("vault:http://vault:8200/transit/a", {"VAULT_TOKEN": "x"})
    with pytest.raises(NoSecret, match="nothere has no certificates"):
        master_key("vault:https://vault:8200/transit/a", {"VAULT_TOKEN": "x", "VAULT_CACERT": f"{os.sep}nothere"})
    for host in ("localhost", "127.0.0.1", "[::1]"):
        master_key(f"vault:http://{host}:8200/transit/a", {"VAULT_TOKEN": "x"})
