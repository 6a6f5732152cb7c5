"""Webhooks are signed and verified as Standard Webhooks has it."""

import time

import pytest

from penstock.webhook import ForgedWebhook, owner_secret, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'


def signed(at: float, secret: str = SECRET, body: bytes = BODY) -> dict[str, str]:
    signature = sign(secret, "msg_1", int(at), body)
    return {"Webhook-Id": "msg_1", "webhook-timestamp": str(int(at)), "webhook-signature": signature}


def test_the_signature_is_that_of_the_specifications_example() -> None:
    found = sign(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_what_was_signed_is_verified_also_beside_other_signatures() -> None:
    headers = signed(time.time())
    assert verify(headers, BODY, SECRET) == {"test": 2432232314}
    headers["webhook-signature"] = f"v1a,other v1,AAAA {headers['webhook-signature']}"
    assert verify(headers, BODY, SECRET) == {"test": 2432232314}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"webhook-signature": ""}, "no header webhook-signature"),
        ({"webhook-signature": "v1,AAAA"}, "not signed"),
        ({"webhook-signature": "ü"}, "not signed"),
        ({"Webhook-Id": "msg_2"}, "not signed"),
        ({"webhook-timestamp": "now"}, "seconds since the epoch"),
        ({"webhook-timestamp": "²"}, "seconds since the epoch"),
        ({"webhook-timestamp": "9" * 400}, "seconds since the epoch"),
        ({"webhook-timestamp": "9" * 5_000}, "seconds since the epoch"),
        ({"webhook-signature": "v1,\udc80"}, "not signed"),
        ({"Webhook-Id": "\udc80"}, "not signed"),
    ],
)
def test_what_was_changed_is_refused(change: dict[str, str], word: str) -> None:
    with pytest.raises(ForgedWebhook, match=word):
        verify(signed(time.time()) | change, BODY, SECRET)


@pytest.mark.parametrize("seconds", [-400, 400])
def test_what_is_old_or_of_the_future_is_refused(seconds: int) -> None:
    with pytest.raises(ForgedWebhook, match="at most 300 s"):
        verify(signed(time.time() + seconds), BODY, SECRET)


def test_another_body_or_secret_is_refused() -> None:
    for body, secret in ((BODY + b" ", SECRET), (BODY, owner_secret("root", "anna"))):
        with pytest.raises(ForgedWebhook, match="not signed"):
            verify(signed(time.time()), body, secret)


def test_each_owner_has_a_secret_of_its_own() -> None:
    found = {owner_secret(root, owner) for root in ("root", "other") for owner in ("", "anna", "bob")}
    assert len(found) == 6
    assert all(each.startswith("whsec_") for each in found)
