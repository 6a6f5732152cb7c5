"""Become the service that a props file names: ``python -m common.start --props FILE``, for ``penstock run``."""

import penstock.base.signals  # noqa: F401, I001
import os
import sys
from pathlib import PurePosixPath
from typing import Final

from common.settings.redis_hash import Hash
from common.settings.props import place_of, read_props
from common.settings.redaction import shown
from penstock.base.launch import exec_module
from penstock.base.errors import PenstockError, Problem, SettingsError
from penstock.base.installed import module_of, service_of, services

SERVICE: Final = "service"
"""The property that names the service of a props file."""


def module(named: str) -> str:
    """Return the module of the service that the props at ``named`` are for. Raise ``SettingsError``."""
    place = place_of(named, os.environ)
    service = service_of(PurePosixPath(place.key) if isinstance(place, Hash) else place)
    if service:
        return module_of(service)
    props = read_props(place)
    installed = ", ".join(sorted(services()))
    name = props.values.get(SERVICE)
    if name is None:
        named = "name it mpush-*.yaml, write `service: NAME` in it, or pass --service NAME"
        message = f"cannot tell which service this file is for: {named} ({installed})"
        raise SettingsError([Problem(message, props.file)])
    if name not in services():
        message = f"no service is called {shown(name)}: expected one of {installed}"
        raise SettingsError([Problem(message, props.file, props.lines.get(SERVICE), SERVICE)])
    return module_of(str(name))


if __name__ == "__main__":
    try:
        exec_module(module(sys.argv[2]), sys.argv[1:])
    except PenstockError as error:
        print(error, file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
