"""What Penstock needs of a service's settings; ``common.settings.base.ServiceSettings`` has it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from penstock.acl import Rights
    from penstock.composition.model import Shape


class FieldNames(Protocol):
    """The names of the settings outside of Python."""

    def variable_of(self, name: str, /) -> str:
        """Return the environment variable of a field."""


class ServiceSettings(Protocol):
    """The settings of one process of a service. Fields that only some services have are read with ``Part.setting``."""

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
