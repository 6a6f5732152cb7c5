"""The public names of the package, what importing it loads, and what it uses of the private parts of redis-py."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

import penstock
from tests.support.harness import ROOT


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(penstock, name).__module__.startswith("penstock.")
    assert name in dir(penstock)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"^module 'penstock' has no attribute 'Kees'$"):
        _ = penstock.Kees  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing_else() -> None:
    """Neither redis nor asyncio nor typing: `penstock.base.signals` must block signals before a slow import begins."""
    assert _loaded_by("penstock") == {"penstock"}
    assert not _loaded_by("penstock.base.signals") & {"asyncio", "pydantic", "redis", "typing"}


def _loaded_by(module: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); import {module}; print(*sys.modules.keys() - before)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name.partition(".")[0] for name in found.stdout.split()}


PRIVATE = {
    "penstock.inspect.redis_replies": ("redis._parsers:_AsyncRESP2Parser", ("_readline", "_read", "_read_response")),
    "penstock.core.wire": ("redis._parsers.base:BaseParser", ("parse_error",)),
    "penstock.core.connection": ("redis.asyncio:ConnectionPool", ("_get_free_connections", "_get_in_use_connections")),
    "penstock.core.raw_connection": ("redis.asyncio.connection:Connection", ("_reader", "_writer")),
}
"""Private parts of redis-py that we use, by the module that does: its next major version may be without them."""


@pytest.mark.parametrize("module", PRIVATE)
def test_private_parts_of_redis_py_that_we_use_are_there(module: str) -> None:
    place, names = PRIVATE[module]
    owner = getattr(import_module(place.partition(":")[0]), place.partition(":")[2])
    text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    sample = owner() if owner.__name__ == "Connection" else owner  # whose attributes are made with it
    assert all(hasattr(sample, name) and name in text for name in names)


def test_no_other_module_imports_private_parts_of_redis_py() -> None:
    files = (file for house in ("penstock", "common", "services") for file in (ROOT / house).rglob("*.py"))
    found = {
        file for file in files if re.search(r"^\s*(?:from|import) redis\.[\w.]*\b_", file.read_text(), re.MULTILINE)
    }
    assert {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in found} <= PRIVATE.keys()
