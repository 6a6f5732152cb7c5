"""A store that nobody can write."""

import shutil
from pathlib import Path

import pytest

from penstock.outbox import Damaged
from penstock.outbox.store import NAME, Store
from tests.outbox.outboxes import add, opened, published


def test_a_log_that_cannot_be_read_where_it_is_can_be_read_elsewhere(tmp_path: Path) -> None:
    crashed, elsewhere = tmp_path / "crashed", tmp_path / "elsewhere"
    (tmp_path / "datadir").mkdir()
    with opened(tmp_path / "datadir") as store:
        add(store, published(1))
        shutil.copytree(tmp_path / "datadir", crashed)
    (crashed / f"{NAME}-shm").unlink()
    shutil.copytree(crashed, elsewhere)
    (crashed / f"{NAME}-shm").symlink_to("nowhere/at-all")  # as on a read-only disk, SQLite cannot make this file
    with pytest.raises(Damaged, match=r"cannot be read: .* copy it with outbox.db-wal elsewhere"):
        Store.read(crashed)
    store = Store.read(elsewhere)
    assert store.counts().outgoing == 1
    store.close()
