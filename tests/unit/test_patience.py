"""Waiting for trouble to pass."""

from penstock.core.link import BACKOFF


def test_the_wait_stays_bounded_however_often_an_attempt_has_failed() -> None:
    """A server that is away for a quarter of an hour is tried more than 1,024 times."""
    assert all(0.5 <= BACKOFF.delay_after(failures) <= 1 for failures in (10, 1_023, 1_024, 100_000))
