"""The handshake without sockets: who knows the secret is let in; reflected, replayed and relayed proofs are not."""

import msgpack
import pytest

from penstock.outbox.frames import HEADER, Kind, Reader, Violation, frame
from penstock.outbox.handshake import Handshake, Refused, RefusedByThem
from penstock.outbox.hello import Identity, Limits
from penstock.outbox.security import MIN_SECRET_BYTES, Allowed, Security, certificate_names

SECRET = "correct horse battery staple"
HERE = Identity("here.example:1", b"h" * 16)
THERE = Identity("there.example:2", b"t" * 16)


def side(
    identity: Identity, dialled: str | None = None, secret: str | None = SECRET, names: frozenset[str] = frozenset()
) -> Handshake:
    security = Security.none(insecure=True) if secret is None else Security.shared(secret)
    return Handshake(identity, security, Limits(), dialled, names)


def connector(dialled: str = THERE.address, secret: str | None = SECRET) -> Handshake:
    return side(HERE, dialled, secret)


def listener(secret: str | None = SECRET) -> Handshake:
    return side(THERE, None, secret)


def feed(to: Handshake, data: bytes) -> bytes:
    return b"".join(to.take(kind, body) for kind, body in Reader().feed(data))


def changed(data: bytes, **fields: object) -> bytes:
    return frame(Kind.HELLO, msgpack.unpackb(data[HEADER.size :]) | fields)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_both_sides_learn_who_the_other_is(secret: str | None) -> None:
    ours, theirs = connector(secret=secret), listener(secret)
    data = ours.begin()
    assert theirs.begin() == b""
    while data:
        data = feed(theirs, data)
        data = feed(ours, data) if data else b""
    assert (ours.is_done, theirs.is_done) == (True, True)
    assert (ours.theirs.identity, theirs.theirs.identity) == (THERE, HERE)


def test_the_secret_is_never_sent_nor_shown() -> None:
    ours, theirs = connector(), listener()
    first = ours.begin()
    second = feed(theirs, first)
    third = feed(ours, second)
    fourth = feed(theirs, third)
    sent = first + second + third + fourth
    assert SECRET.encode() not in sent
    for shown in (repr(Security.shared(SECRET)), repr(ours), str(vars(ours))):
        assert SECRET not in shown
    assert repr(Security.shared(SECRET)) == "<Security: a shared secret>"


def test_the_connector_proves_first() -> None:
    """A stranger who connects gets nothing that it could guess the secret by."""
    kinds = [kind for kind, _ in Reader().feed(feed(listener(), connector().begin()))]
    assert kinds == [Kind.HELLO]


@pytest.mark.parametrize("other", ["another secret of 16 bytes", f"{SECRET} ", SECRET.upper() + "x"])
def test_another_secret_is_refused_by_the_listener(other: str) -> None:
    ours, theirs = connector(secret=other), listener()
    proof = feed(ours, feed(theirs, ours.begin()))
    with pytest.raises(Refused, match="the shared secret is another") as caught:
        feed(theirs, proof)
    assert caught.value.kind == "secret"
    assert not theirs.is_done
    assert SECRET not in str(caught.value)
    assert other not in str(caught.value)


def test_a_listener_that_does_not_know_the_secret_is_refused() -> None:
    ours, theirs = connector(), listener("another secret of 16 bytes")
    feed(ours, feed(theirs, ours.begin()))
    for forged in (b"", b"x" * 32, "text", None, 5, [b"x" * 32]):
        with pytest.raises(Refused, match="another"):
            feed(ours, frame(Kind.PROOF, forged))
        assert not ours.is_done


def test_a_proof_is_not_accepted_from_its_own_sender() -> None:
    """Reflection: an impostor sends back what the connector sends."""
    ours = side(HERE, HERE.address)
    proof = feed(ours, ours.begin())  # our own hello comes back
    with pytest.raises(Refused, match="another"):
        feed(ours, proof)
    assert not ours.is_done


def test_a_recorded_connection_cannot_be_played_again() -> None:
    ours, theirs = connector(), listener()
    hello = ours.begin()
    answer = feed(theirs, hello)
    proof = feed(ours, answer)
    last = feed(theirs, proof)
    again = listener()
    feed(again, hello)
    with pytest.raises(Refused, match="another"):
        feed(again, proof)
    victim = connector()
    victim.begin()
    feed(victim, answer)
    with pytest.raises(Refused, match="another"):
        feed(victim, last)


def test_a_connection_that_is_led_to_another_peer_is_refused_by_both() -> None:
    """Relay: an impostor at the dialled address passes everything on to a third that knows the secret."""
    elsewhere = Identity("elsewhere.example:3", b"e" * 16)
    ours, third = connector(), side(elsewhere)
    with pytest.raises(Refused, match=r"there.example:2 was dialled, but who answers is elsewhere.example:3"):
        feed(third, ours.begin())
    third = side(elsewhere)
    relayed = feed(third, changed(ours.begin(), wanted=elsewhere.address))
    with pytest.raises(Refused, match="was dialled"):
        feed(ours, relayed)
    ours, third = connector(), side(elsewhere)
    relayed = changed(feed(third, changed(ours.begin(), wanted=elsewhere.address)), address=THERE.address)
    proof = feed(ours, relayed)
    with pytest.raises(Refused, match="another"):  # both prove what they have seen, which is not the same
        feed(third, proof)


@pytest.mark.parametrize("field", [{"address": "impostor.example:1"}, {"bytes": 1}, {"store": b"i" * 16}, {"later": 1}])
def test_a_hello_that_was_changed_on_its_way_is_noticed(field: dict[str, object]) -> None:
    ours, theirs = connector(), listener()
    answer = feed(theirs, changed(ours.begin(), **field))
    proof = feed(ours, answer)
    with pytest.raises(Refused, match="another"):
        feed(theirs, proof)


@pytest.mark.parametrize(("ours", "theirs"), [(None, SECRET), (SECRET, None)])
def test_no_side_goes_without_the_secret_that_it_has(ours: str | None, theirs: str | None) -> None:
    opening, answering = connector(secret=ours), listener(theirs)
    with pytest.raises(Refused, match="a shared secret" if theirs else "no shared secret") as caught:
        feed(answering, opening.begin())
    assert caught.value.kind == "secret"
    hello = feed(listener(theirs), changed(opening.begin(), secret=theirs is not None))
    with pytest.raises(Refused, match="both sides must be set up alike"):
        feed(opening, hello)
    assert not opening.is_done


def test_frames_out_of_turn_are_violations() -> None:
    hello = connector().begin()
    for before, data in (
        (b"", frame(Kind.PROOF, b"x" * 32)),
        (b"", frame(Kind.MESSAGES, [])),
        (b"", frame(Kind.PING, 1)),
        (hello, hello),
        (hello, frame(Kind.ACKNOWLEDGED, [1, []])),
    ):
        theirs = listener()
        feed(theirs, before)
        with pytest.raises(Violation):
            feed(theirs, data)
        assert not theirs.is_done


def test_a_refusal_of_the_other_side_is_told() -> None:
    with pytest.raises(RefusedByThem, match="the other side refuses: no room"):
        feed(connector(), frame(Kind.BYE, "no room"))


def test_a_short_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match=f"shorter than {MIN_SECRET_BYTES} bytes") as caught:
        Security.shared("hunter2")
    assert "hunter2" not in str(caught.value)
    assert Security.shared("x" * MIN_SECRET_BYTES).has_secret


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_nothing_is_asked_on_loopback(host: str) -> None:
    Security.none().require_allowed(host)
    assert not Security.none().has_secret


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "shop.example", "localhost.example", "127.example"])
def test_elsewhere_something_must_be_asked(host: str) -> None:
    with pytest.raises(ValueError, match="is not on loopback"):
        Security.none().require_allowed(host)
    for security in (Security.none(insecure=True), Security.shared(SECRET)):
        security.require_allowed(host)


def test_who_may_subscribe_to_what_and_for_whom() -> None:
    """RS-D17: nobody subscribes or unsubscribes others, and only to what it may."""
    anyone = Allowed()
    assert anyone.refusal("a:1", (), ["orders"], "a:1") is None
    assert anyone.refusal("a:1", (), ["orders"], "b:1") == "a:1 may not subscribe for b:1"
    assert anyone.refusal("", (), ["orders"], "b:1") == "a peer without an address may not subscribe for b:1"
    some = Allowed({"a:1": ["orders", "stock.*"], "proxy.example": ["*"]}, {"proxy.example": ["b:*", "c:1"]})
    assert some.refusal("a:1", (), ["orders", "stock.paris"], "a:1") is None
    assert some.refusal("a:1", (), ["stock.*"], "a:1") is None
    assert some.refusal("a:1", (), ["orders", "stock"], "a:1") == "a:1 may not subscribe to stock"
    assert some.refusal("a:1", (), ["*"], "a:1") == "a:1 may not subscribe to *"
    assert some.refusal("a:1", (), ["orders.all"], "a:1") == "a:1 may not subscribe to orders.all"
    assert some.refusal("a:1", (), [], "b:1") == "a:1 may not subscribe for b:1"
    assert some.refusal("b:1", (), ["orders"], "b:1") == "b:1 may not subscribe to orders"
    assert some.refusal("p:1", ["proxy.example"], ["orders"], "b:7") is None
    assert some.refusal("p:1", ["proxy.example"], ["orders"], "c:12") == "p:1 may not subscribe for c:12"
    assert Allowed({}).refusal("a:1", (), ["orders"], "a:1") == "a:1 may not subscribe to orders"
    assert Allowed(behalf={"a:*": ["*"]}).refusal("a:9", (), ["k"], "z:1") is None


def test_names_of_a_certificate() -> None:
    subject = ((("commonName", "old.example"),),)
    assert certificate_names({"subject": subject}) == {"old.example"}
    names = (("DNS", "a.example"), ("IP Address", "10.0.0.1"), ("email", "x@y"))
    assert certificate_names({"subject": subject, "subjectAltName": names}) == {"a.example", "10.0.0.1"}
    assert certificate_names({}) == frozenset()
