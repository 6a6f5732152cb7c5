"""The public names of the package, and the modules that importing it loads."""

import subprocess
import sys

import pytest

import penstock


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(penstock, name).__module__.startswith("penstock.")
    assert name in dir(penstock)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"^module 'penstock' has no attribute 'Kees'$"):
        _ = penstock.Kees  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing_else() -> None:
    """Neither redis nor asyncio nor typing: `penstock.signals` must block signals before a slow import begins."""
    assert _loaded_by("penstock") == {"penstock"}
    assert not _loaded_by("penstock.signals") & {"asyncio", "pydantic", "redis", "typing"}


def _loaded_by(module: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); import {module}; print(*sys.modules.keys() - before)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name.partition(".")[0] for name in found.stdout.split()}
