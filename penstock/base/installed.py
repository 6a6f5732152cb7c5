"""The installed services: the entry points of the group ``penstock.services``."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import PurePath


@cache
def services() -> dict[str, EntryPoint]:
    """Return the entry points of all installed services, by name. They are read once: it takes some 20 ms."""
    return {entry.name: entry for entry in entry_points(group="penstock.services")}


def module_of(service: str) -> str:
    """Return the module for ``python -m`` of an installed service: the package of its settings."""
    return services()[service].value.partition(":")[0].rpartition(".")[0]


def service_of(file: PurePath) -> str | None:
    """Return the service with the longest name that ``file`` begins with: ``mpush.yaml``; None if there is none."""
    begins = [name for name in services() if file.name.startswith(name) and not file.name[len(name) :][:1].isalnum()]
    return max(begins, key=len, default=None)
