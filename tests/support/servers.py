"""Kinds of server for tests: they differ in the commands that a full one refuses."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.testing.server import EmbeddedServer

KINDS = ("embedded", "redis-server")
"""The embedded server and the system's. In MULTI, a full Redis refuses every command, Valkey 9 only writes."""


@contextmanager
def started(kind: str) -> Iterator[EmbeddedServer]:
    """Yield a server of that kind; skip the test if none is installed."""
    with pytest.MonkeyPatch.context() as patch:
        if kind != "embedded":
            if not (path := shutil.which(kind)):
                pytest.skip(f"{kind} is not installed")
            patch.setenv("PENSTOCK_SERVER", path)
        with EmbeddedServer() as server:
            patch.undo()
            yield server
