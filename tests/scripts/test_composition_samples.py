"""Rates, ages and growth that follow from several samples of a composition."""

import pytest

from penstock.base.shape import End, Place
from penstock.composition.live.samples import MAX_SAMPLES, ListStats, Sample, Samples, ServiceCounts
from penstock.composition.model import Composition, Part

URL = "redis://localhost:6379/0"
SERVER = "localhost:6379/0"
IN, OUT, END = (Place(name, SERVER) for name in ("in", "out", "end"))
HOP = Composition(
    (
        Part("hop", "mpush", "ns", ends=(End("in", "in", "reads", "in", URL), End("out", "out", "writes", "out", URL))),
        Part("worker", ends=(End("out", "in", "reads", "reads", URL), End("end", "out", "writes", "writes", URL))),
        Part(
            "monitor",
            "monitor",
            "m",
            ends=(End("done", "done", "reads", "", URL), End("out", "out", "writes", "", URL)),
        ),
    )
)


def seen(*samples: tuple[int, int, int]) -> Samples:
    """Return samples a second apart: messages in ``in``, delivered by the hop, left in ``out``; one is pending."""
    found = Samples()
    for second, (waiting, delivered, left) in enumerate(samples):
        hop = ServiceCounts(pending=1, taken=delivered, delivered={"out": delivered, "count": delivered})
        services = {"ns": hop, "m": ServiceCounts(0, 0, {})}
        found.add(HOP, Sample(float(second), lengths={IN: waiting, OUT: left, END: 5}, services=services))
    return found


def test_rates_are_those_of_what_came_and_what_left() -> None:
    samples = seen((10, 0, 0), (20, 30, 10), (0, 80, 20))
    assert samples.stats(IN) == ListStats(0, arriving=35, leaving=40, growth=-5)
    assert samples.stats(OUT) == ListStats(20, arriving=40, leaving=30, growth=10, oldest=0, piles_up=False)
    assert samples.taken_per_second("ns") == 40


def test_after_one_sample_no_rate_is_known() -> None:
    samples = seen((10, 5, 0))
    assert (samples.stats(IN).arriving, samples.taken_per_second("ns")) == (None, None)
    assert samples.stats(IN).at_least


def test_only_the_growth_of_an_uncounted_list_is_known() -> None:
    samples = seen((0, 0, 0), (0, 9, 9))
    assert samples.stats(END) == ListStats(5, growth=0)
    samples.add(HOP, Sample(2.0, lengths={END: 9}))
    assert samples.stats(END) == ListStats(9, growth=2)


def test_a_list_that_was_not_seen_is_not_known() -> None:
    assert seen((0, 0, 0)).stats(Place("in", "elsewhere:6379/0")) == ListStats()


@pytest.mark.parametrize(
    ("samples", "oldest", "at_least"),
    [
        ([(0, 0, 0), (0, 10, 10), (0, 20, 20), (0, 30, 30)], 2, False),
        ([(0, 0, 0), (0, 10, 10), (0, 20, 10), (0, 30, 10)], 0, False),
        ([(0, 0, 0), (0, 10, 10), (0, 20, 11), (0, 30, 15)], 1, False),
        ([(0, 10, 10), (0, 10, 10), (0, 10, 10)], 2, True),
        ([(0, 10, 10), (0, 12, 2), (0, 15, 5)], 1, False),
    ],
)
def test_the_oldest_message_is_the_one_after_those_that_have_left(
    samples: list[tuple[int, int, int]], oldest: float, at_least: bool
) -> None:
    stats = seen(*samples).stats(OUT)
    assert (stats.oldest, stats.at_least) == (oldest, at_least)


@pytest.mark.parametrize(
    ("lengths", "piles_up"),
    [
        ([1, 2, 3], False),
        ([1, 2, 3, 4], True),
        ([5, 1, 2, 3, 4], True),
        ([1, 1, 2, 2, 2, 3, 3, 4], True),
        ([1, 2, 3, 3], False),
        ([1, 2, 3, 4, *[4] * 7], False),
        ([1, 2, 3, 4, 2], False),
    ],
)
def test_a_list_that_only_ever_grows_piles_up(lengths: list[int], piles_up: bool) -> None:
    assert seen(*((0, 0, length) for length in lengths)).stats(OUT).piles_up is piles_up


def test_what_the_entries_say_of_their_age_wins() -> None:
    samples = seen((0, 0, 0))
    samples.add(HOP, Sample(1.0, lengths={OUT: 3}, oldest={OUT: 77.0}))
    assert samples.stats(OUT).oldest == 77.0


def test_a_counter_that_was_reset_is_no_rate_below_zero() -> None:
    assert seen((0, 50, 0), (0, 3, 0)).stats(OUT).arriving == 0


def test_no_more_looks_are_kept_than_ages_need() -> None:
    samples = seen(*((0, second, 0) for second in range(MAX_SAMPLES + 50)))
    assert len(samples._samples) == MAX_SAMPLES
