"""Settings of mpush for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.settings.base import ServiceSettings
from penstock.base.errors import SettingsError
from services.mpush.settings import Settings

LEAST: dict[str, Any] = {"redis": "redis://h", "in_": "in", "pending": "pending", "out": ["a", "b"]}
ORIGINAL = """// of mpush-redis
module.exports = {
   redis: 'redis://localhost:6379/1',
   serviceRedis: 'redis://localhost:6379/0',
   serviceNamespace: 'demo:mpush',
   in: 'demo:mpush:in',
   pending: 'demo:mpush:pending',
   done: 'demo:mpush:done',
   out: ['demo:mpush:out0', 'demo:mpush:out1'],
   popTimeout: 10, serviceExpire: 60, serviceRenew: 15, serviceCapacity: 10, messageExpire: 60, messageTimeout: 10,
   messageCapacity: 1000, loggerLevel: 'debug'
};
"""
ENVIRONMENT = {"REDIS": "redis://h", "MPUSH_IN": "in", "MPUSH_PENDING": "pending", "MPUSH_OUT": "a,b"}


def made(**more: Any) -> Settings:
    return Settings(**{**LEAST, **more})


def problems(**more: Any) -> list[str]:
    """Return the problems of minimal settings with ``more``; ``...`` omits a setting."""
    return problems_of(Settings, {**LEAST, **more})


def problems_of(service: type[ServiceSettings], given: Mapping[str, Any]) -> list[str]:
    """Return the problems of the settings ``given``, without those that are ``...``."""
    with pytest.raises(SettingsError) as refusal:
        service(**{name: value for name, value in given.items() if value is not ...})
    return [str(problem) for problem in refusal.value.problems]


def one(**more: Any) -> str:
    (problem,) = problems(**more)
    return problem


def refused(props_file: Path | None, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as refusal:
        Settings.load(props_file, environ)
    return [str(problem) for problem in refusal.value.problems]
