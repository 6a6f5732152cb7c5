"""Which answers himporter keeps, and for how long: RFC 9111."""

from typing import Any

import pytest

from common.http.message import Answer
from services.himporter.freshness import Terms, directives, has_credentials, terms_of

NOW = 1_795_000_000.5
"""Wed, 18 Nov 2026 11:06:40.5 GMT."""
DATE = b"Wed, 18 Nov 2026 11:%b GMT"


def terms(*headers: tuple[bytes, bytes], status: int = 200) -> Terms | None:
    return terms_of(Answer(status, [*headers], b"x"), 60, NOW)


@pytest.mark.parametrize("status", [201, 203, 204, 206, 301, 304, 404, 500, 503])
def test_only_200_is_kept(status: int) -> None:
    assert terms(status=status) is None


KEPT: dict[bytes, int] = {
    b"": 60,
    b"public": 60,
    b"max-age=5": 5,
    b'Max-Age="5"': 5,
    b"max-age=5, s-maxage=9": 9,
    b"max-age=5, max-age=9": 5,
    b"max-age=99999999999": 2**31,
    b"stale-if-error=5": 60,
}


@pytest.mark.parametrize(("control", "seconds"), KEPT.items())
def test_an_answer_says_how_long_it_is_fresh_or_the_setting_does(control: bytes, seconds: int) -> None:
    found = terms((b"cache-control", control))
    assert found
    assert found.seconds == seconds


REFUSED: list[bytes] = [
    *(b"no-store", b"private", b'private="set-cookie, x"', b"no-cache", b"NO-CACHE", b"max-age=60, no-store"),
    *(b"max-age=0", b"max-age=-1", b"max-age=soon", b"max-age", b"max-age=60, s-maxage=0", b"max-age=1e3"),
]


@pytest.mark.parametrize("control", REFUSED)
def test_an_answer_that_forbids_it_is_not_kept(control: bytes) -> None:
    assert terms((b"cache-control", control)) is None
    assert terms((b"cache-control", b"public"), (b"cache-control", control)) is None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"set-cookie", b"a=b")],
        [(b"vary", b"*")],
        [(b"vary", b"accept"), (b"vary", b"host, *")],
        [(b"expires", b"0")],
        [(b"expires", DATE % b"06:40")],
        [(b"expires", b"Thu, 01 Jan 99999 00:00:00 GMT")],
        [(b"age", b"60")],
        [(b"cache-tag", b",".join(b"%d" % tag for tag in range(33)))],
        [(b"cache-tag", b"x" * 257)],
    ],
)
def test_other_answers_that_are_not_kept(headers: Any) -> None:
    assert terms(*headers) is None


@pytest.mark.parametrize(("headers", "seconds"), [([], 29), ([(b"cache-control", b"max-age=7")], 7)])
def test_expires_counts_unless_a_directive_says_how_long(headers: list[tuple[bytes, bytes]], seconds: int) -> None:
    found = terms((b"expires", DATE % b"07:10"), *headers)
    assert found
    assert found.seconds == seconds


def test_the_age_of_an_answer_that_comes_from_a_cache_counts() -> None:
    found = terms((b"age", b"20"))
    assert found
    assert (found.seconds, found.age) == (40, 20)


@pytest.mark.parametrize("control", [b"must-revalidate", b"proxy-revalidate", b"s-maxage=5"])
def test_what_must_not_be_used_after_its_time_is_not_kept_for_longer(control: bytes) -> None:
    found, usual = terms((b"cache-control", control)), terms()
    assert found
    assert usual
    assert (found.may_be_stale, usual.may_be_stale) == (False, True)


def test_what_an_answer_depends_on_its_tags_and_whether_it_is_for_all() -> None:
    found = terms((b"vary", b"Accept-Language, accept"), (b"vary", b"accept"), (b"cache-tag", b"news, sp\xe4t,"))
    assert found
    assert (found.varies, found.tags, found.is_public) == ([b"accept", b"accept-language"], ["news", "spät"], False)
    for control in (b"public", b"s-maxage=5"):
        found = terms((b"cache-control", control))
        assert found
        assert found.is_public


def test_credentials_and_directives_of_requests() -> None:
    assert has_credentials([(b"a", b"b"), (b"cookie", b"")])
    assert has_credentials([(b"authorization", b"Basic x")])
    assert not has_credentials([(b"cookies", b"")])
    assert directives([(b"cache-control", b" No-Cache , max-age = 3,")]) == {b"no-cache": b"", b"max-age": b"3"}
