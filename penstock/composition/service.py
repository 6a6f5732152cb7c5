"""What a composition needs of the settings of its services."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.base.errors import PenstockError, Problem, SettingsError
from penstock.base.installed import services
from penstock.base.shape import Shaped

if TYPE_CHECKING:
    from penstock.core.acl import Rights

DEFAULT_URL: Final = "redis://localhost:6379/0"
"""The server of a service or a program that names none."""
SECRET: Final = "left to the environment"


class FieldNames(Protocol):
    """The names of the settings outside of Python."""

    def variable_of(self, name: str, /) -> str:
        """Return the environment variable of a field."""


class PartSettings(Shaped, Protocol):
    """The settings of one process, as ``common.settings.base`` has them; see ``Part.setting`` for other fields."""

    redis_namespace: str | None
    ordered: bool

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield each field and its value."""

    def names(self) -> FieldNames: ...

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


class PartSettingsType(Protocol):
    """The class that the entry point of a service names."""

    @property
    def service(self) -> str: ...

    def load(self, props_file: Any, environ: Mapping[str, str], /) -> PartSettings:
        """Return the settings of a process. Raise ``SettingsError`` with every problem."""

    def service_in(self, props_file: Path, /) -> str | None:
        """Return the service that the property ``service`` of a props file names."""

    def secret_variables(self) -> dict[str, str]:
        """Return by property the environment variable of each setting whose value is never shown."""


def settings_of(service: str) -> PartSettingsType:
    """Return the settings class of an installed service. Raise ``PenstockError`` if it cannot be imported."""
    try:
        loaded: PartSettingsType = services()[service].load()
    except (ImportError, AttributeError) as error:
        raise PenstockError(f"the service {service} is not installed correctly: {error}") from error
    if loaded.service != service:
        raise PenstockError(f"the entry point {service} names the settings of {loaded.service}: expected one name")
    return loaded


def load_without_environment(
    settings: PartSettingsType, props_file: Any, environ: Mapping[str, str]
) -> tuple[PartSettings | None, list[Problem]]:
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
    settings: PartSettingsType, props_file: Any, environ: Mapping[str, str]
) -> tuple[PartSettings | None, list[Problem]]:
    try:
        return settings.load(props_file, environ), []
    except SettingsError as error:
        return None, [*error.problems]
