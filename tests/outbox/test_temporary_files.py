"""A store where no temporary file can be made, as in a container that is read-only."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.outbox.store import Copy
from tests.outbox.outboxes import add, count, opened, published


@contextmanager
def no_new_files() -> Iterator[None]:
    """Let the process open no file, as if no directory for temporary ones could be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_publish_to_many_that_are_away_needs_no_temporary_file(tmp_path: Path) -> None:
    copies = [Copy(number, None) for number in range(1, 201)]
    with opened(tmp_path) as store:
        add(store, *(published(seq, *copies) for seq in range(1, 301)))
        with no_new_files():
            add(store, published(301, *copies))
        assert count(store, "deliveries") == 301 * len(copies)


def test_marks_of_a_window_with_a_duplicate_need_no_temporary_file(tmp_path: Path) -> None:
    marks = [os.urandom(16) for _ in range(20_000)]
    with opened(tmp_path) as store:
        with store.transaction():
            store.see(marks, 1000.0)
        with no_new_files(), store.transaction():
            assert not store.see_all([*(os.urandom(16) for _ in range(2000)), marks[0]], 1000.0)
