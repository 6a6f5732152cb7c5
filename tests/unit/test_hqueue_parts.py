"""What hqueue makes of tokens and sealed contents, without a server."""

from itertools import product

import pytest

from penstock.base.errors import Unopenable
from penstock.sealing.sealed import VERSION
from services.hqueue.seals import OPEN, place
from services.hqueue.task_token import Attempt, TaskTokens


def test_a_token_is_for_one_attempt_of_one_task_of_one_queue_and_one_key() -> None:
    tokens = TaskTokens(b"k" * 32)
    given = [*product(("shop resize", "shop mail"), ("7", "77"), (1, 2, 11))]
    made = {tokens.make(*each): each for each in given}
    assert len({token.rpartition(".")[2] for token in made}) == len(given), "each has a digest of its own"
    for token, (queue, id, attempt) in made.items():
        assert tokens.read(queue, token) == Attempt(id, attempt)
        assert [each for each in ("shop resize", "shop mail") if tokens.read(each, token)] == [queue]
        assert TaskTokens(b"l" * 32).read(queue, token) is None
        digest = token.rpartition(".")[2]
        assert tokens.read(queue, f"{id}.{attempt + 1}.{digest}") is None
        assert tokens.read(queue, f"{id}1.{attempt}.{digest}") is None


def test_a_sealed_content_is_not_given_as_it_is_without_a_master_key() -> None:
    assert OPEN.open(OPEN.seal(b'{"a":1}', b""), b"") == b'{"a":1}'
    with pytest.raises(Unopenable):
        OPEN.open(bytes([VERSION]) + b"sealed", b"")


def test_each_content_of_each_task_has_a_place_of_its_own() -> None:
    contents = [*product(("shop resize", "shop mail"), ("7", "8"), ("value", "result"))]
    assert len({place(*each) for each in contents}) == len(contents)
