"""A master key in Vault: a stub of its transit engine wraps, unwraps, refuses and goes away."""

import json
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from redis.asyncio import Redis

from penstock.base.errors import Unauthorized, Unavailable, WrongMasterKey
from penstock.base.secrets import NoSecret
from penstock.sealing import vault as module
from penstock.sealing.master import MasterKey, master_key
from tests.support.harness import PATIENCE
from tests.support.sealing import AAD, KEYS, key_file, keyring

TOKEN = "hvs.CAESIJ-secret"
PLAIN = bytes(range(64, 96))


class Vault:
    """Answers as Vault's transit engine does for one key, which has several versions."""

    def __init__(self) -> None:
        self.versions = [os.urandom(32)]
        self.token = TOKEN
        self.asked = list[str]()
        self.status = 0
        """The status of all answers, with what was sent quoted in them; 0 to do as asked."""
        self.content: bytes | None = None
        """The content of all answers."""

    def answer(self, path: str, token: str, body: dict[str, str]) -> tuple[int, Any]:
        self.asked.append(path)
        if self.status:
            return self.status, {"errors": [f"{token} {body}"]}
        if token != self.token:
            return 403, {"errors": ["permission denied"]}
        verbs = {"encrypt": self._encrypt, "decrypt": self._decrypt, "rewrap": self._rewrap}
        verb, _, key = path.removeprefix("/v1/transit/").partition("/")
        if verb not in verbs or key != "penstock":
            return 400, {"errors": ["encryption key not found"]}
        try:
            return 200, {"data": verbs[verb](body)}
        except InvalidTag:
            return 400, {"errors": ["cipher: message authentication failed"]}

    def _encrypt(self, body: dict[str, str]) -> dict[str, Any]:
        nonce = os.urandom(12)
        sealed = nonce + AESGCM(self.versions[-1]).encrypt(nonce, b64decode(body["plaintext"], validate=True), None)
        return {"ciphertext": f"vault:v{len(self.versions)}:{b64encode(sealed).decode()}"}

    def _decrypt(self, body: dict[str, str]) -> dict[str, Any]:
        _, version, text = body["ciphertext"].split(":")
        sealed = b64decode(text)
        plain = AESGCM(self.versions[int(version[1:]) - 1]).decrypt(sealed[:12], sealed[12:], None)
        return {"plaintext": b64encode(plain).decode()}

    def _rewrap(self, body: dict[str, str]) -> dict[str, Any]:
        return self._encrypt(self._decrypt(body))


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    """Start a stub; ``master`` is its address."""
    stub = Vault()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = stub.answer(self.path, self.headers["X-Vault-Token"], body)
            content = json.dumps(answer).encode() if stub.content is None else stub.content
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Stay silent about clients that did not wait."""

    with Server(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setenv("VAULT_TOKEN", TOKEN)
        monkeypatch.setenv("STUB", f"vault:http://127.0.0.1:{server.server_port}/transit/penstock")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield stub
        server.shutdown()
        thread.join()


def master(**environ: str) -> MasterKey:
    return master_key(os.environ["STUB"], {**os.environ, **environ})


async def test_it_wraps_and_unwraps_for_one_owner_and_epoch(vault: Vault) -> None:
    wrapped = await master().wrap(PLAIN, b"dek|ann|1")
    assert wrapped.startswith(b"vault:v1:")
    assert await master().unwrap(wrapped, b"dek|ann|1") == PLAIN
    assert vault.asked == ["/v1/transit/encrypt/penstock", "/v1/transit/decrypt/penstock"]
    with pytest.raises(WrongMasterKey, match=r"^wrapped for another owner or epoch$"):
        await master().unwrap(wrapped, b"dek|bob|1")


async def test_a_new_version_of_the_key_rewraps_data_keys_which_never_leave_vault(vault: Vault, redis: Redis) -> None:
    message = await keyring(redis, master()).seal("ann", b"secret", AAD)
    await keyring(redis, master()).rotate("ann")
    vault.versions.append(os.urandom(32))
    vault.asked.clear()
    assert await keyring(redis, master()).rewrap() == 2
    assert set(vault.asked) == {"/v1/transit/rewrap/penstock"}
    vault.versions[0] = os.urandom(32)
    assert await keyring(redis, master()).open("ann", message, AAD) == b"secret"


async def test_a_warm_process_does_not_need_vault_and_a_cold_one_says_that_it_is_away(
    vault: Vault, redis: Redis
) -> None:
    warm = keyring(redis, master(), seconds=0)
    message = await warm.seal("ann", b"secret", AAD)
    vault.status = 503
    assert await warm.open("ann", message, AAD) == b"secret"
    with pytest.raises(Unavailable, match="decrypt with the key transit/penstock: status 503, sealed"):
        await keyring(redis, master()).open("ann", message, AAD)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((401, Unauthorized), (403, Unauthorized), (400, WrongMasterKey), (404, WrongMasterKey)),
        *((200, Unavailable), (204, Unavailable), (307, Unavailable), (429, Unavailable), (500, Unavailable)),
    ],
)
async def test_a_refusal_is_told_without_what_was_sent(vault: Vault, status: int, kind: type[Exception]) -> None:
    vault.status = status
    with pytest.raises(kind) as raised:
        await master().wrap(PLAIN, b"x")
    assert f"status {status}" in str(raised.value)
    for secret in (TOKEN, b64encode(PLAIN).decode()[:40]):
        assert secret not in str(raised.value)
    assert raised.value.__cause__ is None


async def test_a_wrong_token_is_refused(vault: Vault) -> None:
    with pytest.raises(Unauthorized, match=r"the token is refused \(status 403\)") as raised:
        await master(VAULT_TOKEN="hvs.wrong").wrap(PLAIN, b"x")
    assert "hvs.wrong" not in str(raised.value)


async def test_a_token_in_a_file_is_read_again_for_each_request(vault: Vault, tmp_path: Path) -> None:
    file = key_file(tmp_path / "token")
    file.write_text(f"{TOKEN}\n")
    key = master(VAULT_TOKEN_FILE=str(file), VAULT_TOKEN="hvs.old")
    wrapped = await key.wrap(PLAIN, b"x")
    vault.token = "hvs.renewed"
    with pytest.raises(Unauthorized):
        await key.unwrap(wrapped, b"x")
    file.write_text("hvs.renewed")
    assert await key.unwrap(wrapped, b"x") == PLAIN
    file.unlink()
    with pytest.raises(NoSecret, match="cannot be read"):
        await key.unwrap(wrapped, b"x")


async def test_a_token_that_no_header_may_have_is_not_shown(vault: Vault) -> None:
    for token in (f"{TOKEN}\n{TOKEN}", f"{TOKEN}✓"):
        with pytest.raises(NoSecret) as raised:
            await master(VAULT_TOKEN=token).wrap(PLAIN, b"x")
        assert TOKEN not in str(raised.value)
        assert vault.asked == []


async def test_vault_that_is_away_or_hangs_is_unavailable(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match=r"^Vault at 127\.0\.0\.1 cannot be reached: connection refused$"):
        await master_key("vault:http://127.0.0.1:1/transit/penstock").wrap(PLAIN, b"x")
    monkeypatch.setattr(module, "SECONDS", 0.2)
    hangs = threading.Event()
    monkeypatch.setattr(vault, "answer", lambda *_: (200, {"late": hangs.wait(PATIENCE)}))
    with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
        await master().wrap(PLAIN, b"x")
    hangs.set()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": {"plaintext": 1}}', b"<html>", b"\xff" * 100_000]
)
async def test_an_answer_that_is_not_that_of_vault_is_refused(vault: Vault, content: bytes) -> None:
    wrapped = await master().wrap(PLAIN, b"x")
    vault.content = content
    with pytest.raises(Unavailable, match="status 200"):
        await master().unwrap(wrapped, b"x")


async def test_an_answer_that_was_no_success_is_not_used(vault: Vault) -> None:
    vault.status, vault.content = 500, b'{"data": {"ciphertext": "vault:v1:AAAA"}}'
    with pytest.raises(Unavailable, match="status 500"):
        await master().wrap(PLAIN, b"x")


async def test_a_data_key_of_another_length_is_refused(vault: Vault, redis: Redis) -> None:
    wrapped = await master().wrap(PLAIN[:16], b"dek|ann|1")
    await redis.hset(KEYS.owner_keys("ann"), mapping={"1": wrapped, "epoch": 1})
    with pytest.raises(WrongMasterKey, match="data key 1 of 'ann': expected a key of 256 bits"):
        await keyring(redis, master()).all("ann")


@pytest.mark.parametrize("text", ["!", "", "AAAA", "é"])
async def test_a_plain_text_that_is_no_data_key_is_refused(vault: Vault, text: str) -> None:
    wrapped = await master().wrap(PLAIN, b"x")
    vault.content = json.dumps({"data": {"plaintext": text}}).encode()
    with pytest.raises(WrongMasterKey):
        await master().unwrap(wrapped, b"x")


async def test_a_key_of_another_kind_is_refused_without_asking(vault: Vault, redis: Redis) -> None:
    for wrapped in (b"\x01" * 69, b"", b"vault:\xff"):
        with pytest.raises(WrongMasterKey):
            await master().unwrap(wrapped, b"x")
    await keyring(redis).current("ann")
    with pytest.raises(WrongMasterKey, match="data key 1 of 'ann': not wrapped with a key of Vault"):
        await keyring(redis, master()).current("ann")
    await keyring(redis, master()).current("bob")
    with pytest.raises(WrongMasterKey, match="data key 1 of 'bob': not wrapped with a master key in a file"):
        await keyring(redis).current("bob")


async def test_another_key_of_vault_is_refused(vault: Vault) -> None:
    other = master_key(f"{os.environ['STUB']}2")
    with pytest.raises(WrongMasterKey, match=r"refused \(status 400\): no such key, or not wrapped with it"):
        await other.wrap(PLAIN, b"x")


def test_no_token_is_in_its_repr(vault: Vault) -> None:
    assert repr(master()) == "<VaultKey vault:127.0.0.1/transit/penstock>"
