"""The installed services, and what Penstock needs of their settings."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from penstock.errors import PenstockError, Problem, SettingsError

if TYPE_CHECKING:
    from penstock.acl import Rights
    from penstock.composition.model import Shape

DEFAULT_URL: Final = "redis://localhost:6379/0"
"""The server of a service or a program that names none."""
SECRET: Final = "left to the environment"


class FieldNames(Protocol):
    """The names of the settings outside of Python."""

    def variable_of(self, name: str, /) -> str:
        """Return the environment variable of a field."""


class ServiceSettings(Protocol):
    """The settings of one process, as ``common.settings.base`` has them; see ``Part.setting`` for other fields."""

    service: ClassVar[str]
    redis: str
    service_redis: str | None
    redis_namespace: str | None
    ordered: bool

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield each field and its value."""

    def names(self) -> FieldNames: ...

    def shape(self) -> "Shape":
        """Return the lists that the service reads, writes and keeps, and the namespaces that it watches."""

    def lists(self) -> dict[str, str]:
        """Return the lists on ``redis``, with the role of each."""

    def origins(self) -> dict[str, str]:
        """Return by property where its value is from, e.g. ``mpush.yaml:3``."""

    def rights(self) -> "dict[str, Rights]":
        """Return the minimal ACL by URL of the server."""

    def fixed(self) -> frozenset[str]:
        """Return the fields that cannot change while the service runs."""

    def warnings(self, environ: Mapping[str, str] | None, /) -> list[str]:
        """Return what is unwise in settings that are valid."""

    def apart(self, directory: Path, /) -> dict[str, object]:
        """Return the fields to set so that several instances on this machine do not get in each other's way."""


class ServiceSettingsType(Protocol):
    """The class that the entry point of a service names."""

    def load(self, props_file: Any, environ: Mapping[str, str], /) -> ServiceSettings:
        """Return the settings of a process. Raise ``SettingsError`` with every problem."""

    def service_in(self, props_file: Path, /) -> str | None:
        """Return the service that the property ``service`` of a props file names."""

    def secret_variables(self) -> dict[str, str]:
        """Return by property the environment variable of each setting whose value is never shown."""


@cache
def services() -> dict[str, EntryPoint]:
    """Return the entry points of all installed services, by name. They are read once: it takes some 20 ms."""
    return {entry.name: entry for entry in entry_points(group="penstock.services")}


def settings_of(service: str) -> ServiceSettingsType:
    """Return the settings class of an installed service. Raise ``PenstockError`` if it cannot be imported."""
    try:
        loaded: ServiceSettingsType = services()[service].load()
    except (ImportError, AttributeError) as error:
        raise PenstockError(f"the service {service} is not installed correctly: {error}") from error
    return loaded


def load_without_environment(
    settings: ServiceSettingsType, props_file: Any, environ: Mapping[str, str]
) -> tuple[ServiceSettings | None, list[Problem]]:
    """Return the settings, with stand-ins for what only the environment of the process may give: the URL and secrets.

    Return None and the problems if there are others than that these are missing.
    """
    found, problems = _load(settings, props_file, environ)
    stand_ins = {"redis": ("REDIS", DEFAULT_URL)}
    stand_ins |= {name: (variable, SECRET) for name, variable in settings.secret_variables().items()}
    missing = [one for one in problems if one.line is None and one.property in stand_ins]
    if missing and missing == problems:
        return _load(settings, props_file, {**environ, **dict(stand_ins[str(one.property)] for one in missing)})
    return found, [one for one in problems if one not in missing]


def _load(
    settings: ServiceSettingsType, props_file: Any, environ: Mapping[str, str]
) -> tuple[ServiceSettings | None, list[Problem]]:
    try:
        return settings.load(props_file, environ), []
    except SettingsError as error:
        return None, [*error.problems]


def module_of(service: str) -> str:
    """Return the module for ``python -m`` of an installed service: the package of its settings."""
    return services()[service].value.partition(":")[0].rpartition(".")[0]


def service_of(file: PurePath) -> str | None:
    """Return the service with the longest name that ``file`` begins with: ``mpush.yaml``; None if there is none."""
    begins = [name for name in services() if file.name.startswith(name) and not file.name[len(name) :][:1].isalnum()]
    return max(begins, key=len, default=None)
